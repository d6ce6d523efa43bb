"""Calls scenes in a process without torch and without safecache, on Triton's sources as they are or patched.

Run with requests as JSON, by name: each is a list of scenes with their arguments. Prints what came of it in the same way.
"""

from __future__ import annotations

import json
import logging
import os
import pkgutil
import sys

import triton
from triton.runtime import build, cache

assert "safecache" not in sys.modules


class Warnings(logging.Handler):
    """What Triton has logged, in ``texts``."""

    def emit(self, record):
        self.texts.append(record.getMessage())


def run(scene, **arguments):
    """The scene's result or error, and what was logged meanwhile."""
    handler.texts = []
    try:
        said = {"result": pkgutil.resolve_name(scene)(**arguments)}
    except Exception as error:
        chain = [error, error.__cause__]
        said = {"error": [[type(one).__name__, str(one)] for one in chain if one is not None]}
    return said | {"warnings": handler.texts}


def run_each(requests):
    """By name, each with a cache of its own, below the one that the environment names, unless there is but one."""
    base, answers = os.environ["TRITON_CACHE_DIR"], {}
    for name, request in requests.items():
        os.environ["TRITON_CACHE_DIR"] = os.path.join(base, name) if len(requests) > 1 else base
        answers[name] = [run(scene, **arguments) for scene, arguments in request]
    return answers


if __name__ == "__main__":
    handler = Warnings()
    logging.getLogger("triton").addHandler(handler)
    said = run_each(json.loads(sys.argv[1]))
    assert not {"safecache", "torch"} & set(sys.modules)
    patches = [name for module in (cache, build) for name in vars(module) if name.startswith("_safecache_")]
    print(json.dumps({"said": said, "triton": triton.__version__, "patches": patches}))
