"""What the tests take for torch: the names and signatures that safecache knows, and a record of the calls."""

import os

__version__ = os.environ.get("FAKE_TORCH_VERSION", "2.14.1")

calls = []
# What the stock function of this name raises, and what every one of them does.
failures = {}
failure = None
# What a test wants to happen while a module is imported, by (module, stage); it gets the module's namespace.
events = {}


def called(name, *arguments):
    """The body of every stock function."""
    calls.append((name, *arguments))
    error = failures.get(name, failure)
    if error is not None:
        raise error
    return f"stock {name}"


def reached(stage, namespace):
    """A module that is being imported has reached this stage."""
    events.get((namespace["__name__"], stage), lambda namespace: None)(namespace)
