"""Another user who may write to a cache, TMPDIR and a directory as a remote: random harm to whatever lies there.

Runs as a process of its own: what it locks stays locked until it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

UID = 65534
NAMES = (
    *(f"cache/.safecache/leases/fx-{'0' * 32}", "cache/.safecache/gc.stamp", f"cache/.safecache/known_bad/{'a' * 64}"),
    *("cache/.safecache/trials/run-1-0123456789ab", f"cache/.safecache/trials/key-{'0' * 32}.4"),
    *(f"cache/.safecache/records/ab/{'ab' * 32}", "cache/.safecache/quarantine/a", "cache/.safecache/trash/a"),
    *("cache/.safecache/keys/fx/a/b.json.gz", "cache/.safecache/journal/20270101T000000-1-aa.jsonl"),
    *("cache/.safecache/differences/fx-0/record", "cache/.safecache/crashes/a/report.json"),
    *("tmp/safecache-live-0123456789abcdef", "tmp/safecache-0", "remote/safecache/leases/a", "cache/locks/a.lock"),
    *(f"remote/safecache/2/default/fx_graph/{'f' * 52}@0123456789ab", "packs/pack.safecache", "lower/fxgraph/ab/fab/x"),
)
TEXTS = (
    *(b"", b"x", b"\xff" * 300, b"ended", b"held", b'{"names": ["\\ud800"]}', b"[" * 50_000, b"\0" * 5000),
    *(b"PK\x05\x06" + bytes(18), b"\x28\xb5\x2f\xfd\xa0" + b"\xff" * 100, b"1\nx\n1e999", b"\x93SAFECA\n" * 9),
)


def attack(base: str, seed: int, rounds: int) -> None:
    """Do so many things, as UID, below ``base``; then hold what was locked until this is killed."""
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    os.umask(0)
    chance, held = random.Random(seed), []
    for _ in range(rounds):
        path = _place(Path(base), chance)
        try:
            chance.choice(HARMS)(path, Path(base), chance, held)
        except Exception:  # what cannot be done is not
            continue
    print("done", flush=True)
    while True:
        time.sleep(60)


def _place(base: Path, chance: random.Random) -> Path:
    there = [each for top in ("cache", "tmp", "remote", "lower", "packs") for each in (base / top).rglob("*")]
    if there and chance.random() < 0.7:
        return chance.choice(there)
    return base / chance.choice(NAMES)


def _content(path: Path) -> bytes:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > 1 << 20:
        raise OSError("it would be waited for, or read for long")
    return path.read_bytes()


def _aside(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.rename(path.with_name(f"{path.name}.{os.urandom(3).hex()}"))


def _write(path, base, chance, held):
    _aside(path)
    path.write_bytes(chance.choice(TEXTS))


def _flip(path, base, chance, held):
    content = bytearray(_content(path))
    content[chance.randrange(len(content) or 1)] ^= 1 << chance.randrange(8)
    _aside(path)
    path.write_bytes(content)


def _cut(path, base, chance, held):
    content = _content(path)
    _aside(path)
    path.write_bytes(content[: chance.randrange(len(content) + 1)])


def _exchange(path, base, chance, held):
    other = _place(base, chance)
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def _copy(path, base, chance, held):
    other = _place(base, chance)
    content = _content(other)
    _aside(path)
    path.write_bytes(content)


def _link(path, base, chance, held):
    _aside(path)
    targets = ["home", "home/id_ed25519", "home/.config/autostart", "cache", "nowhere"]
    path.symlink_to(
        base / chance.choice(targets) if chance.random() < 0.8 else chance.choice(["/dev/zero", "/etc", "."])
    )


def _hard_link(path, base, chance, held):
    _aside(path)
    os.link(base / "home" / "id_ed25519", path)


def _special(path, base, chance, held):
    _aside(path)
    kind = chance.choice(["fifo", "socket", "directory", "giant", "unreadable"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        held.append(listener)
    elif kind == "directory":
        (path / "deep" * 3).mkdir(parents=True)
    elif kind == "giant":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.write_bytes(b"x")
        path.chmod(0)


def _lock(path, base, chance, held):
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    held.append(file)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _age(path, base, chance, held):
    os.utime(path, (chance.choice([0, 4_102_444_800]),) * 2, follow_symlinks=False)


def _rename_home(path, base, chance, held):
    """A directory of the victim's own gets the name of one that may be removed."""
    (base / "tmp" / "own").rename(base / "tmp" / f"safecache-live-{os.urandom(8).hex()}")


def _remove(path, base, chance, held):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _marker(path, base, chance, held):
    names = [f"fxgraph/ab/f{'a' * 51}/x", "\ud800"] * chance.choice([1, 2000])
    place = base / "cache/.safecache/trials" / f"run-{chance.randrange(1000)}-{os.urandom(6).hex()}"
    place.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"pid": 1, "began": 0, "around": {}}).encode().ljust(4096)
    place.write_bytes(header + json.dumps(names).encode() + b"\n")
    _lock(place, base, chance, held)


HARMS: list[Callable] = [
    *(_write, _flip, _cut, _exchange, _copy, _link, _hard_link, _special, _lock, _age, _rename_home, _remove, _marker)
]

if __name__ == "__main__":
    import sys

    attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
