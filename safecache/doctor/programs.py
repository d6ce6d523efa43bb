"""Programs that a compile starts, tried."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

__all__ = ["objection"]

_TIMEOUT = 30  # seconds


def objection(
    command: list[str], *, source: str = "", environ: Mapping[str, str] | None = None, line: int = -1
) -> str | None:
    """What keeps a program from ending well, with ``source`` as its input; None if nothing does.

    ``line``: which of the lines that it says then is the telling one.
    """
    try:
        done = subprocess.run(
            command, input=source.encode(), env=environ and dict(environ), capture_output=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {_TIMEOUT} s"
    except OSError as error:
        return error.strerror or str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[line] if lines else f"it ends with {done.returncode}"
