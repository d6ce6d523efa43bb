"""`safecache doctor` on a machine whose user, directories and mounts are traps that are really set."""

from __future__ import annotations

import os
import shutil

import pytest
from conftest import needs_root
from faults.users import as_user

NOBODY = 43210
needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv(1)")


def test_machine_without_a_trap_has_none(machine):
    machine.checks_compilers = True
    report = machine.examine()
    assert report.code == 0 and report.worst in ("ok", "info"), report.findings
    assert {"user", "versions", "compilers", "cpus", "behaviour"} <= report.codes
    assert report.one("no-key-yet", "info")


# The user ------------------------------------------------------------------------------------------------------------


@needs_root
@needs_setpriv
def test_user_without_a_passwd_entry_nor_a_home(machine):
    """As OpenShift starts a container: HOME is a directory that he cannot write to."""
    report = machine.examine(within=as_user(NOBODY))
    found = report.one("no-passwd-entry", "warning")
    assert f"torchinductor_uid_{NOBODY}" in found["evidence"] and found["remedy"] == f"export LOGNAME=uid_{NOBODY}"
    found = report.one("no-key-directory", "error")
    assert f"{machine.home} cannot be written" in found["evidence"] and "SAFECACHE_KEY_FILE" in found["remedy"]
    assert report.code == 1 and report.worst == "error"


@needs_root
@needs_setpriv
def test_user_whom_a_variable_names(machine):
    report = machine.examine(within=as_user(NOBODY), env={"LOGNAME": "somebody"})
    assert "LOGNAME=somebody" in report.one("no-passwd-entry", "info")["evidence"]


@needs_root
@needs_setpriv
def test_user_without_any_home_has_no_place_for_a_key(machine):
    report = machine.examine(within=as_user(NOBODY), env={"HOME": None})
    assert "no home directory" in report.one("no-key-directory", "error")["evidence"]


# Access --------------------------------------------------------------------------------------------------------------


@needs_root
@needs_setpriv
def test_cache_of_another_user_names_its_mode_and_a_place_to_write(machine):
    machine.tmp.chmod(0o1777)
    report = machine.examine(within=as_user(NOBODY))
    by_noun = {finding["evidence"].partition(" /")[0]: finding for finding in report.found("not-writable", "error")}
    found = by_noun["Inductor's cache"]
    assert f"{machine.inductor} is drwxr-xr-x, of uid 0 and gid 0, and this is uid {NOBODY}" in found["evidence"]
    variable, place = found["remedy"].removeprefix("export ").split("=")
    assert variable == "TORCHINDUCTOR_CACHE_DIR" and place.startswith(("/var/tmp/", str(machine.tmp)))
    assert by_noun["Triton's cache"]["remedy"].startswith("export TRITON_CACHE_DIR=/")


def test_cache_that_is_a_file_or_below_one(machine):
    machine.inductor.rmdir()
    machine.inductor.write_text("not a directory")
    found = machine.examine().one("not-a-directory", "error")
    assert str(machine.inductor) in found["evidence"] and found["remedy"].startswith("export TORCHINDUCTOR_CACHE_DIR=/")
    report = machine.examine(env={"TORCHINDUCTOR_CACHE_DIR": machine.inductor / "below"})
    assert f"{machine.inductor} is not a directory" in report.one("not-a-directory", "error")["evidence"]


def test_cache_that_others_can_write_to_unless_that_is_on_purpose(machine):
    machine.inductor.chmod(0o777)
    found = machine.examine().one("exposed-directory", "warning")
    assert f"{machine.inductor} has mode 0777" in found["evidence"] and found["remedy"].startswith("chmod -R go-w /")
    report = machine.examine(env={"SAFECACHE_SHARED": "1"})
    assert "exposed-directory" not in report.codes


@needs_root
def test_directory_above_the_cache_that_belongs_to_somebody_else(machine):
    above = machine.base / "theirs"
    above.mkdir()
    (above / "cache").mkdir()
    os.chown(above, NOBODY, -1)
    found = machine.examine(env={"TORCHINDUCTOR_CACHE_DIR": above / "cache"}).one("exposed-directory", "warning")
    assert f"{above} belongs to uid {NOBODY}" in found["evidence"] and "TORCHINDUCTOR_CACHE_DIR=/" in found["remedy"]


def test_cache_behind_a_symbolic_link(machine):
    link = machine.base / "link"
    link.symlink_to(machine.inductor)
    found = machine.examine(env={"TORCHINDUCTOR_CACHE_DIR": link}).one("symbolic-link", "info")
    assert f"a symbolic link makes it {machine.inductor}" in found["evidence"]


def test_temporary_directory_that_is_not_there(machine):
    report = machine.examine(env={"TMPDIR": machine.base / "gone"})
    found = report.one("temporary-directory-ignored", "warning")
    assert f"TMPDIR={machine.base}/gone" in found["evidence"] and found["remedy"].startswith("export TMPDIR=/")


@needs_root
@needs_setpriv
def test_machine_without_any_temporary_directory(machine):
    """As with a read-only root file system in Kubernetes, and no volume for /tmp."""
    read_only = 'for d in /tmp /var/tmp; do mount --bind $d $d; mount -o remount,bind,ro $d; done; exec "$@"'
    within = ["unshare", "-m", "sh", "-c", read_only, "sh", *as_user(NOBODY)]
    report = machine.examine("--strict", within=within, env={"TMPDIR": None})
    assert "No usable temporary directory" in report.one("no-temporary-directory", "error")["evidence"]
    assert report.one("hooks-not-examined", "info") and "check-failed" not in report.codes


def test_temporary_directory_of_mode_0777(machine):
    machine.tmp.chmod(0o777)
    report = machine.examine()
    assert report.one("exposed-temporary-directory", "warning")["remedy"] == f"chmod +t {machine.tmp}"


@pytest.mark.parametrize(("mode", "code"), [(0o3775, "sticky-shared-directory"), (0o775, "no-setgid")])
def test_shared_cache_whose_mode_keeps_its_users_from_sharing(machine, mode, code):
    machine.inductor.chmod(mode)
    report = machine.examine(env={"SAFECACHE_SHARED": "1"})
    assert str(machine.inductor) in report.one(code, "warning")["remedy"]
    assert "022" in report.one("umask-of-one", "warning")["evidence"]


def test_layer_that_is_not_mounted(machine):
    report = machine.examine(env={"SAFECACHE_LOWER": f"{machine.base}/image:{machine.home}"})
    assert f"{machine.base}/image" in report.one("layer-missing", "warning")["evidence"]


# Mounts and space ----------------------------------------------------------------------------------------------------


@needs_root
def test_noexec_mount_is_named_with_a_directory_that_works(machine, mount):
    mount(machine.inductor, "noexec,mode=755")
    report = machine.examine()
    found = report.one("noexec", "error")
    assert f"{machine.inductor} (tmpfs: rw,noexec" in found["evidence"]
    assert found["remedy"].startswith("export TORCHINDUCTOR_CACHE_DIR=/") and report.code == 1


@needs_root
def test_cache_in_memory_tells_how_much(machine, mount):
    mount(machine.triton, "size=3g,mode=755")
    found = machine.examine().one("in-memory", "info")
    assert f"memory holds Triton's cache {machine.triton}" in found["evidence"] and "of 3.2 GB" in found["evidence"]


@needs_root
def test_read_only_cache_can_be_a_layer(machine, mount):
    mount(machine.inductor, "ro,mode=755")
    report = machine.examine()
    found = report.one("read-only-file-system", "warning")
    assert found["remedy"].startswith(f"export SAFECACHE_TIERS={machine.inductor} TORCHINDUCTOR_CACHE_DIR=")
    assert "read-only file system" in report.one("not-writable", "error")["evidence"]


@needs_root
def test_small_file_system_is_short_of_bytes_and_inodes(machine, mount):
    mount(machine.inductor, "size=8m,nr_inodes=500,mode=755")
    report = machine.examine()
    found = report.one("low-space", "warning")
    assert "8.4 MB are free" in found["evidence"] and found["remedy"].startswith("safecache gc ")
    assert "of 500 inodes are free" in report.one("low-inodes", "warning")["evidence"]


@needs_root
def test_full_file_system_is_told_without_a_probe(machine, mount):
    mount(machine.inductor, "size=64k,mode=755")
    with (machine.inductor / "fill").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 10)
    report = machine.examine()
    assert "0 B of" in report.one("low-space", "warning")["evidence"]


@needs_root
def test_limit_that_the_disk_cannot_hold(machine, mount):
    mount(machine.inductor, "size=2g,mode=755")
    found = machine.examine(env={"SAFECACHE_MAX_BYTES": "10G"}).one("limit-beyond-disk", "warning")
    assert "10.0 GB" in found["evidence"] and found["remedy"] == f"export SAFECACHE_LIMITS=bytes={1 << 30}"


def test_limit_on_the_size_of_files(machine):
    report = machine.examine(within=["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh"])
    assert report.one("file-size-limit", "warning")["remedy"] == "ulimit -f unlimited"


@needs_root
def test_approved_directory_that_is_not_used(machine, mount):
    place = mount(machine.base / "approved", "noexec,mode=755")
    found = machine.examine(env={"SAFECACHE_EXEC_DIR": place}).one("exec-dir-unusable", "error")
    assert f"{place} (tmpfs: rw,noexec" in found["evidence"]
