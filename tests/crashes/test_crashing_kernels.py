"""The crashing kernels do crash Triton, each in a fresh process without us, on every release."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crashes.crash_names import DEADLY

SCRIPT = Path(__file__).with_name("crashing_kernels.py")


@pytest.fixture
def stock(tmp_path):
    """Compile one of them with stock Triton."""

    def compile(name, timeout=120, memory=None):
        def limit():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))

        environment = {"TRITON_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        command = [sys.executable, str(SCRIPT), name]
        return subprocess.run(
            command, env=environment, timeout=timeout, preexec_fn=limit, capture_output=True, text=True
        )

    return compile


def test_sound_kernel_compiles(stock):
    done = stock("sound")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", DEADLY)
def test_process_is_aborted(stock, name):
    assert stock(name).returncode == -signal.SIGABRT


def test_process_dies_while_ir_is_read(stock):
    assert stock("empty-module").returncode == -signal.SIGSEGV


def test_signal_in_a_pass_is_an_error_that_nobody_skips(stock):
    done = stock("recovered")
    assert done.returncode == 1 and "RuntimeError: PassManager::run failed" in done.stderr


@pytest.mark.parametrize(("name", "error"), [("wrong-instruction", "PTXASError"), ("wrong-types", "CompilationError")])
def test_ordinary_failure_is_an_error_of_tritons(stock, name, error):
    done = stock(name)
    assert done.returncode == 1 and error in done.stderr


def test_compile_hangs(stock):
    """Many times as long as a sound one, with its import of Triton, takes."""
    with pytest.raises(subprocess.TimeoutExpired):
        stock("hang", timeout=10)


def test_compile_takes_gigabytes(stock):
    done = stock("memory", memory=10**9)
    assert done.returncode not in (0, 2) and "std::bad_alloc" in done.stderr
