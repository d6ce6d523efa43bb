"""Private is what nobody but this user and root could have written or replaced, and an objection names the place."""

from __future__ import annotations

import grp
import os
import pwd
from types import SimpleNamespace

import pytest
from conftest import needs_root

from safecache.fs import ownership
from safecache.fs.ownership import find_exposure
from safecache.places import layout
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import trust

STRANGER = 54321


@pytest.fixture
def entry(tmp_path):
    path = tmp_path / "cache" / "key" / "entry"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"entry")
    return path


def test_private_path_below_sticky_tmp_has_no_objection(entry):
    assert find_exposure(str(entry)) is None
    assert find_exposure(str(entry.parent)) is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o720, 0o702], ids="{:04o}".format)
@pytest.mark.parametrize("level", [0, 1], ids=["parent", "grandparent"])
def test_directory_that_others_can_write_is_named(entry, level, mode):
    entry.parents[level].chmod(mode)
    assert find_exposure(str(entry)) == f"{entry.parents[level]} has mode {mode:04o}"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666], ids="{:04o}".format)
def test_file_that_others_can_write_is_named(entry, mode):
    entry.chmod(mode)
    assert find_exposure(str(entry)) == f"{entry} has mode {mode:04o}"


@pytest.mark.parametrize("mode", [0o1777, 0o1775], ids="{:04o}".format)
@pytest.mark.parametrize("level", [0, 1], ids=["parent", "grandparent"])
def test_sticky_directory_on_the_way_is_no_objection(entry, level, mode):
    entry.parents[level].chmod(mode)
    assert find_exposure(str(entry)) is None


def test_sticky_directory_itself_is_not_private(entry):
    """Others could add entries to it, though not replace ours."""
    entry.parent.chmod(0o1777)
    assert find_exposure(str(entry.parent)) == f"{entry.parent} has mode 1777"


def test_sticky_bit_of_a_file_excuses_nothing(entry):
    entry.chmod(0o1666)
    assert find_exposure(str(entry)) == f"{entry} has mode 1666"


def test_readable_by_all_is_no_objection(entry):
    for path in (entry, *entry.parents[:2]):
        path.chmod(0o755)
    assert find_exposure(str(entry)) is None


@needs_root
@pytest.mark.parametrize("level", [-1, 0, 1], ids=["file", "parent", "grandparent"])
def test_anything_of_another_user_is_named(entry, level):
    path = entry if level < 0 else entry.parents[level]
    os.chown(path, STRANGER, -1)
    assert find_exposure(str(entry)) == f"{path} belongs to uid {STRANGER}"


@needs_root
def test_directory_of_another_user_in_a_sticky_one_is_named(entry):
    entry.parents[1].chmod(0o1777)
    os.chown(entry.parent, STRANGER, -1)
    assert find_exposure(str(entry)) == f"{entry.parent} belongs to uid {STRANGER}"


@needs_root
def test_what_belongs_to_root_or_this_user_is_private_to_any_user(entry, monkeypatch):
    os.chown(entry, STRANGER, -1)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert find_exposure(str(entry)) is None
    assert ownership.is_foreign(entry.stat()) is False


def test_directory_behind_a_link_is_what_counts(entry, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(entry.parent)
    assert find_exposure(str(link / "entry")) is None
    entry.parent.chmod(0o777)
    assert find_exposure(str(link / "entry")) == f"{entry.parent} has mode 0777"


def test_link_that_others_could_replace_is_an_objection(entry, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(entry.parent)
    assert find_exposure(str(shared / "link" / "entry")) is not None


@needs_root
def test_link_of_somebody_else_is_named(entry, tmp_path):
    """In a sticky directory too, where he alone can point it elsewhere."""
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    link = sticky / "link"
    link.symlink_to(entry.parent)
    assert find_exposure(str(link / "entry")) is None
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    assert find_exposure(str(link / "entry")) == f"{link} belongs to uid {STRANGER}"


@needs_root
def test_directory_of_somebody_else_behind_a_link_of_ours_is_named(entry, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(entry.parents[1])
    os.chown(entry.parent, STRANGER, -1)
    assert find_exposure(str(link / "key" / "entry")) == f"{entry.parent} belongs to uid {STRANGER}"


def test_relative_link_and_one_to_a_link_are_followed_as_the_kernel_does(entry, tmp_path):
    (tmp_path / "first").symlink_to("cache/../second")
    (tmp_path / "second").symlink_to(entry.parent)
    assert find_exposure(str(tmp_path / "first" / "entry")) is None
    entry.parents[1].chmod(0o777)
    assert find_exposure(str(tmp_path / "first" / "entry")) == f"{entry.parents[1]} has mode 0777"


def test_way_through_a_link_to_itself_ends(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in find_exposure(str(tmp_path / "loop" / "entry"))


@pytest.mark.parametrize("how", ["in-the-path", "in-a-link"])
def test_directory_that_dots_lead_out_of_counts(entry, tmp_path, how):
    """Whoever may replace it decides where they lead."""
    passed = tmp_path / "passed"
    passed.mkdir()
    passed.chmod(0o777)
    path = f"{passed}/../cache/key"
    if how == "in-a-link":
        (tmp_path / "link").symlink_to(path)
        path = f"{tmp_path}/link"
    assert find_exposure(f"{path}/entry") == f"{passed} has mode 0777"


def test_dots_after_a_link_lead_to_above_its_target(entry, tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("elsewhere/deep")
    (tmp_path / "elsewhere" / "entry").write_bytes(b"entry")
    (tmp_path / "elsewhere" / "entry").chmod(0o666)
    (tmp_path / "entry").write_bytes(b"private")
    assert find_exposure(f"{tmp_path}/link/../entry") == f"{tmp_path}/elsewhere/entry has mode 0666"


def test_sticky_directory_that_dots_lead_to_is_not_private(entry):
    entry.parent.chmod(0o1777)
    (entry.parent / "below").mkdir()
    assert find_exposure(f"{entry.parent}/below/..") == f"{entry.parent} has mode 1777"


def test_relative_path_is_judged_from_where_we_are(entry, monkeypatch):
    monkeypatch.chdir(entry.parents[1])
    assert find_exposure("key/entry") is None
    entry.parent.chmod(0o777)
    assert find_exposure("key/entry") == f"{entry.parent} has mode 0777"


@needs_root
def test_hard_link_in_a_directory_of_somebody_else_is_not_private(entry, tmp_path):
    """He may put there what is ours, and lead it to another key; where we put it, it stays private."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.link(entry, theirs / "entry")
    os.chown(theirs, STRANGER, -1)
    assert find_exposure(str(theirs / "entry")) == f"{theirs} belongs to uid {STRANGER}"
    assert find_exposure(str(entry)) is None


@needs_root
def test_hard_link_of_ours_to_a_file_of_somebody_else_is_named(entry, tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    os.chown(theirs, STRANGER, -1)
    entry.unlink()
    os.link(theirs, entry)
    assert find_exposure(str(entry)) == f"{entry} belongs to uid {STRANGER}"


class TestGroupOfOneUser:
    """Named after him, as useradd(8) makes it: its right to write is nobody else's."""

    @pytest.fixture(autouse=True)
    def forget(self):
        ownership.find_own_group.cache_clear()
        yield
        ownership.find_own_group.cache_clear()

    def be(self, monkeypatch, *, user=STRANGER, name="user", group="user", members=()):
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(os, "getegid", lambda: 4242)
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=name))
        monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_gid=gid, gr_name=group, gr_mem=[*members]))

    @pytest.mark.parametrize("members", [(), ("user",)], ids=["no-members", "himself"])
    def test_is_his_own(self, monkeypatch, members):
        self.be(monkeypatch, members=members)
        assert ownership.find_own_group() == 4242

    @pytest.mark.parametrize(
        "other",
        [{"group": "staff"}, {"members": ("user", "colleague")}, {"user": 0, "name": "root", "group": "root"}],
        ids=["another-name", "another-member", "root"],
    )
    def test_is_not_where_others_may_be_in_it(self, monkeypatch, other):
        self.be(monkeypatch, **other)
        assert ownership.find_own_group() is None

    def test_user_without_a_name_has_none(self, monkeypatch):
        def unknown(uid):
            raise KeyError(uid)

        self.be(monkeypatch)
        monkeypatch.setattr(pwd, "getpwuid", unknown)
        assert ownership.find_own_group() is None

    @needs_root
    def test_its_right_to_write_is_no_objection_where_it_is_named(self, entry):
        os.chown(entry.parent, -1, 4242)
        entry.parent.chmod(0o775)
        assert find_exposure(str(entry), group=4242) is None
        assert find_exposure(str(entry), group=4243) == f"{entry.parent} has mode 0775"
        assert find_exposure(str(entry)) == f"{entry.parent} has mode 0775"
        entry.parent.chmod(0o777)
        assert find_exposure(str(entry), group=4242) == f"{entry.parent} has mode 0777"


def test_entry_that_is_cleared_while_it_is_judged_is_refused(settings, tmp_path):
    settings(SAFECACHE_TRUST="private")
    gone = tmp_path / layout.name_entry(b"content")
    refusal = trust.judge(b"content", Kind.FX_ENTRY, "key", str(gone))
    assert refusal is not None and refusal.reason in Reason


def test_directory_that_is_gone_from_below_the_process_does_not_matter_to_absolute_paths(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert ownership.find_exposure(str(tmp_path)) is None
    assert ownership.find_exposure("relative") is not None
