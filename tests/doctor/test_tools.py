"""`safecache doctor` where a tool is missing, broken, or has fewer CPUs than torch takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import SOURCE, needs_root
from helpers.message_form import check_form, to_row

from safecache.doctor import installation
from safecache.isolation import client as process_cpus
from safecache.signing import provenance


@pytest.fixture
def tools(machine):
    """A directory to be all of PATH, with what the machine needs of programs but no compiler."""
    place = machine.base / "tools"
    place.mkdir()
    machine.environment["PATH"] = str(place)
    machine.checks_compilers = True
    return place


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_missing_compilers_are_named_with_the_packages(machine, tools):
    report = machine.examine()
    found = report.found("no-compiler", "error")
    assert [one["evidence"].split(":")[0] for one in found] == ["there is no C compiler", "there is no C++ compiler"]
    assert "gcc or clang is not found" in found[0]["evidence"] and "CXX=PATH" in found[1]["remedy"]
    assert report.code == 1


def test_compiler_that_a_variable_names_and_is_not_there(machine):
    machine.checks_compilers = True
    found = machine.examine(env={"CC": "/nowhere/cc"}).one("no-compiler", "error")
    assert "CC=/nowhere/cc is not found" in found["evidence"]


def test_compiler_that_is_half_installed(machine, tools):
    program(tools / "gcc", "echo 'gcc: fatal error: cannot execute cc1' >&2; exit 1")
    program(tools / "g++", f'exec {shutil.which("g++")} "$@"')
    found = machine.examine().one("broken-compiler", "error")
    assert "gcc: fatal error: cannot execute cc1" in found["evidence"] and "Triton" in found["evidence"]


@needs_root
def test_missing_header_of_python(machine):
    """The directory of the headers is hidden by an empty one, for this process alone."""
    machine.checks_compilers = True
    include = sysconfig.get_paths()["include"]
    hide = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {os.path.realpath(include)}; exec "$@"', "sh"]
    found = machine.examine(within=hide).one("no-python-headers", "error")
    assert include in found["evidence"] and "dev" in found["remedy"]


def test_compiler_that_links_its_own_runtime_into_each_library(machine):
    """An AOTInductor package that it builds crashes where it is loaded (seen with torch 2.11 and 2.13)."""
    compiler = program(machine.base / "g++", f'exec {shutil.which("g++")} "$@" -static-libstdc++')
    machine.checks_compilers = True
    found = machine.examine(env={"CXX": compiler}).one("static-libstdcxx", "warning")
    assert str(compiler) in found["evidence"] and "export CXX=" in found["remedy"]
    assert "static-libstdcxx" not in machine.examine().codes


# NVIDIA --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def triton():
    return Path(pytest.importorskip("triton").__file__).parent


def test_library_of_the_driver_that_is_not_where_it_is_named(machine, triton):
    found = machine.examine(env={"TRITON_LIBCUDA_PATH": machine.base}).one("no-libcuda", "error")
    assert f"TRITON_LIBCUDA_PATH={machine.base}" in found["evidence"] and found["remedy"] == "unset TRITON_LIBCUDA_PATH"


def test_library_of_the_driver_that_does_not_load(machine, triton):
    (machine.base / "libcuda.so.1").write_text("a stub")
    found = machine.examine(env={"TRITON_LIBCUDA_PATH": machine.base}).one("broken-libcuda", "error")
    assert "file too short" in found["evidence"] or "invalid ELF header" in found["evidence"]


def test_library_of_the_driver_that_loads(machine, triton):
    library = machine.base / "libcuda.so.1"
    subprocess.run(["gcc", "-xc", "-shared", "-fPIC", "/dev/null", "-o", str(library)], check=True)
    assert (
        machine.examine(env={"TRITON_LIBCUDA_PATH": machine.base})
        .one("libcuda", "ok")["evidence"]
        .endswith(f"{library}.")
    )


def test_gpu_without_the_library_of_its_driver(machine, triton, monkeypatch, tmp_path):
    """A container that was started without the driver's libraries."""
    monkeypatch.setattr(installation, "_DEVICE", str(tmp_path))
    monkeypatch.setattr(installation, "_LDCONFIG", "/bin/true")  # which lists nothing
    (found,) = installation.check_nvidia({"LD_LIBRARY_PATH": str(tmp_path)})
    assert (found.code, found.severity) == ("no-libcuda", "error") and "ldconfig" in found.evidence


def test_distribution_without_ldconfig(triton, monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "_DEVICE", str(tmp_path))
    monkeypatch.setattr(installation, "_LDCONFIG", str(tmp_path / "ldconfig"))
    (found,) = installation.check_nvidia({})
    assert (found.code, found.severity) == ("no-ldconfig", "error") and "TRITON_LIBCUDA_PATH=DIR" in found.remedy


def test_machine_without_a_gpu(triton, monkeypatch, tmp_path):
    monkeypatch.setattr(installation, "_DEVICE", str(tmp_path / "nvidiactl"))
    found = {each.code: each for each in installation.check_nvidia({})}
    assert found["no-nvidia-device"].severity == "info" and not found.keys() & {"no-libcuda", "no-ldconfig"}


def test_assembler_that_cannot_be_run_is_not_used(machine, triton):
    found = machine.examine(env={"TRITON_PTXAS_PATH": "/nowhere/ptxas"}).one("ptxas-not-used", "warning")
    assert found["remedy"] == "unset TRITON_PTXAS_PATH"


@needs_root
def test_bundled_assembler_on_a_noexec_mount(machine, triton):
    """As where site-packages lies on one."""
    place = triton / "backends" / "nvidia" / "bin"
    hide = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount --bind {place} {place}; mount -o remount,bind,noexec {place}; exec "$@"',
        "sh",
    ]
    found = machine.examine(within=hide).found("broken-ptxas", "error")
    assert len(found) == 2 and "Permission denied" in found[0]["evidence"]


# CPUs ----------------------------------------------------------------------------------------------------------------


@contextmanager
def group(quota: str):
    """A cgroup with this quota of CPU time, of a period of 100 ms."""
    path = Path("/sys/fs/cgroup/cpu") / f"safecache-tests-{os.getpid()}"
    try:
        path.mkdir()
    except OSError:
        pytest.skip("no cgroup with a quota can be made here")
    try:
        (path / "cpu.cfs_period_us").write_text("100000")
        (path / "cpu.cfs_quota_us").write_text(quota)
        yield path
    finally:
        path.rmdir()


@needs_root
def test_quota_of_a_real_cgroup_against_compile_threads(machine):
    with group("50000") as path:
        within = ["sh", "-c", f'echo $$ > {path}/cgroup.procs; exec "$@"', "sh"]
        found = machine.examine(within=within, env={"TORCHINDUCTOR_COMPILE_THREADS": "16"})
        found = found.one("too-many-compile-threads", "warning")
    assert "time for 0.5 of them" in found["evidence"] and found["remedy"] == "export TORCHINDUCTOR_COMPILE_THREADS=1"


@pytest.mark.parametrize(
    ("top", "own", "threads"),
    [
        pytest.param("150000 100000", "max 100000", 2, id="above"),
        pytest.param("max 100000", "300000 100000", 3, id="own"),
        pytest.param("900000 100000", "300000 100000", 3, id="tightest"),
    ],
)
def test_quota_of_nested_groups(tmp_path, monkeypatch, top, own, threads):
    """Of version 2 of cgroups, which has one tree."""
    (tmp_path / "job" / "step").mkdir(parents=True)
    (tmp_path / "job" / "cpu.max").write_text(f"{top}\n")
    (tmp_path / "job" / "step" / "cpu.max").write_text(f"{own}\n")
    (tmp_path / "groups").write_text("0::/job/step\n")
    monkeypatch.setattr(process_cpus, "_GROUPS", str(tmp_path))
    monkeypatch.setattr(process_cpus, "_OWN_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    (found,) = installation.check_cpus({})
    assert found.code == "too-many-compile-threads" and "torch chooses 32" in found.evidence
    assert found.remedy == f"export TORCHINDUCTOR_COMPILE_THREADS={threads}"


def test_number_of_compile_threads_that_is_none(machine):
    report = machine.examine(env={"TORCHINDUCTOR_COMPILE_THREADS": "all"})
    assert "is no number" in report.one("bad-compile-threads", "error")["evidence"]


# Bytecode and versions -----------------------------------------------------------------------------------------------


@pytest.fixture
def package(machine):
    """A torch of two modules, found before the installed one."""
    place = machine.base / "packages"
    (place / "torch" / "_inductor").mkdir(parents=True)
    (place / "torch" / "__init__.py").write_text("")
    (place / "torch" / "_inductor" / "codecache.py").write_text("")
    machine.environment["PYTHONPATH"] = f"{place}:{SOURCE}"

    def release(version):
        (place / "torch" / "version.py").write_text(f"__version__ = {version!r}\n")
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(place)], check=True)
        return place

    return release


def test_bytecode_that_nobody_keeps(machine, package):
    place = package("2.15.0")
    assert "no-bytecode" not in machine.examine(env={"PYTHONDONTWRITEBYTECODE": "1"}).codes
    source = place / "torch" / "_inductor" / "codecache.py"
    os.utime(source, (time.time() - 60,) * 2)
    found = machine.examine(env={"PYTHONDONTWRITEBYTECODE": "1"}).one("no-bytecode", "warning")
    assert "1 of 2 modules" in found["evidence"] and "PYTHONDONTWRITEBYTECODE is set" in found["evidence"]
    assert "no-bytecode" not in machine.examine().codes, "it is kept by the first process"
    subprocess.run(
        found["remedy"], shell=True, check=True, env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]}
    )
    assert "no-bytecode" not in machine.examine(env={"PYTHONDONTWRITEBYTECODE": "1"}).codes


@needs_root
def test_packages_on_a_read_only_mount_without_bytecode(machine, package):
    place = package("2.15.0")
    shutil.rmtree(place / "torch" / "__pycache__")
    hide = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount --bind {place} {place}; mount -o remount,bind,ro {place}; exec "$@"',
        "sh",
    ]
    found = machine.examine(within=hide).one("no-bytecode", "warning")
    assert f"{place}/torch cannot be written" in found["evidence"]


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0+cu130"])
def test_torch_that_is_not_known(machine, package, version):
    package(version)
    report = machine.examine()
    assert version in report.one("unknown-torch", "warning")["evidence"]
    assert version in report.one("versions", "ok")["evidence"]


@pytest.mark.parametrize(
    ("name", "version", "code"), [("torch", "", "no-torch"), ("triton", "2.0.0", "unknown-triton")]
)
def test_release_that_is_missing_or_unknown_beside_known_ones(monkeypatch, name, version, code):
    described = provenance.describe() | {"torch": "2.15.0", "triton": "3.9.0"}
    monkeypatch.setattr(provenance, "describe", lambda: described)
    assert [each.code for each in installation.check_versions({})] == ["versions"]
    described[name] = version
    found = {each.code: each for each in installation.check_versions({})}
    check_form(map(to_row, found.values()))
    assert found.keys() == {code, "versions"} and found[code].remedy.startswith("pip install ")


# AOTInductor's packages ----------------------------------------------------------------------------------------------


@needs_root
def test_noexec_temporary_directory_keeps_packages_from_loading(machine, package, mount):
    package("2.15.0")
    mount(machine.tmp, "noexec,mode=1777")
    found = machine.examine().one("noexec-packages", "warning")
    assert f"{machine.tmp} (tmpfs: rw,noexec" in found["evidence"] and found["remedy"].startswith("export TMPDIR=/")


@needs_root
@pytest.mark.skipif(sys.prefix.startswith("/tmp/"), reason="this Python is to be run there")
def test_packages_of_older_torch_are_unpacked_to_tmp_wherever_tmpdir_points(machine, package):
    package("2.12.0")
    noexec = 'mount --bind /tmp /tmp; mount -o remount,bind,noexec /tmp; exec "$@"'
    found = machine.examine(within=["unshare", "-m", "sh", "-c", noexec, "sh"]).one("noexec-packages", "warning")
    assert found["remedy"] == "mount -o remount,exec /tmp"
