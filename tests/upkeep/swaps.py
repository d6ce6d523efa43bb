"""Somebody who can write to a cache exchanges what is in it: what is exchanged, for what, and what a victim does meanwhile.

By itself: another user does so, without end, ``python tests/upkeep/swaps.py --seconds 3600``, as root. Exit code 1 if
anything elsewhere was read, changed, moved or removed, if something hangs, or prints a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pickle
import random
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from crashes.test_crash_reports import facts  # noqa: E402
from helpers.caches import DAY, HOUR, Cache, key  # noqa: E402

from safecache.cli.main import main as command_line  # noqa: E402
from safecache.explain import key_records  # noqa: E402
from safecache.explain.key_records import KeyRecord  # noqa: E402
from safecache.fs import opening, temporaries  # noqa: E402
from safecache.isolation import crashes  # noqa: E402
from safecache.places import layout  # noqa: E402
from safecache.reporting.kinds import Kind, Reason  # noqa: E402
from safecache.settings import config  # noqa: E402
from safecache.store import entry_files  # noqa: E402
from safecache.upkeep import audit, eviction  # noqa: E402
from safecache.upkeep.eviction import Limits  # noqa: E402


def prepare(template: Path, mirror: Path) -> None:
    """A cache, and a copy of it, of which each file tells of its being read."""
    fill(template)
    audit.adopt(str(template))
    shutil.copytree(template, mirror, symlinks=True)
    for path in mirror.rglob("*"):
        if path.is_file():
            os.utime(path, (0, path.stat().st_mtime))


def fill(root: Path) -> None:
    """Something of everything that a cache holds, new and old."""
    cache = Cache(root, time.time())
    for age in (HOUR, 30 * DAY):
        for make in (cache.aot, cache.fx, cache.code, cache.kernel, cache.header, cache.quarantined, cache.crash):
            make(f"{age}", age)
        cache.key_record(f"{age}", age)
        cache.known_bad(f"{age}", age)
        cache.journal(f"{age}", age)
    for number in range(2):  # one is adopted and then signed anew, the other is damaged
        content = pickle.dumps(number)
        cache.file(root / "aotautograd" / key("a", f"good {number}") / layout.name_entry(content), HOUR, content)
    (root / ".safecache" / "trash" / "0123456789abcdef").mkdir(parents=True)
    (root / "fxgraph" / ".1.2.tmp").touch()
    os.utime(root / "fxgraph" / ".1.2.tmp", (0, 0))


def command(*words):
    """Its exit code; what it prints has no traceback."""

    def run(root):
        place = ["--in", root] if words[0] == "quarantine" else [root]
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = command_line([words[0], *map(str, place), *words[1:]])
            except SystemExit as end:
                code = end.code
        assert code in (0, 1) and "Traceback" not in said.getvalue(), said.getvalue()

    return run


def task(work):
    """What a process does beside its compiles. It may fail, as with any cache that cannot be used."""

    def run(root):
        with contextlib.suppress(OSError, opening.UnusableEntry):
            work(str(root))

    return run


def publish(root):
    for path in ("aotautograd/akey/entry", "triton/0/KEY/k.cubin", ".safecache/records/ab/record"):
        temporaries._reaped.reset()
        entry_files.publish(os.path.join(root, path), b"content", root)


def look_up(root):
    for location in layout.walk(root):
        with contextlib.suppress(OSError, opening.UnusableEntry):
            entry_files.read_unverified_entry(location.path)


def set_aside(root):
    for location in layout.walk(root):
        entry_files.quarantine(location.path, root, Reason.DAMAGED)


def remember(root):
    key_records.remember(KeyRecord(Kind.AOT_ENTRY, key("a", "x"), "model.f", 0.0, ()), root)


COMMANDS = {
    "gc": command("gc", "--max-age", "1d"),
    "clean": command("clean", "--force"),
    "adopt": command("adopt"),
    "sign": command("sign"),
    "verify": command("verify"),
    "ls": command("ls"),
    "du": command("du"),
    "quarantine list": command("quarantine", "list"),
}
TASKS = {
    "publish": task(publish),
    "look up": task(look_up),
    "set aside": task(set_aside),
    "sweep": task(lambda root: eviction.sweep(root, Limits(age=DAY), now=time.time())),
    "crash report": task(lambda root: crashes.write_report(*facts(root, "ab" * 32))),
    "note of a crash": task(partial(crashes.forget, hash="ab" * 32)),
    "record of a key": task(remember),
}
ACTIONS = COMMANDS | TASKS
PLACES = [
    *("aotautograd", "fxgraph", "triton", "triton/0", "locks", "precompiled_headers"),
    *(".safecache", ".safecache/quarantine", ".safecache/records", ".safecache/keys", ".safecache/trash"),
    *("aotautograd/*", "aotautograd/*/*", "triton/0/*", "triton/0/*/*", ".safecache/quarantine/*", "??", "??/*"),
]


def state(directory):
    """Of each file what it holds, and when it was changed, moved and read; of each directory what is in it."""
    return {
        path: (status.st_ino, status.st_mtime_ns, path.is_file() and (status.st_ctime_ns, status.st_atime_ns))
        for path in directory.rglob("*")
        for status in [path.lstat()]
    }


HOW = {
    "link": lambda path, mirror: path.symlink_to(mirror),
    "FIFO": lambda path, mirror: os.mkfifo(path),
    "device": lambda path, mirror: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5)),  # /dev/zero
    "directory": lambda path, mirror: path.mkdir(),
}


def exchange(path, mirror, how):
    """What is at ``path`` for a link, or what ``how`` says; nothing if it is gone by now, or may not be made."""
    with contextlib.suppress(OSError):
        path.rename(path.with_name(f"{path.name}.before"))
    with contextlib.suppress(OSError):
        HOW[how](path, mirror)


NOBODY = 65534
_ROUND = 3.0  # seconds


def attack(root: Path, mirror: Path) -> None:
    """Until it is killed."""
    while True:
        with contextlib.suppress(OSError, IndexError):
            path = random.choice(list(root.glob(random.choice(PLACES))))
            exchange(path, mirror / path.relative_to(root), random.choice(list(HOW)))
            time.sleep(random.random() * 0.005)
            if random.random() < 0.7:
                path.unlink()
                path.with_name(f"{path.name}.before").rename(path)


def one_round(root: Path, mirror: Path) -> Counter[str]:
    """What the victim has done while another user did that."""
    attacker = os.fork()
    if attacker == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        attack(root, mirror)
    done: Counter[str] = Counter()
    end = time.monotonic() + _ROUND
    try:
        while time.monotonic() < end:
            action = random.choice(list(ACTIONS))
            signal.alarm(60)  # whoever waits for a FIFO is killed
            ACTIONS[action](root)
            signal.alarm(0)
            done[action] += 1
    finally:
        os.kill(attacker, signal.SIGKILL)
        _, status = os.waitpid(attacker, 0)
    assert os.WIFSIGNALED(status), "it ended by itself"
    done["exchanged"] = sum(path.is_symlink() or path.is_fifo() for path in root.rglob("*"))
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    chosen = parser.parse_args()
    done: Counter[str] = Counter()
    end = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o755)
        os.environ["XDG_CONFIG_HOME"] = os.path.join(base, "config")
        config.reload()
        template, mirror = Path(base, "template"), Path(base, "mirror")
        prepare(template, mirror)
        # From now on one that is open to all.
        os.umask(0)
        for path in (template, *filter(Path.is_dir, template.rglob("*"))):
            path.chmod(0o777)
        before, rounds = state(mirror), 0
        while time.monotonic() < end:
            # Copied where nobody is at work yet.
            root = Path(base, f"cache {rounds}")
            shutil.copytree(template, root)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root)
            done += one_round(root, mirror)
            rounds += 1
            after = state(mirror)
            if after != before:
                changed = [str(path) for path in {*before, *after} if after.get(path) != before.get(path)]
                print(f"round {rounds}: {changed}")
                return 1
            shutil.rmtree(root)
    assert done["exchanged"], "nobody has done anything"
    print(f"{rounds} rounds, {dict(done)}: nothing elsewhere was read, changed, moved or removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
