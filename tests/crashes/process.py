"""Calls one scene in a fresh process: ``python process.py '{"scene": "MODULE:FUNCTION", "arguments": …}'`` prints JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pkgutil
import sys

import triton

import safecache


class _Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def _children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return len(file.read().split())


def main(scene, arguments):
    kept = _Kept()
    logging.getLogger("safecache").addHandler(kept)
    with contextlib.redirect_stdout(sys.stderr):
        result = pkgutil.resolve_name(scene)(**arguments)
    answer = {"result": result, "warnings": kept.messages, "stats": safecache.stats(), "children": _children()}
    answer["imported"] = sorted(name for name in sys.modules if name.startswith("safecache.isolation"))
    print(json.dumps(answer))


if __name__ == "__main__":
    assert triton  # imported first, as by a program of its user's
    main(**json.loads(sys.argv[1]))
