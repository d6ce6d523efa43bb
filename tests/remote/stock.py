"""What a start costs whose remote cache fails: stock torch with its own, and safecache. Prints a table.

``PYTHONPATH=. python tests/remote/stock.py [SECONDS]``; what takes longer than that, 180 by default, is ended: it hangs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from remote.liars import failing_as

# The first is that there is no remote at all, to compare with.
NONE = "there is none"
WAYS = (NONE, "refused", "silent", "deaf", "drip", "garbage", "cut", "full")
PROGRAM = """
import time
import torch
begun = time.perf_counter()
torch.compile(lambda x: x.sin() + 1)(torch.ones(4))
print("seconds", time.perf_counter() - begun)
"""
_SERIAL = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
# For each, what it imports, the variable that has the server's URL, and the others.
STOCK = (
    "",
    "TORCHINDUCTOR_REDIS_URL",
    _SERIAL | {"TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "1"},
)
OURS = ("import safecache", "SAFECACHE_REMOTE", _SERIAL)


def outcome(url: str | None, how: tuple[str, str, dict[str, str]], limit: float) -> str:
    """How a cold compile in a process of its own ends, and after how many seconds."""
    first, variable, environment = how
    with tempfile.TemporaryDirectory() as home:
        places = {"TORCHINDUCTOR_CACHE_DIR": f"{home}/cache", "XDG_CONFIG_HOME": home}
        command, begun = [sys.executable, "-c", first + PROGRAM], time.monotonic()
        environment = os.environ | places | ({} if url is None else environment | {variable: url})
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return f"hangs (ended after {limit:.0f} s)"
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "Error: " in line] or [str(done.returncode)]
            return f"fails after {time.monotonic() - begun:.0f} s: {errors[-1][:90]}"
        return f"{float(done.stdout.split()[-1]):.1f} s"


def row(how: str, limit: float) -> str:
    """A line of the table."""
    server = None if how == NONE else failing_as(how)
    found = [outcome(server and server.url, who, limit) for who in (STOCK, OURS)]
    if server is not None:
        server.close()
    return f"| {how} | {' | '.join(found)} |"


def main() -> None:
    """Print it, several lines at a time: most of what they do is to wait."""
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 180.0
    print("| the server | stock | safecache |\n|---|---|---|")
    with ThreadPoolExecutor(3) as pool:
        for line in pool.map(lambda how: row(how, limit), WAYS):
            print(line, flush=True)


if __name__ == "__main__":
    main()
