"""Caches made up of groups of a given age, laid out as torch, Triton and safecache lay them out."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from safecache.store import manifests

HOUR, DAY = 3600.0, 86400.0
NOW = 1_800_000_000.0  # a moment to count ages from, for what does not run by the clock of this machine


def key(prefix: str, name: str) -> str:
    return prefix + base64.b32encode(hashlib.sha256(name.encode()).digest())[:51].decode().lower()


class Cache:
    """One that can be swept: every group is named, and last used ``age`` seconds before ``now``."""

    def __init__(self, root: Path, now: float = NOW) -> None:
        self.root, self.now = Path(os.path.realpath(root)), now
        self.root.mkdir(exist_ok=True)

    def file(self, path: Path, age: float, content: bytes = b"x" * 1000) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.use(path, age)
        return path

    def use(self, path: Path, age: float) -> None:
        os.utime(path, (self.now - age,) * 2)

    def record(self, name: str, age: float, root: Path | None = None) -> Path:
        hashed = manifests.hash_name(name)
        return self.file((root or self.root) / ".safecache" / "records" / hashed[:2] / hashed, age, b"r" * 100)

    def aot(self, name: str, age: float, graphs: tuple[str, ...] = (), size: int = 1000) -> Path:
        content = b"\0".join([b"", *(key("f", graph).encode() for graph in graphs)]).ljust(size, b"\0")
        return self.file(self.root / "aotautograd" / key("a", name) / "entry", age, content)

    def fx(self, name: str, age: float, size: int = 1000) -> Path:
        own = key("f", name)
        return self.file(self.root / "fxgraph" / own[1:3] / own / "entry", age, b"x" * size)

    def code(self, name: str, age: float, size: int = 1000) -> list[Path]:
        """A source, its library, the library's record and the lock that it was built under."""
        own = key("c", name)
        folder = self.root / own[1:3]
        return [
            self.file(folder / f"{own}.cpp", age, b"x" * 100),
            self.file(folder / f"{own}.so", age, b"x" * size),
            self.record(f"{own[1:3]}/{own}.so", age),
            self.file(self.root / "locks" / f"{own}.lock", age, b""),
        ]

    def kernel(self, name: str, age: float, device: str = "0", size: int = 1000) -> list[Path]:
        root = self.root / "triton" / device
        folder = root / base64.b32encode(hashlib.sha256(name.encode()).digest()).decode().rstrip("=")
        files = [self.file(folder / file, age, b"x" * size) for file in ("__grp__k.json", "k.json", "k.cubin")]
        return files + [self.record(f"{folder.name}/{file.name}", age, root) for file in files]

    def header(self, name: str, age: float) -> list[Path]:
        own = key("c", f"header {name}")
        folder = self.root / "precompiled_headers" / "safecache-0123456789abcdef"
        files = [self.file(folder / f"{own}{ending}", age) for ending in (".h", ".h.gch")]
        lock = self.file(self.root / "precompiled_headers" / "locks" / f"{own}.lock", age, b"")
        return [*files, self.record(files[1].name, age, folder), lock]

    def quarantined(self, name: str, age: float) -> list[Path]:
        path = self.root / ".safecache" / "quarantine" / f"{name}.01234567"
        return [self.file(path, age), self.file(path.with_name(f"{path.name}.json"), age, b"{}")]

    def crash(self, name: str, age: float) -> list[Path]:
        """A report of a crash of Triton's compiler."""
        folder = self.root / "triton" / "0" / ".safecache" / "crashes" / hashlib.sha256(name.encode()).hexdigest()[:16]
        return [self.file(folder / file, age) for file in ("report.json", "stderr.txt", "reproduce.py")]

    def difference(self, name: str, age: float) -> list[Path]:
        """The evidence of an entry that recompiles differently."""
        folder = self.root / ".safecache" / "differences" / f"aot-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        names = ("in_the_cache.entry", "compiled_now.entry", "difference.txt", "report.json")
        return [self.file(folder / file, age) for file in names]

    def journal(self, name: str, age: float) -> Path:
        """That of a process's lookups."""
        return self.file(self.root / ".safecache" / "journal" / f"20270101T000000-1-{name}.jsonl", age)

    def known_bad(self, name: str, age: float) -> Path:
        """The note of one."""
        folder = self.root / "triton" / "0" / ".safecache" / "known_bad"
        return self.file(folder / hashlib.sha256(name.encode()).hexdigest(), age)

    def key_record(self, name: str, age: float) -> Path:
        """What a key was made of that was saved under ``name``."""
        folder = self.root / ".safecache" / "keys" / "fx" / hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.file(folder / f"{key('f', name)}.json.gz", age)

    def files(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_symlink() or not path.is_dir())

    def size(self) -> int:
        return sum(path.lstat().st_size for path in self.files())

    def use_at_rename(self, monkeypatch, used: Path) -> None:
        """Have ``used`` be stamped, where it lies then, just as the first thing is moved away."""
        done = []

        def move(source, rename):
            if not done:
                done.append(source)
                self.use(used, 0)
            rename()

        at_each_rename(monkeypatch, move)


def at_each_rename(monkeypatch, move) -> None:
    """Have ``move`` be called in place of each renaming, with the path of what is moved, and to do it."""
    from safecache.fs import filesystem

    stock = filesystem.rename

    def rename(name, new, *, src_dir_fd=None, dst_dir_fd=None):
        above = "" if src_dir_fd is None else os.readlink(f"/proc/self/fd/{src_dir_fd}")
        move(os.path.join(above, name), lambda: stock(name, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd))

    monkeypatch.setattr(filesystem, "rename", rename)
