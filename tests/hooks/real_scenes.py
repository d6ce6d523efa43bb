"""What the command says in a process that has imported safecache, and then the installed torch; see model_scenes.py."""

from __future__ import annotations

import contextlib
import io
import json

__all__ = ["status"]


def status():
    """The exit code of ``safecache status --json``, and its report."""
    from safecache.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main(["status", "--json"])
    return code, json.loads(said.getvalue())
