"""File systems that take nothing more, or not much: how each is mounted, broken and mended, and what it says."""

from __future__ import annotations

import contextlib
import subprocess


@contextlib.contextmanager
def mounted(point, options):
    """A directory that is a file system of its own."""
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "tmpfs", str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def fill(point):
    with contextlib.suppress(OSError), (point / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def read_only(point):
    subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True)


def writable(point):
    subprocess.run(["mount", "-o", "remount,rw,nr_inodes=1000", str(point)], check=True)


def with_room(point):
    (point / "filler").unlink()


def nothing(point):
    pass


FAULTS = {
    "no-space": ("size=1m", fill, with_room, "No space left"),
    "space-for-some": ("size=48k", nothing, nothing, "No space left"),
    "no-inodes": ("nr_inodes=2", nothing, writable, "No space left"),
    "inodes-for-some": ("nr_inodes=14", nothing, writable, "No space left"),
    "read-only": ("size=1m", read_only, writable, "Read-only file system"),
}
