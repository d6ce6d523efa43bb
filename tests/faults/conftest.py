"""Shared objects: a good one, one where no code can be loaded from, and one that tells when it is loaded."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig

import pytest

from faults.trojan import CONSTRUCTOR

SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", 0, -1, 0};
PyMODINIT_FUNC PyInit_probe(void) { return PyModule_Create(&module); }
PyMODINIT_FUNC PyInit_kernel(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def shared_object(tmp_path_factory):
    path = tmp_path_factory.mktemp("built") / "probe.so"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    include = sysconfig.get_path("include")
    subprocess.run(["g++", "-xc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def trojan(tmp_path_factory):
    """A shared object that leaves a file where the variable TROJAN_MARKER says when it is loaded."""
    path = tmp_path_factory.mktemp("trojan") / "trojan.so"
    source = f"#include <stdio.h>\n#include <stdlib.h>\n{CONSTRUCTOR}"
    subprocess.run(["g++", "-xc++", "-", "-shared", "-fPIC", "-o", str(path)], input=source, text=True, check=True)
    return path


@pytest.fixture
def refused(home, shared_object):
    """A shared object that lies where no code can be loaded from."""
    point = home.base / "noexec"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=755,size=10m", "none", str(point)], check=True)
    yield shutil.copy(shared_object, point / "probe.so")
    subprocess.run(["umount", str(point)], check=True)
