"""A crash is remembered if it happened twice, or with its limit; a second run is made only where it tells something."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from safecache import session
from safecache.errors import TritonCompileCrash
from safecache.isolation import client, compiling, crashes, encoding
from safecache.isolation.client import Ending, Limits, Outcome, Request

ABORTED, KILLED = Ending("signal", 6), Ending("signal", 9)


@pytest.fixture
def root(monkeypatch, tmp_path):
    session.reset()
    return str(tmp_path)


@pytest.fixture
def crash(monkeypatch, root):
    """Compile with a service whose runs end like this, one after the other; the hashes that are remembered then."""

    def compile(*endings):
        left = list(endings)

        def run(self, job, directory, *, timeout, memory):
            ending = left.pop(0)
            return Outcome(None if ending else {"key": "", "folder": "", "metadata": ""}, ending, "", 0.1)

        monkeypatch.setattr(client.Service, "run", run)
        monkeypatch.setattr(encoding, "encode", lambda *rest: {"knobs": {"compilation": {}}})
        target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
        function = SimpleNamespace(arg_names=[], src="def k(): ...")
        source = SimpleNamespace(name="k", fn=function, signature={}, language=SimpleNamespace(name="TRITON"))
        backend = SimpleNamespace(target=target, hash=lambda: "12.8-90")
        request = Request(source, backend, SimpleNamespace(), "the key", "k.json", root, Limits(5.0, 10**9))
        with pytest.raises(TritonCompileCrash):
            compiling.obtain(request, None)
        assert left == []
        return crashes.list_hashes(root)

    return compile


@pytest.mark.parametrize("again", [ABORTED, Ending("signal", 11), Ending("exit", 1)], ids=str)
def test_crash_that_happens_twice_is_remembered(crash, again):
    assert len(crash(ABORTED, again)) == 1


def test_crash_that_happens_once_is_not_remembered(crash):
    assert crash(ABORTED, None) == []


@pytest.mark.parametrize("ending", [Ending("timeout", 5), Ending("memory", 10**9)], ids=str)
def test_limit_is_remembered_after_one_run(crash, ending):
    assert len(crash(ending)) == 1


def test_kill_by_somebody_else_is_neither_tried_again_nor_remembered(crash):
    assert crash(KILLED) == []


@pytest.mark.parametrize("again", [KILLED, Ending("timeout", 5), Ending("memory", 10**9)], ids=str)
def test_crash_whose_second_run_says_nothing_of_the_kernel_is_not_remembered(crash, again):
    assert crash(ABORTED, again) == []
