"""Activate safecache under ``safecache run``, then run the sitecustomize that this one hides on PYTHONPATH.

The directory stays on sys.path: Inductor's compile workers get their PYTHONPATH from it.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_here = os.path.dirname(os.path.abspath(__file__))
_beside = os.path.dirname(os.path.dirname(_here))
_elsewhere = tuple(entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _here)


def _activate() -> None:
    found = PathFinder.find_spec("safecache", _elsewhere)
    installed = found is not None and found.origin is not None  # without: just a directory of that name
    if not installed:
        # Only for the import: whatever else lies beside the package is none of this interpreter's business.
        sys.path.append(_beside)
    try:
        import safecache  # noqa: F401
    except Exception as error:
        # Python would print a traceback and carry on; so do we, in one line, unless the user does not want that.
        print(f"safecache: not active in this process: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        words = os.environ.get("SAFECACHE_STRICT", "").lower().split(",")
        if any(word.strip() in ("1", "true", "yes", "on") for word in words):
            os._exit(78)
    finally:
        if not installed:
            sys.path.remove(_beside)


def _run_hidden() -> None:
    spec = PathFinder.find_spec("sitecustomize", _elsewhere)
    if spec is not None and spec.loader is not None:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)


_activate()
_run_hidden()
