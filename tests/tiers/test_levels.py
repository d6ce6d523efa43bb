"""Where a local tier lies, what is sent to the shared one, and that nothing else of that is touched."""

from __future__ import annotations

import errno
import os
import stat
import time

import pytest
from conftest import python
from helpers.fresh import forget_levels

from safecache.errors import CacheWriteError
from safecache.fs import filesystem
from safecache.places.layout import CodeFile
from safecache.places.refs import locate
from safecache.ports import Published, observe
from safecache.reporting import events, waits
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.store import bundles, directories, entry_files, gate, manifests
from safecache.tiers import fallback, levels
from safecache.upkeep import limits


def put(path, content=b"content", kind=Kind.NATIVE_CODE):
    """A file with a record, as a build leaves it."""
    root = config.cache_directory()
    gate.attest_file(CodeFile(path, root, kind), content)
    entry_files.publish(path, content, root)


def test_torch_is_told_of_the_local_level_and_so_are_processes_that_this_one_starts(shared, local, tmp_path):
    assert local.startswith(str(tmp_path / "local" / "safecache-local-")) and str(shared).replace("/", "-")[1:] in local
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (local, os.path.dirname(local))] == [0o700, 0o700]
    assert config.copy_environment()["TORCHINDUCTOR_CACHE_DIR"] == local
    assert config.get_redirection() == (local, str(shared))


def test_process_that_was_started_goes_on_with_both_levels(shared, local, monkeypatch):
    forget_levels()
    fallback.ensure_cache_directory(lambda: "nowhere")
    assert config.cache_directory() == local and levels.find_counterpart(f"{local}/ab/c.so") == f"{shared}/ab/c.so"


def test_process_that_was_started_knows_the_levels_before_it_asks_for_the_cache(shared, local, monkeypatch):
    forget_levels()
    assert levels.find_counterpart(f"{local}/triton/0/KEY") == f"{shared}/triton/0/KEY"


def test_child_takes_the_local_level_for_no_stand_in(shared, local):
    code = "import sys; from safecache.tiers import fallback; print(fallback.find_original(sys.argv[1]), *fallback.iter_lower_paths(*sys.argv[1:]))"
    done = python(code, env={"SAFECACHE_LOCAL": config.current().local}, arguments=(f"{local}", local))
    assert done.stdout.split("\n")[0] == f"None {(str(shared), str(shared))}", done


def test_process_that_was_started_without_the_setting_uses_the_shared_one(shared, local, monkeypatch, settings):
    forget_levels()
    settings(SAFECACHE_LOCAL="")
    fallback.ensure_cache_directory(lambda: "nowhere")
    assert config.cache_directory() == str(shared) and config.get_redirection() is None


def test_end_of_redirection_brings_back_the_shared_one(shared, local):
    config.end_redirection()
    assert config.cache_directory() == str(shared)


def test_directories_of_like_names_have_different_levels(shared):
    assert levels.find_place("/a/b") != levels.find_place("/a-b")
    assert levels.find_place("/a/\n;ü") and "\n" not in levels.find_place("/a/\n;ü")


def test_local_level_has_none_itself(shared, local):
    assert levels.find_place(local) is None


def test_shared_level_is_the_first_layer_and_only_of_what_lies_in_the_local_one(shared, local, settings):
    settings(SAFECACHE_LOCAL=os.path.dirname(os.path.dirname(local)), SAFECACHE_LOWER="/image")
    found = list(fallback.iter_lower_paths(f"{local}/ab/c.so", local))
    assert found == [(f"{shared}/ab/c.so", str(shared)), ("/image/ab/c.so", "/image")]
    assert list(fallback.iter_lower_paths("/triton/KEY", "/triton")) == [("/image/KEY", "/image")], (
        "TRITON_CACHE_DIR, explicitly"
    )


def test_kernels_in_the_local_level_are_in_the_shared_one_at_their_place(shared, local):
    found = list(fallback.iter_lower_paths(f"{local}/triton/0/KEY", f"{local}/triton/0"))
    assert found == [(f"{shared}/triton/0/KEY", f"{shared}/triton/0")]


def test_file_is_sent_with_its_record_which_comes_first(shared, local, monkeypatch):
    path = f"{local}/ab/c.so"
    put(path)
    os.chmod(path, 0o755)
    renamed, rename = [], filesystem.rename

    def note(name, new, *, src_dir_fd, dst_dir_fd):
        renamed.append(os.path.join(os.readlink(f"/proc/self/fd/{dst_dir_fd}"), new))
        rename(name, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(filesystem, "rename", note)
    assert directories.propagate_file(CodeFile(path))
    there = f"{shared}/ab/c.so"
    assert renamed == [manifests.record_path(CodeFile(there, str(shared))), there]
    assert gate.judge_file(CodeFile(there, str(shared))) is None and os.stat(there).st_mode & 0o777 == 0o755


def test_copy_from_the_shared_level_keeps_the_record_of_who_sealed_it(shared, local):
    path = f"{local}/ab/c.so"
    put(path)
    directories.propagate_file(CodeFile(path))
    record = manifests.read_unverified_record(CodeFile(path, local))
    for place in (path, manifests.record_path(CodeFile(path, local))):
        os.unlink(place)
    assert bundles.fetch(locate(Kind.NATIVE_CODE, path, local))
    assert (
        manifests.read_unverified_record(CodeFile(path, local)) == record
        and gate.judge_file(CodeFile(path, local)) is None
    )


def test_layer_that_cannot_be_entered_is_as_good_as_an_empty_one(shared, local, monkeypatch, caplog):
    def refuse(path):
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr(directories.os, "lstat", refuse)
    assert not bundles.fetch(locate(Kind.NATIVE_CODE, f"{local}/ab/c.so", local)) and not caplog.records


def test_what_is_not_in_a_local_level_is_not_sent(shared, local, tmp_path):
    path = tmp_path / "elsewhere"
    path.write_bytes(b"content")
    assert not directories.propagate_file(CodeFile(str(path))) and os.listdir(shared) == []


def test_file_that_is_gone_is_not_sent_and_nothing_is_said(shared, local, caplog):
    assert not directories.propagate_file(CodeFile(f"{local}/gone"))
    os.mkfifo(f"{local}/fifo")
    assert not directories.propagate_file(CodeFile(f"{local}/fifo")) and not caplog.records


def test_source_of_that_size_is_not_sent_again_and_any_other_is(shared, local):
    def sent(content):
        entry_files.publish(f"{shared}/c.py", content, str(shared))
        directories.send_content(CodeFile(f"{local}/c.py", kind=Kind.SOURCE), b"source", anew=False)
        return (shared / "c.py").read_bytes()

    assert sent(b"before") == b"before" and sent(b"torn") == b"source"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_shared_level_that_takes_nothing_is_said_once_and_left_alone_for_a_minute(
    shared, local, monkeypatch, caplog, error
):
    opened, open_ = [], filesystem.open

    def fail(path, *rest, **named):
        if str(path).startswith(str(shared)):
            opened.append(path)
            raise OSError(error, os.strerror(error))
        return open_(path, *rest, **named)

    monkeypatch.setattr(filesystem, "open", fail)
    for _ in range(3):
        assert not directories.send_content(CodeFile(f"{local}/c.py", kind=Kind.SOURCE), b"source")
    assert len(opened) == 1 and len(caplog.records) == 1 and os.strerror(error) in caplog.text
    assert list(fallback.iter_lower_paths(f"{local}/c.py", local)), "it is read"
    assert config.cache_directory() == local, "no fault of the local one"
    later = waits.time.monotonic() + 61
    monkeypatch.setattr(waits.time, "monotonic", lambda: later)
    directories.send_content(CodeFile(f"{local}/c.py", kind=Kind.SOURCE), b"source")
    assert len(opened) == 2 and len(caplog.records) == 1


def test_shared_level_that_takes_nothing_is_an_error_in_strict_mode(shared, local, settings):
    settings(SAFECACHE_LOCAL=os.path.dirname(os.path.dirname(local)), SAFECACHE_STRICT="1")
    shared.rmdir()
    shared.write_bytes(b"in the way")
    os.chmod(shared.parent, 0o700)
    with pytest.raises(CacheWriteError, match="Not a directory"):
        directories.send_content(CodeFile(f"{local}/ab/c.py", kind=Kind.SOURCE), b"source")


def test_shared_level_that_cannot_be_looked_into_is_said_once_and_left_alone(shared, local, caplog, monkeypatch):
    looks = []

    def fail(path):
        looks.append(path)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(fallback.os, "access", lambda *rest, **named: False)
    monkeypatch.setattr(fallback.os, "listdir", fail)
    for _ in range(3):
        assert list(fallback.iter_lower_paths(f"{local}/c.py", local)) == []
    assert not directories.send_content(CodeFile(f"{local}/c.py", kind=Kind.SOURCE), b"source"), "nor is it written"
    assert len(looks) == 1 and len(caplog.records) == 1 and events.read_counters() == {"unusable directory": 1}


def test_shared_level_that_is_not_there_yet_is_looked_for_again_and_made(shared, local, caplog):
    shared.rmdir()
    assert list(fallback.iter_lower_paths(f"{local}/c.py", local)) == []
    assert directories.send_content(CodeFile(f"{local}/c.py", kind=Kind.SOURCE), b"source")
    assert (
        list(fallback.iter_lower_paths(f"{local}/c.py", local)) == [(f"{shared}/c.py", str(shared))]
        and not caplog.records
    )


def test_local_level_that_fails_in_the_middle_is_left_for_the_shared_one(shared, local, caplog, monkeypatch):
    def work():
        if config.cache_directory() == local:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{local}/file")
        return config.cache_directory()

    assert fallback.attempt(work) == str(shared) and len(caplog.records) == 1
    fallback.ensure_cache_directory(lambda: "nowhere")
    assert config.cache_directory() == str(shared), "for a while"
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    fallback.ensure_cache_directory(lambda: "nowhere")
    assert config.cache_directory() == local


def test_local_level_that_others_could_write_is_not_used(shared, tmp_path, caplog):
    (tmp_path / "local").mkdir()
    os.chmod(tmp_path / "local", 0o777)
    fallback.ensure_cache_directory(lambda: "nowhere")
    assert config.cache_directory() == str(shared) and len(caplog.records) == 1 and "0777" in caplog.text


def test_local_level_is_looked_at_once_a_minute(shared, local, monkeypatch):
    monkeypatch.setattr(levels, "find_objection", None)
    for _ in range(3):
        fallback.ensure_cache_directory(lambda: "nowhere")
    assert config.cache_directory() == local


def test_publishing_starts_a_sweep_of_the_local_level_and_none_of_the_shared_one(
    shared, local, tmp_path, settings, monkeypatch
):
    started = []
    observe(Published, limits.keep)
    limits._next.reset()
    monkeypatch.setattr(limits, "_start_sweep", lambda command: started.append(command[-1]))
    settings(SAFECACHE_LOCAL=tmp_path / "local", SAFECACHE_MAX_FILES=1)
    entry_files.publish(f"{local}/triton/0/KEY/k.json", b"content", f"{local}/triton/0")
    entry_files.publish(f"{shared}/triton/0/KEY/k.json", b"content", f"{shared}/triton/0")
    entry_files.publish(f"{shared}/ab/c.so", b"content", str(shared))
    assert started == [local]
    config.end_redirection()
    forget_levels()  # as in a process whose local tier cannot be used
    entry_files.publish(f"{shared}/ab/c.so", b"content", str(shared))
    assert started == [local]
    entry_files.publish(str(tmp_path / "triton" / "KEY" / "k.json"), b"content", str(tmp_path / "triton"))
    assert started == [local, str(tmp_path / "triton")]


@pytest.mark.parametrize("command", ["gc", "clean", "du"])
def test_commands_take_the_local_level_and_the_shared_one_only_by_name(shared, local, run, command, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nowhere")
    for redirected in (True, False):
        if not redirected:
            config.end_redirection()
        said = run(command, "--json")
        assert local in said.out and f'"{shared}"' not in said.out, said
    assert str(shared) in run(command, "--json", shared).out
