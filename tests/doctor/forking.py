"""A process that has imported the command and runs it in forks, each with an environment and a PYTHONPATH of its own.

Reads one JSON request a line, {"arguments", "environment", "without", "output", "errors"}, and answers with the exit
code. ``without``: checks that are not made.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import suppress

from safecache.cli import doctor  # noqa: F401
from safecache.cli.main import main
from safecache.doctor import CHECKS

with suppress(ImportError):  # once, for all of them
    import redis  # noqa: F401


def run(request):
    os.environ.clear()
    os.environ.update(request["environment"])
    os.umask(0o022)
    for check in request["without"]:
        del CHECKS[check]
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for number, name in ((1, "output"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY), number)
    try:
        code = main(request["arguments"])
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=replies, flush=True)
