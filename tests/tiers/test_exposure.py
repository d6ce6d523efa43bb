"""A cache directory that others can write to is named once, with the remedy; in strict mode it is an error each time."""

from __future__ import annotations

import os
import subprocess

import pytest
from conftest import needs_root

from safecache import session
from safecache.built_code import sources
from safecache.errors import EntryRefusedError
from safecache.fs import ownership
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import trust
from safecache.store import gate
from safecache.tiers import directory_faults


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    session.reset()
    monkeypatch.setattr(directory_faults, "_parent_tells", False)


@pytest.fixture
def root(tmp_path):
    directory = tmp_path / "cache"
    directory.mkdir()
    return directory


@pytest.fixture
def exposed(root):
    root.chmod(0o777)
    return root


def test_private_directory_is_silent(root, caplog):
    directory_faults.check(str(root))
    assert not events.read_counters() and not caplog.records


def test_is_said_once_with_the_evidence_and_every_remedy(exposed, caplog):
    for _ in range(3):
        directory_faults.check(str(exposed))
    (record,) = caplog.records
    for words in (
        f"directory {exposed} ",
        f"{exposed} has mode 0777",
        f"chmod -R go-w {exposed}",
        "SAFECACHE_TRUST=shared",
    ):
        assert words in record.getMessage()
    assert events.read_counters() == {"directory writable by others": 1}
    subprocess.run(["chmod", "-R", "go-w", str(exposed)], check=True)
    session.reset()
    directory_faults.check(str(exposed))
    assert len(caplog.records) == 1


def test_two_directories_below_the_one_at_fault_are_one_warning(exposed, caplog):
    for name in ("one", "other"):
        (exposed / name).mkdir()
        directory_faults.check(str(exposed / name))
    assert len(caplog.records) == 1 and events.read_counters() == {"directory writable by others": 2}


def test_is_looked_at_once_a_process(exposed, monkeypatch):
    directory_faults.check(str(exposed))
    monkeypatch.setattr(ownership, "find_exposure", lambda *rest, **named: pytest.fail("looked again"))
    directory_faults.check(str(exposed))


def test_strict_mode_raises_each_time(exposed, settings):
    settings(SAFECACHE_STRICT=1)
    for _ in range(2):
        with pytest.raises(EntryRefusedError, match=f"{exposed} has mode 0777"):
            directory_faults.check(str(exposed))


@pytest.mark.parametrize("strict", [0, 1], ids=["default", "strict"])
def test_directory_that_is_shared_on_purpose_is_silent(exposed, settings, strict, caplog):
    settings(SAFECACHE_SHARED=1, SAFECACHE_STRICT=strict)
    directory_faults.check(str(exposed))
    assert not events.read_counters() and not caplog.records


def test_directory_that_is_not_there_yet_is_looked_at_when_it_is(root):
    directory_faults.check(str(root / "later"))
    (root / "later").mkdir()
    (root / "later").chmod(0o777)
    directory_faults.check(str(root / "later"))
    assert events.read_counters() == {"directory writable by others": 1}


@needs_root
def test_group_of_this_user_alone_is_nobody_else(root, monkeypatch):
    os.chown(root, -1, 4242)
    root.chmod(0o775)
    monkeypatch.setattr(ownership, "find_own_group", lambda: 4242)
    directory_faults.check(str(root))
    assert not events.read_counters()


def test_worker_leaves_the_warning_to_its_parent_and_is_strict_itself(exposed, settings):
    directory_faults.leave_to_parent()
    directory_faults.check(str(exposed))
    assert not events.read_counters()
    settings(SAFECACHE_STRICT=1)
    directory_faults._settled.reset()
    with pytest.raises(EntryRefusedError):
        directory_faults.check(str(exposed))


def keep(root):
    gate.attest_file(CodeFile(str(root / "library.so"), str(root)), content=b"content")


def judge(root):
    (root / "library.so").touch()
    gate.quarantine_unattested(CodeFile(str(root / "library.so"), str(root)))


def settle(root):
    sources.quarantine_if_changed(str(root / "source.cpp"), b"content", str(root))


@pytest.mark.parametrize("use", [keep, judge, settle])
def test_whatever_is_sealed_or_verified_below_it_is_said(exposed, use):
    use(exposed)
    assert events.read_counters()["directory writable by others"] == 1


def test_strict_error_leaves_a_lookup_though_torch_swallows_it(exposed, settings):
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError), events.propagate_strict():
        try:
            directory_faults.check(str(exposed))
        except Exception:
            pass


def test_unsealed_entry_of_an_exposed_directory_is_refused_by_private_trust(exposed, settings):
    """Shared or not."""
    path = exposed / layout.name_entry(b"content")
    path.write_bytes(b"content")
    for shared in (0, 1):
        settings(SAFECACHE_TRUST="private", SAFECACHE_SHARED=shared)
        refusal = trust.judge(b"content", Kind.FX_ENTRY, "key", str(path))
        assert refusal is not None and refusal.reason is Reason.NOT_PRIVATE
