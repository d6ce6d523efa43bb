"""Sources, results and kernels that are attested by this process, by a sealed record, or by where they lie."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest

from safecache import session
from safecache.built_code import exec_directory
from safecache.errors import EntryRefusedError
from safecache.fs import filesystem, ownership
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind, Reason
from safecache.signing import keyring, provenance, seal, trust
from safecache.store import attestations, entry_files, gate, manifests
from safecache.tiers.directory_faults import Immovable, Unreadable
from safecache.upkeep import audit

CONTENT = b"def call(args): ..."
SOURCE = Kind.SOURCE


@pytest.fixture
def source(tmp_path, monkeypatch):
    forget(monkeypatch)
    path = tmp_path / "cache" / "ab" / "source.py"
    path.parent.mkdir(parents=True)
    return path


def forget(monkeypatch):
    """As a new process would begin."""
    attestations._state.reset()
    keyring.renew()


def root_of(path):
    return str(path.parents[1])


def keep(path, content=CONTENT, kind=SOURCE):
    gate.attest_file(CodeFile(str(path), root_of(path), kind), content)


def states(path, content=CONTENT, kind=SOURCE):
    return gate.judge_content(CodeFile(str(path), root_of(path), kind), hashlib.sha256(content).digest()) is None


def refuse_writes(monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(filesystem, "write", full)


def test_process_attests_what_it_expects_without_a_record(source):
    assert not states(source)
    attestations.attest_in_process(str(source), CONTENT)
    assert states(source) and not states(source, b"another")
    assert not manifests.has_record_file(CodeFile(str(source), root_of(source), SOURCE))


def test_record_attests_one_content_in_the_next_process(source, monkeypatch):
    keep(source)
    forget(monkeypatch)
    assert manifests.has_record_file(CodeFile(str(source), root_of(source), SOURCE))
    assert states(source) and not states(source, b"another")


def test_record_of_another_build_does_not_attest(source, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "make_statement", lambda kind: {"machine": "vax"})
        keep(source)
    forget(monkeypatch)
    assert not states(source)


def test_record_that_does_not_verify_attests_nothing(source, monkeypatch):
    keep(source)
    (record,) = source.parents[1].glob(".safecache/records/*/*")
    record.write_bytes(record.read_bytes()[1:])
    forget(monkeypatch)
    assert not states(source)


@pytest.mark.parametrize(("mode", "attested"), [(0o755, True), (0o777, False)])
def test_private_trust_takes_what_nobody_else_could_have_written(source, settings, mode, attested):
    settings(SAFECACHE_TRUST="private")
    source.write_bytes(CONTENT)
    source.parent.chmod(mode)
    assert states(source) == trust.is_private(str(source)) == attested


def test_signed_trust_takes_nothing_for_lying_where_nobody_else_writes(source):
    source.write_bytes(CONTENT)
    assert not trust.is_private(str(source))


def test_kernels_of_one_name_in_two_directories_have_records_of_their_own(tmp_path, monkeypatch):
    forget(monkeypatch)
    one, other = [tmp_path / "cache" / key / "kernel.cubin" for key in ("one", "other")]
    keep(one, kind=Kind.KERNEL)
    assert manifests.has_record_file(CodeFile(str(one), root_of(one), Kind.KERNEL))
    assert not manifests.has_record_file(CodeFile(str(other), root_of(other), Kind.KERNEL))


def test_record_that_cannot_be_written_is_said_and_not_counted(source, monkeypatch):
    with monkeypatch.context() as patch:
        refuse_writes(patch)
        written = manifests.write(
            CodeFile(str(source), root_of(source), SOURCE), {"sha256": ""}, keyring.current().signing, {}
        )
    assert not written and events.read_counters() == {"unwritable": 1}
    assert manifests.write(CodeFile(str(source), root_of(source), SOURCE), {}, keyring.current().signing, {})
    assert events.read_counters() == {"unwritable": 1, "code sealed": 1}


def restore(path):
    """What lies there once it was judged, and made anew if it had to go."""
    gate.quarantine_unattested(CodeFile(str(path), root_of(path), SOURCE))
    if not os.path.lexists(path):
        gate.attest_file(CodeFile(str(path), root_of(path), SOURCE), CONTENT)
        entry_files.publish(str(path), CONTENT, root_of(path))
    return path.read_bytes()


def test_missing_source_is_restored_with_a_record(source, monkeypatch):
    assert restore(source) == CONTENT
    forget(monkeypatch)
    assert states(source)


def test_source_that_is_attested_stays_as_it_is(source):
    keep(source, b"kept")
    source.write_bytes(b"kept")
    assert restore(source) == b"kept"


def test_planted_source_is_moved_away_and_restored(source):
    source.write_bytes(b"planted")
    assert restore(source) == CONTENT
    assert [path.read_bytes() for path in source.parents[1].glob(".safecache/quarantine/*.????????")] == [b"planted"]


def test_planted_file_that_cannot_be_moved_away_is_not_used(source, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    source.write_bytes(b"planted")
    monkeypatch.setattr(filesystem, "rename", refuse)
    with pytest.raises(Immovable, match="cannot be moved away"):
        restore(source)
    assert events.read_counters().get("quarantined") is None


def test_planted_file_is_an_error_in_strict_mode(source, settings):
    settings(SAFECACHE_STRICT=1)
    source.write_bytes(b"planted")
    with pytest.raises(EntryRefusedError):
        restore(source)


@pytest.mark.parametrize(("number", "there"), [(errno.ENOENT, False), (errno.EIO, True)], ids=errno.errorcode.get)
def test_file_that_cannot_be_read_is_left_to_whoever_must_read_it(source, monkeypatch, number, there):
    def fail(path):
        raise OSError(number, os.strerror(number), path)

    source.write_bytes(CONTENT)
    monkeypatch.setattr(filesystem, "lstat", fail)
    assert gate.quarantine_unattested(CodeFile(str(source), root_of(source), SOURCE)) is there and source.exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")], ids=["fifo", "link"])
def test_what_is_no_file_is_moved_away_before_anything_is_made_there(source, make):
    make(source)
    assert restore(source) == CONTENT and not source.is_symlink()
    assert events.read_counters()["not a file"] == 1


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")], ids=["fifo", "link"])
def test_what_is_no_file_is_not_loaded(source, make):
    make(source)
    with pytest.raises(EntryRefusedError, match=r"not a file\]: it is a"):
        gate.verify_load_path(CodeFile(str(source), root_of(source)))


def test_damaged_record_moves_the_file_away_and_counts(source, monkeypatch):
    keep(source)
    source.write_bytes(b"damaged")
    forget(monkeypatch)
    events._state.reset()
    assert restore(source) == CONTENT
    assert events.read_counters()["damaged"] == events.read_counters()["quarantined"] == 1


def adopt(path):
    return audit._adopt_code(CodeFile(str(path), root_of(path), SOURCE))


def test_private_file_is_adopted_once(source, monkeypatch):
    source.write_bytes(CONTENT)
    assert adopt(source) and not adopt(source)
    forget(monkeypatch)
    assert not adopt(source) and states(source)


def test_file_that_others_could_have_written_is_not_adopted(source, monkeypatch):
    source.write_bytes(CONTENT)
    source.chmod(0o666)
    with pytest.raises(EntryRefusedError, match="not private"):
        adopt(source)
    forget(monkeypatch)
    assert not states(source)


def test_what_is_no_file_is_not_adopted(source):
    os.mkfifo(source)
    with pytest.raises(EntryRefusedError, match="FIFO"):
        adopt(source)


@pytest.fixture
def exposed(source, monkeypatch):
    """The file lies where others can replace it."""
    source.write_bytes(CONTENT)
    source.parent.chmod(0o777)
    assert ownership.find_exposure(str(source))
    return source


def test_code_that_others_can_replace_is_loaded_from_a_copy(exposed):
    keep(exposed)
    path, content = gate.verify_load_path(CodeFile(str(exposed), root_of(exposed), SOURCE))
    assert content == CONTENT and path != str(exposed) and open_bytes(path) == CONTENT
    assert attestations.is_known(path, CONTENT), "or it could not be judged when it is loaded"


def test_library_that_cannot_be_copied_to_the_exec_dir_is_not_loaded_where_others_write(exposed, settings, tmp_path):
    keep(exposed)
    settings(SAFECACHE_EXEC_DIR=tmp_path / "missing")
    path = exec_directory.find_load_path(CodeFile(str(exposed), root_of(exposed), SOURCE))
    assert (
        path != str(exposed) and open_bytes(path) == CONTENT and events.read_counters()["unusable exec directory"] == 1
    )


def test_code_that_is_replaced_after_it_was_judged_is_not_loaded(exposed, monkeypatch):
    keep(exposed)
    judge = gate.judge_file

    def judge_and_replace(*args):
        refusal = judge(*args)
        exposed.write_bytes(b"planted")
        return refusal

    monkeypatch.setattr(gate, "judge_file", judge_and_replace)
    with pytest.raises(EntryRefusedError, match="replaced since it was verified"):
        gate.verify_load_path(CodeFile(str(exposed), root_of(exposed), SOURCE))


def test_unreadable_code_that_others_can_replace_is_not_handed_on(exposed):
    exposed.unlink()
    with pytest.raises(FileNotFoundError):
        gate.verify_load_path(CodeFile(str(exposed), root_of(exposed), SOURCE))


def test_private_code_is_loaded_from_where_it_lies(source):
    keep(source)
    source.write_bytes(CONTENT)
    assert gate.verify_load_path(CodeFile(str(source), root_of(source), SOURCE)) == (str(source), None)
    assert gate.make_private_path(CodeFile(str(source)), CONTENT) == str(source)


def test_code_of_a_noexec_mount_is_not_copied_to_memory(exposed, monkeypatch):
    keep(exposed)
    monkeypatch.setattr(gate.mounts, "is_noexec", lambda path: True)
    assert gate.verify_load_path(CodeFile(str(exposed), root_of(exposed), SOURCE)) == (str(exposed), None)


@pytest.mark.parametrize(
    "statement", [b"[]", b"{}", b'{"sha256": 5}', pytest.param(b"[" * 100_000, id="deep"), b"\xff", b'"sha256"']
)
def test_record_of_another_form_attests_nothing(source, monkeypatch, statement):
    """Whoever has a key can seal anything."""
    keep(source)
    (record,) = source.parents[1].glob(".safecache/records/*/*")
    signing = keyring.current().signing
    record.write_bytes(seal.attach(statement, SOURCE, source.name, signing, provenance.make_statement(SOURCE)))
    forget(monkeypatch)
    assert not states(source)
    verdict, stated = manifests.read(CodeFile(str(source), root_of(source), SOURCE))
    assert verdict.reason is Reason.UNKNOWN_FORMAT and stated == {}


def judge(path, kind=SOURCE, **options):
    return gate.judge_file(CodeFile(str(path), root_of(path), kind), **options)


def refuse_reading(monkeypatch, *names):
    for name in names:
        monkeypatch.setattr(gate.opening, name, None)


def test_file_that_was_altered_since_this_process_attested_it_is_refused(source):
    keep(source)
    source.write_bytes(b"altered")
    assert [judge(source).reason for _ in range(2)] == [Reason.DAMAGED] * 2, "and so the second time"


def test_file_that_nothing_attests_is_refused_each_time(source):
    source.write_bytes(CONTENT)
    assert [judge(source).reason for _ in range(2)] == [Reason.UNSEALED] * 2


def test_what_this_process_has_made_needs_no_record(source, monkeypatch):
    attestations.attest_in_process(str(source), CONTENT)
    source.write_bytes(CONTENT)
    refuse_reading(monkeypatch, "read_regular")
    assert judge(source) is None


def test_file_is_read_once_while_the_kernel_says_it_is_the_same(source, monkeypatch):
    keep(source)
    source.write_bytes(CONTENT)
    assert judge(source) is None
    refuse_reading(monkeypatch, "read_regular", "digest_regular")
    assert judge(source) is None


@pytest.mark.parametrize("readable", [True, False], ids=["no-record", "unreadable-record"])
def test_library_that_this_process_expects_needs_no_record(source, monkeypatch, readable):
    attestations.attest_in_process(str(source), CONTENT)
    source.write_bytes(CONTENT)
    if not readable:
        refuse_records(monkeypatch)
    assert judge(source, Kind.NATIVE_CODE) is None


def refuse_records(monkeypatch):
    def fail(path, *args):
        raise Unreadable(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(manifests, "read_unverified_record", fail)


def test_record_that_cannot_be_read_is_no_refusal_of_what_it_may_attest(source, monkeypatch):
    source.write_bytes(CONTENT)
    refuse_records(monkeypatch)
    with pytest.raises(Unreadable):
        judge(source)


def test_refusal_says_what_is_wrong_with_the_record(source, monkeypatch):
    source.write_bytes(CONTENT)
    assert "no sealed record" in judge(source).evidence
    keep(source)
    (record,) = source.parents[1].glob(".safecache/records/*/*")
    record.write_bytes(b"x" + record.read_bytes()[1:])
    forget(monkeypatch)
    assert judge(source).evidence == "its content does not match the digest in its seal"


@pytest.mark.parametrize("moved", [None, "elsewhere"], ids=["moved-by-another", "made-anew-by-another"])
def test_what_another_process_does_at_the_same_time_is_no_error(source, monkeypatch, moved):
    def quarantine(path, *args):
        if moved is None:
            os.unlink(path)
        return moved

    source.write_bytes(b"planted")
    monkeypatch.setattr(gate.entry_files, "quarantine", quarantine)
    gate.quarantine_unattested(CodeFile(str(source), root_of(source), SOURCE))
    assert events.read_counters()["unsealed"] == 1 and "quarantined" not in events.read_counters()


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


class TestRecordThatCannotBeRead:
    """It may be a good one: then what it attests is good, and not thrown away."""

    @pytest.fixture
    def unreadable(self, source, monkeypatch):
        """Have the next so many readings of the source's record fail."""
        keep(source)
        source.write_bytes(CONTENT)
        forget(monkeypatch)
        session.reset()
        real, left = filesystem.open, [0]

        def fail(path, *args, **kwargs):
            if "records" in str(path) and left[0]:
                left[0] -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real(path, *args, **kwargs)

        monkeypatch.setattr(filesystem, "open", fail)
        monkeypatch.setattr(filesystem, "sleep", lambda seconds: None)
        return lambda times: left.__setitem__(0, times)

    def assert_untouched(self, source):
        assert source.read_bytes() == CONTENT and not list(source.parents[1].glob(".safecache/quarantine/*"))

    def test_file_stays_and_is_not_used(self, source, unreadable):
        unreadable(1000)
        with pytest.raises(Unreadable, match="Input/output error"):
            gate.quarantine_unattested(CodeFile(str(source), root_of(source), SOURCE))
        with pytest.raises(Unreadable):
            gate.verify_load_path(CodeFile(str(source), root_of(source), SOURCE))
        self.assert_untouched(source)

    def test_file_is_used_when_it_can_be_read_again(self, source, unreadable):
        unreadable(1)
        assert restore(source) == CONTENT and events.read_counters() == {"code verified": 1}

    def test_result_is_neither_attested_nor_refused(self, source, unreadable):
        unreadable(1000)
        with pytest.raises(Unreadable):
            states(source)

    def test_what_this_process_has_made_needs_none(self, source, unreadable):
        unreadable(1000)
        attestations.attest_in_process(str(source), CONTENT)
        gate.quarantine_unattested(CodeFile(str(source), root_of(source), SOURCE))
        assert states(source)

    def test_it_may_contradict_what_nobody_else_could_have_written(self, source, unreadable, settings):
        settings(SAFECACHE_TRUST="private")
        unreadable(1000)
        for ask in (states, judge):
            with pytest.raises(Unreadable):
                ask(source)

    def test_one_that_is_no_file_is_none(self, source, unreadable):
        (record,) = source.parents[1].glob(".safecache/records/*/*")
        record.unlink()
        record.mkdir()
        assert restore(source) == CONTENT and events.read_counters()["unsealed"] == 1
