"""What lies in a directory, for tests that alter it, or put something else in its place."""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping


class Files(MutableMapping):
    """What lies below a directory, by its path there."""

    def __init__(self, root):
        self.root = root

    def __getitem__(self, name):
        return (self.root / name).read_bytes()

    def __setitem__(self, name, content):
        (self.root / name).write_bytes(content)

    def __delitem__(self, name):
        (self.root / name).unlink()

    def __iter__(self):
        return iter(sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()))

    def __len__(self):
        return sum(1 for _ in self)


@contextlib.contextmanager
def away(path):
    """Nothing is there."""
    path.rename(path.with_name("away"))
    yield
    path.with_name("away").rename(path)


@contextlib.contextmanager
def instead(path, make):
    """Something else is in its place."""
    with away(path):
        make(path)
        yield
        path.rmdir() if path.is_dir() else path.unlink()
