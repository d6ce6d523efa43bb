"""Kill processes that put, get and move away, at random moments: ``python tests/faults/store/kill.py --kills 5000``.

All of them work on one cache, where each finds what the others left. Exit code 1 if anything there is ever wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS.parent)]

from safecache.fs import temporaries  # noqa: E402
from safecache.places import layout  # noqa: E402
from safecache.reporting.kinds import Reason  # noqa: E402
from safecache.store import entry_files  # noqa: E402

_KEYS = 3
# The longest that a process lives, in seconds.
_LIFE = 0.008


def _content(key: int, version: int) -> bytes:
    return b"%d %d " % (key, version) * 3000


def _is_whole(key: int, content: bytes) -> bool:
    return content in (_content(key, 0), _content(key, 1))


def _path(root: str, key: int) -> str:
    return os.path.join(root, "fxgraph", str(key), "entry")


def _work(root: str) -> None:
    """Until it is killed."""
    chance = random.Random()
    while True:
        key = chance.randrange(_KEYS)
        path = _path(root, key)
        what = chance.random()
        if what < 0.6:
            entry_files.publish(path, _content(key, chance.randrange(2)), root)
        elif what < 0.8:
            entry_files.quarantine(path, root, Reason.DAMAGED)
        else:
            for name in layout.list_entries(os.path.dirname(path)):
                entry_files.read_unverified_entry(os.path.join(os.path.dirname(path), name))


def _kill_one(root: str) -> None:
    pid = os.fork()
    if pid == 0:
        _work(root)
    time.sleep(random.random() * _LIFE)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"the process ended by itself: {status}")


def _check(root: str) -> Counter[str]:
    """What lies there. Raises AssertionError for what must not."""
    found: Counter[str] = Counter()
    for path in Path(root, "fxgraph").rglob("*"):
        if path.name.endswith(".tmp"):
            found["temporary files"] += 1
        elif path.is_file():
            assert path.name == "entry", path
            assert _is_whole(int(path.parent.name), path.read_bytes()), f"{path} is torn"
            found["whole entries"] += 1
    for path in Path(root, ".safecache", "quarantine").glob("entry.*"):
        if path.suffix != ".json":
            content = path.read_bytes()
            assert _is_whole(int(content.split(b" ", 1)[0]), content), f"{path} is torn"
            assert path.with_name(path.name + ".json").stat().st_size, f"{path} has no note"
            found["in quarantine"] += 1
    return found


def _reap(root: str) -> None:
    """An hour later, all that dead writers left goes with the next put."""
    for path in Path(root, "fxgraph").rglob(".*.tmp"):
        os.utime(path, (time.time() - 7200,) * 2)
    temporaries._reaped.reset()
    for key in range(_KEYS):
        entry_files.publish(_path(root, key), _content(key, 0), root)
    left = [str(path) for path in Path(root).rglob(".*.tmp")]
    assert left == [], f"not removed: {left}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5000)
    kills = parser.parse_args().kills
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        for number in range(kills):
            _kill_one(root)
            seen += _check(root)
            if number % 50 == 49:
                _reap(root)
        _reap(root)
    print(f"{kills} kills; seen after them, in all: {dict(seen)}; nothing torn, nothing without a note, nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
