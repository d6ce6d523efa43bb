"""A directory as a store, to which others may write: nothing outside it is read, written or removed."""

from __future__ import annotations

import os

import pytest

from safecache.remote import directory_store, stores
from safecache.remote.stores import Oversized, Terms
from safecache.upkeep import copies

NAME = f"safecache/2/default/fx_graph/{'f' * 20}@0123456789ab"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def store(root):
    return stores.make_store(f"file://{root}", Terms(1.0, 1.0, 1000))


def outside(tmp_path):
    """A directory of the user's own, with a file in it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "id_ed25519").write_text("mine")
    os.utime(home / "id_ed25519", (0, 0))
    return home


def test_contents_are_kept_and_listed(store, root):
    assert isinstance(store, directory_store.DirectoryStore)
    assert store.read_unverified([NAME]) == {} == store.find_sizes([NAME])
    store.write(NAME, b"content")
    assert store.read_unverified([NAME]) == {NAME: b"content"} and store.find_sizes([NAME]) == {NAME: 7}
    assert store.read_unverified_starts([NAME], 3) == {NAME: b"con"}
    (listed,) = store.list_names("safecache/2/default/")
    assert (listed.name, listed.size) == (NAME, 7) and listed.modified == (root / NAME).stat().st_mtime
    store.write(NAME, bytes(1001))
    assert store.read_unverified([NAME]) == {NAME: Oversized(1001)}
    store.remove(NAME)
    store.remove(NAME)
    assert store.read_unverified([NAME]) == {} and not list(store.list_names(""))


def test_content_is_replaced_if_it_is_the_one_that_is_known(store):
    assert store.replace(NAME, b"one", None) and not store.replace(NAME, b"two", None)
    assert not store.replace(NAME, b"two", b"another") and store.read_unverified([NAME]) == {NAME: b"one"}
    assert store.replace(NAME, b"two", b"one") and store.read_unverified([NAME]) == {NAME: b"two"}
    assert [each.name for each in store.list_names("")] == [NAME], "no draft is left"


@pytest.mark.parametrize("at", ["safecache", "safecache/2/default", "safecache/2/default/fx_graph"])
def test_link_below_the_store_is_not_followed(store, root, tmp_path, at):
    home = outside(tmp_path)
    place = root / at
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(home)
    name = f"{at}/id_ed25519"
    assert store.read_unverified([name]) == {} == store.find_sizes([name]) == store.read_unverified_starts([name], 4)
    assert not list(store.list_names("")) and not list(store.list_names(at + "/"))
    for change in (store.write, lambda name, content: store.replace(name, content, None)):
        with pytest.raises(OSError):
            change(f"{at}/autostart", b"evil")
    with pytest.raises(OSError):
        store.remove(name)
    assert [path.name for path in home.iterdir()] == ["id_ed25519"] and (home / "id_ed25519").read_text() == "mine"


@pytest.mark.parametrize("make", ["link", "FIFO", "directory", "socket"])
def test_what_is_no_file_is_lacking(store, root, tmp_path, make):
    home = outside(tmp_path)
    path = root / NAME
    path.parent.mkdir(parents=True)
    if make == "link":
        path.symlink_to(home / "id_ed25519")
    elif make == "FIFO":
        os.mkfifo(path)
    elif make == "directory":
        path.mkdir()
    else:
        os.mknod(path, 0o140666)
    assert store.read_unverified([NAME]) == {} == store.find_sizes([NAME])
    assert not list(store.list_names(""))
    assert not store.replace(NAME, b"new", None) and not store.replace(NAME, b"new", b"mine")
    assert (home / "id_ed25519").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "a//b", "a/./b", "a/../../b", ".hidden", "a/.b", "", "a/\0"]
)
def test_name_that_leads_elsewhere_is_none(store, name):
    for ask in (lambda: store.read_unverified([name]), lambda: store.write(name, b""), lambda: store.remove(name)):
        with pytest.raises(ValueError):
            ask()


@pytest.mark.parametrize("url", ["file://host/path", "file://", "file:relative"])
def test_url_of_another_host_is_refused(url):
    with pytest.raises(ValueError):
        stores.make_store(url, Terms(1.0, 1.0, 1000)).write("a", b"")


OURS = [f"fx_graph/{'f' * 20}@0123456789ab", f"kernel/~{'0' * 64}@0123456789ab", "native_code/ab/cd.so@b"]
OTHERS = [
    "notes",
    "fx_graph/a",
    "fx_graph/@b",
    "other/a@b",
    "fx_graph/a@b/c",
    "fx_graph/a b@c",
    "fx_graph/~0@b",
    "doctor/0123abcd",
]


def test_only_names_of_ours_are_removed(store, root):
    held = []
    for name in (*OURS, *OTHERS):
        path = root / "safecache/2/default" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    remote = _Remote(store)
    held = copies.list_remote(remote)
    assert len(held) == len(OURS) + len(OTHERS)
    going = copies.choose_oldest(held, 1e9, 0, 1)
    assert sorted(each.stored.name for each in going) == sorted(f"safecache/2/default/{name}" for name in OURS)


class _Remote:
    def __init__(self, store) -> None:
        self.list_names = store.list_names
