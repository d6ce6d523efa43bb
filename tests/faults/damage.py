"""Ways to damage an entry, or to plant one: each takes the path of a good entry."""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import shutil
from pathlib import Path

from safecache.places.layout import name_entry


class Marker:
    """Unpickled, it creates a file: the harmless stand-in for planted code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def truncate_to_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def truncate_by_one(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(1000))


def zero_page(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(4096) + content[8192:])


def zero_tail(path: Path) -> None:
    """The size was written before the power failed, and the data was not."""
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def swollen(path: Path) -> None:
    """A hole of a terabyte behind what was there, which costs nobody a byte."""
    os.truncate(path, 1 << 40)


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def flip_in_payload(path: Path) -> None:
    _flip(path, path.stat().st_size // 3)


def flip_in_tag(path: Path) -> None:
    _flip(path, -70)


def flip_in_footer(path: Path) -> None:
    _flip(path, -15)


def flip_in_magic(path: Path) -> None:
    _flip(path, -1)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/entry")


def link_to_itself_elsewhere(path: Path) -> None:
    moved = _root(path).parent / path.name
    path.rename(moved)
    path.symlink_to(moved)


def foreign_owner(path: Path) -> None:
    os.chown(path, 12345, 12345)


def removed(path: Path) -> None:
    path.unlink()


def key_directory_is_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("not a directory")


def other_type(path: Path) -> None:
    path.write_bytes(pickle.dumps({"guards_expr": None}))


def unknown_class(path: Path) -> None:
    path.write_bytes(b"cno_such_module\nNoSuchClass\n.")


def entry_of_another_kind(path: Path) -> None:
    kind = "fxgraph/*/*/*" if "aotautograd" in str(path) else "aotautograd/*/*"
    other = next(p for p in _root(path).glob(kind) if not p.name.startswith("."))
    path.write_bytes(other.read_bytes())


def moved_to_another_key(path: Path) -> None:
    """The entry of this key, at a key made up: the good entry is where it was, and misses where it is asked for."""
    content = bytearray(path.read_bytes())
    key = path.parent.name.encode()
    assert content.count(key), "the key is in the seal"
    other = key[:-1] + (b"2" if key[-1:] != b"2" else b"3")
    path.write_bytes(bytes(content).replace(key, other))


def _root(path: Path) -> Path:
    return next(parent for parent in path.parents if (parent / "aotautograd").is_dir())


DAMAGE = [
    truncate_to_half,
    truncate_by_one,
    empty,
    garbage,
    zero_page,
    zero_tail,
    zeros,
    swollen,
    flip_in_payload,
    flip_in_tag,
    flip_in_footer,
    flip_in_magic,
    directory,
    fifo,
    dangling_link,
    link_to_itself_elsewhere,
    removed,
    key_directory_is_a_file,
    other_type,
    unknown_class,
    entry_of_another_kind,
    moved_to_another_key,
]

# What is left of a file that was cut short, or that a power failure caught.
CUT = [truncate_to_half, empty, zero_tail]

# What stays where it is, since it is no file, is not read to tell whose it is, or is not ours to move, and is passed over on every start.
STAYS = {swollen, directory, fifo, dangling_link, link_to_itself_elsewhere}


def plant(path: Path, marker: Path, *, as_torch_would: bool = False) -> Path:
    """A hostile pickle beside ``path`` that is read before it; if asked, under the hash of its content."""
    if not as_torch_would:
        planted = path.parent / "0"
        planted.write_bytes(pickle.dumps(Marker(marker)))
        return planted
    # Padding until the hash sorts first: the search ends at a hit.
    for padding in range(100_000):
        content = pickle.dumps(Marker(marker)) + b"%d" % padding
        if name_entry(content) < path.name:
            planted = path.parent / name_entry(content)
            planted.write_bytes(content)
            return planted
    raise AssertionError(f"nothing sorts before {path.name}")


def remote_value(content: bytes) -> dict:
    """What torch stores in Redis for an entry."""
    return {"data": base64.b64encode(content).decode(), "time_taken_ms": 1}


def artifact(name: str, key: str, content: bytes) -> tuple[str, str, str]:
    """What the scenes ``populate…`` take for an artifact in a mega-cache."""
    return name, key, base64.b64encode(content).decode()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
