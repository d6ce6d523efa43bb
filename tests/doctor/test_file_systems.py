"""File systems that cannot be mounted here are told by what the kernel would say of them; an overlay really is one."""

from __future__ import annotations

import errno
import os
import time

import pytest
from conftest import needs_root
from helpers.message_form import check_form, to_row

from safecache.doctor import directories
from safecache.fs import mounts
from safecache.settings import config


@needs_root
def test_cache_in_a_layer_of_a_container(machine, mount):
    for name in ("lower", "upper", "work"):
        (machine.base / name).mkdir()
    options = ",".join(f"{name}dir={machine.base / name}" for name in ("lower", "upper", "work"))
    mount(machine.inductor, options, "overlay", "overlay")
    found = machine.examine().one("container-layer", "info")
    assert f"{machine.inductor} (overlay: rw," in found["evidence"] and "TORCHINDUCTOR_CACHE_DIR" in found["remedy"]


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What is told of a cache, and of another directory, where the kernel says this of the mounts that they lie on."""
    for name in ("cache", "fast"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache" / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def tell(of_cache, of_fast="ext4", options="rw", **settings):
        (tmp_path / "mounts").write_text(
            f"1 1 0:1 / {tmp_path}/cache rw - {of_cache} server:/x {options}\n2 1 0:2 / {tmp_path}/fast rw - {of_fast} x rw\n"
        )
        monkeypatch.setattr(mounts, "_MOUNTINFO", str(tmp_path / "mounts"))
        monkeypatch.setattr(mounts._network_devices, "now", Uncached())
        for name, value in settings.items():
            monkeypatch.setenv(name, value.format(tmp_path))
        monkeypatch.setattr(config, "_current", None)
        checks = (directories.check_file_systems, directories.check_local_level)
        found = [each for check in checks for each in check(config.copy_environment())]
        check_form(map(to_row, found))
        return {each.code: each for each in found}

    return tell


class Uncached(dict):
    """All of these directories are really on one device."""

    def __contains__(self, device):
        return False


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.s3fs", "9p"])
def test_file_system_over_a_network(told, kind):
    found = told(kind)["network-file-system"]
    assert kind in found.evidence and "SAFECACHE_TIERS" in found.remedy and found.severity == "info"


def test_network_file_system_behind_a_local_level_needs_nothing(told):
    assert told("nfs4", SAFECACHE_LOCAL="{}/fast")["network-file-system"].remedy == ""


@pytest.mark.parametrize("option", ["nolock", "local_lock=all", "local_lock=flock"])
def test_locks_that_no_other_host_sees(told, option):
    found = told("nfs", options=f"rw,vers=3,{option}")
    assert option in found["locks-of-one-host"].evidence and found["locks-of-one-host"].severity == "warning"
    assert "locks-of-one-host" not in told("nfs", options="rw,vers=3,local_lock=none")


def test_local_level_over_a_network(told):
    found = told("nfs4", "lustre", SAFECACHE_LOCAL="{}/fast")
    assert "lustre" in found["local-level-is-remote"].evidence


def test_ordinary_disks_are_told_together(told):
    assert told("ext4").keys() == {"file-system"}


def test_clock_of_a_file_server_that_is_wrong(tmp_path, monkeypatch):
    now = time.time() - 1000
    monkeypatch.setattr(directories.time, "time", lambda: now)
    (found,) = directories._try_write(str(tmp_path), "the cache", "")
    check_form([to_row(found)])
    assert (found.code, found.severity) == ("clock-skew", "warning") and "+1000 s" in found.evidence


def test_directory_that_cannot_be_tried_out(tmp_path, monkeypatch):
    def refuse(directory, prefix):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(directories.folders, "create_scratch", refuse)
    (found,) = directories._try_steps(directories.Place("the cache", str(tmp_path), "TMPDIR"), str(tmp_path))
    check_form([to_row(found)])
    assert (found.code, found.severity) == ("not-probed", "info") and "quota" in found.evidence
