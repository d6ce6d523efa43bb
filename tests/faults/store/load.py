"""Many processes put, look up, damage and move away at once: ``python tests/faults/store/load.py`` (64 of them, 1,000 each).

Hot keys are shared by all of them, the others are each one's own. Exit code 1 if a value is wrong or another key's, if a
good entry was moved away, or if a temporary file is left.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS.parent)]

from safecache.entries import loading  # noqa: E402
from safecache.places import layout  # noqa: E402
from safecache.places.refs import Ref  # noqa: E402
from safecache.reporting import events  # noqa: E402
from safecache.reporting.kinds import Count, Kind  # noqa: E402
from safecache.settings import config  # noqa: E402
from safecache.signing import keyring, seal, trust  # noqa: E402
from safecache.store import entry_files  # noqa: E402

_KIND = Kind.DYNAMO_PACKAGE
_HOT = [f"hot-{number}" for number in range(4)]
_VERSIONS = 4


def _payload(key: str, version: int) -> bytes:
    return f"{key} {version} ".encode() * 400


def _entry(key: str, version: int) -> bytes:
    return seal.attach(_payload(key, version), _KIND, key, keyring.current().signing, {})


class _Worker:
    """One process. ``wrong`` holds what must not happen."""

    def __init__(self, number: int, root: str) -> None:
        self.chance = random.Random(number)
        self.root = root
        self.own = [f"own-{number}-{at}" for at in range(20)]
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def work(self, operations: int) -> None:
        for _ in range(operations):
            key = self.chance.choice(_HOT if self.chance.random() < 0.7 else self.own)
            directory = os.path.join(self.root, "fxgraph", key)
            what = self.chance.random()
            if what < 0.35:
                self.put(key, directory)
            elif what < 0.95:
                self.look_up(key, directory)
            else:
                self.damage(directory)

    def put(self, key: str, directory: str) -> None:
        content = _entry(key, self.chance.randrange(_VERSIONS))
        # Under a name that is replaced, and under one of its own.
        name = self.chance.choice(["entry", layout.name_entry(content)])
        entry_files.publish(os.path.join(directory, name), content, self.root)
        self.done["put"] += 1

    def look_up(self, key: str, directory: str) -> None:
        for name in layout.list_entries(directory):
            path = os.path.join(directory, name)
            content = loading.read_unverified(_KIND, path, listed=True)
            if content is None or not loading.accept_or_quarantine(Ref(_KIND, key, self.root), content, path=path):
                self.done["miss"] += 1
            elif seal.strip_unverified(content) in [_payload(key, version) for version in range(_VERSIONS)]:
                self.done["hit"] += 1
            else:
                self.wrong.append(f"{path} gave {seal.strip_unverified(content)[:40]!r}")

    def damage(self, directory: str) -> None:
        """As a disk does: the file that is there, in place."""
        for name in layout.list_entries(directory)[:1]:
            with suppress(FileNotFoundError), open(os.path.join(directory, name), "r+b") as file:
                file.seek(self.chance.randrange(2000))
                file.write(b"\xff" * 8)
                self.done["damaged"] += 1


def _run(number: int, root: str, operations: int, results: str) -> None:
    logging.disable()
    worker = _Worker(number, root)
    try:
        worker.work(operations)
    except Exception:
        worker.wrong.append(traceback.format_exc())
    said = {"done": worker.done, "wrong": worker.wrong, "counters": events.read_counters()}
    Path(results, str(number)).write_text(json.dumps(said))


def _wrong_at_the_end(root: str) -> list[str]:
    left = [f"{path} is left" for path in Path(root).rglob(".*.tmp")]
    for path in Path(root, ".safecache", "quarantine").iterdir():
        if path.suffix != ".json":
            for key in _HOT:
                if trust.examine(path.read_bytes(), _KIND, key, None) is Count.VERIFIED:
                    left.append(f"{path} was moved away, and is good")
    return left


def run(processes: int, operations: int) -> dict:
    """Have them all work at once; what they did, and what went wrong."""
    with tempfile.TemporaryDirectory() as base:
        root, results = os.path.join(base, "cache"), os.path.join(base, "results")
        os.mkdir(results)
        os.environ |= {"XDG_CONFIG_HOME": os.path.join(base, "config")}
        config.reload()
        keyring.renew()
        keyring.current()
        children = []
        for number in range(processes):
            pid = os.fork()
            if pid == 0:
                _run(number, root, operations, results)
                os._exit(0)
            children.append(pid)
        ended = [os.waitpid(pid, 0)[1] for pid in children]
        said = [json.loads(path.read_text()) for path in Path(results).iterdir()]
        total: Counter[str] = Counter()
        for one in said:
            total.update(one["done"])
            total.update({name: count for name, count in one["counters"].items() if name not in ("verified",)})
        wrong = [text for one in said for text in one["wrong"]] + _wrong_at_the_end(root)
        wrong += [f"{ended.count(0)} of {processes} ended well"] if any(ended) or len(said) != processes else []
        return {"total": total, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--operations", type=int, default=1000, help="of each")
    chosen = parser.parse_args()
    start = time.monotonic()
    found = run(chosen.processes, chosen.operations)
    seconds = time.monotonic() - start
    print(f"{chosen.processes} x {chosen.operations} in {seconds:.0f} s: {json.dumps(found['total'], sort_keys=True)}")
    print("\n".join(found["wrong"]) or "0 wrong, 0 foreign, no good entry moved away, no temporary file left")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
