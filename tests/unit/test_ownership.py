"""Private is what nobody but this user and root could have written or replaced, and an objection names the place."""

from __future__ import annotations

import os

import pytest
from conftest import needs_root

from safecache import layout, ownership, trust
from safecache.ownership import why_not_private
from safecache.reasons import Reason
from safecache.seal import Kind

STRANGER = 54321


@pytest.fixture
def entry(tmp_path):
    path = tmp_path / "cache" / "key" / "entry"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"entry")
    return path


def test_private_path_below_sticky_tmp_has_no_objection(entry):
    assert why_not_private(str(entry)) is None
    assert why_not_private(str(entry.parent)) is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o720, 0o702], ids="{:04o}".format)
@pytest.mark.parametrize("level", [0, 1], ids=["parent", "grandparent"])
def test_directory_that_others_can_write_is_named(entry, level, mode):
    entry.parents[level].chmod(mode)
    assert why_not_private(str(entry)) == f"{entry.parents[level]} has mode {mode:04o}"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666], ids="{:04o}".format)
def test_file_that_others_can_write_is_named(entry, mode):
    entry.chmod(mode)
    assert why_not_private(str(entry)) == f"{entry} has mode {mode:04o}"


@pytest.mark.parametrize("mode", [0o1777, 0o1775], ids="{:04o}".format)
@pytest.mark.parametrize("level", [0, 1], ids=["parent", "grandparent"])
def test_sticky_directory_on_the_way_is_no_objection(entry, level, mode):
    entry.parents[level].chmod(mode)
    assert why_not_private(str(entry)) is None


def test_sticky_directory_itself_is_not_private(entry):
    """Others could add entries to it, though not replace ours."""
    entry.parent.chmod(0o1777)
    assert why_not_private(str(entry.parent)) == f"{entry.parent} has mode 1777"


def test_sticky_bit_of_a_file_excuses_nothing(entry):
    entry.chmod(0o1666)
    assert why_not_private(str(entry)) == f"{entry} has mode 1666"


def test_readable_by_all_is_no_objection(entry):
    for path in (entry, *entry.parents[:2]):
        path.chmod(0o755)
    assert why_not_private(str(entry)) is None


@needs_root
@pytest.mark.parametrize("level", [-1, 0, 1], ids=["file", "parent", "grandparent"])
def test_anything_of_another_user_is_named(entry, level):
    path = entry if level < 0 else entry.parents[level]
    os.chown(path, STRANGER, -1)
    assert why_not_private(str(entry)) == f"{path} belongs to uid {STRANGER}"


@needs_root
def test_directory_of_another_user_in_a_sticky_one_is_named(entry):
    entry.parents[1].chmod(0o1777)
    os.chown(entry.parent, STRANGER, -1)
    assert why_not_private(str(entry)) == f"{entry.parent} belongs to uid {STRANGER}"


@needs_root
def test_what_belongs_to_root_or_this_user_is_private_to_any_user(entry, monkeypatch):
    os.chown(entry, STRANGER, -1)
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert why_not_private(str(entry)) is None
    assert ownership.foreign_owner(entry.stat()) is False


def test_directory_behind_a_link_is_what_counts(entry, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(entry.parent)
    assert why_not_private(str(link / "entry")) is None
    entry.parent.chmod(0o777)
    assert why_not_private(str(link / "entry")) == f"{entry.parent} has mode 0777"


def test_link_that_others_could_replace_is_an_objection(entry, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to(entry.parent)
    assert why_not_private(str(shared / "link" / "entry")) is not None


def test_entry_that_is_cleared_while_it_is_judged_is_refused(settings, tmp_path):
    settings(SAFECACHE_TRUST="private")
    gone = tmp_path / layout.entry_name(b"content")
    refusal = trust.judge(b"content", Kind.FX_ENTRY, "key", str(gone))
    assert refusal is not None and refusal.reason in Reason
