"""Torch's compile workers: only who compiles starts them. On a GPU torch does so at the beginning of each compile."""

from __future__ import annotations

import math
import os
import shutil

from helpers.together import said

from safecache import single_flight
from safecache.entries import searches
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from single_flight.crowd import Crowd

# Where the pool is started (and not: it would only be killed again), and what is compiled meanwhile.
COUNTED = """
from torch._inductor import async_compile, compile_fx
from torch._inductor.compile_worker import subproc_pool
under_way = ["lookup"]
def init(self, *args, **kwargs):
    warnings.append(f"starts in {under_way[-1]}")
subproc_pool.SubprocPool.__init__ = init
subproc_pool.SubprocPool.submit = lambda *_: async_compile.Future()
subproc_pool.SubprocPool.wakeup = subproc_pool.SubprocPool.shutdown = lambda self: None
async_compile.config.compile_threads = 2
codegen = compile_fx.fx_codegen_and_compile
def fx_codegen_and_compile(*args, **kwargs):
    under_way.append("codegen")
    return codegen(*args, **kwargs)
compile_fx.fx_codegen_and_compile = fx_codegen_and_compile
def on_gpu(graph, inputs):
    async_compile.AsyncCompile.wakeup()
    return compile_fx.compile_fx(graph, inputs)
"""
RUN = "y = torch.compile(model, backend=on_gpu)(x).sum(); y.backward()"


def starts(home, run=RUN, prepare=""):
    return said(Crowd(home, 1, run, COUNTED + prepare).answers())


def test_cold_start_has_them_from_the_beginning_and_a_warm_one_none(home):
    assert starts(home) == ["starts in lookup"]
    assert starts(home) == []


def test_kernel_that_is_not_found_has_them_started(home):
    starts(home)
    lookups = """
future = async_compile.Future()
future.set_result("launcher")
async_compile.CompiledTritonKernels.save("known", future)
compiler = async_compile.AsyncCompile()
under_way.append(compiler.triton("name", "known"))
warnings.append("found")
try:
    compiler.triton("name", "unknown")
except Exception:
    warnings.append("is compiled")
"""
    assert starts(home, RUN + lookups) == ["found", "starts in launcher", "is compiled"]


# The holder of a lease cannot be told of a process that waits, so that nobody waits for a graph that trains.
UNTOLD = "from safecache import single_flight\nsingle_flight.Lease.mark_waiter = lambda lease: False\n"


def test_who_trains_what_another_process_compiles_has_them_once_a_graph_is_not_found(home):
    """Its AOTAutograd entry may be saved only with the backward; its graphs may be found before."""
    starts(home)
    (key,) = os.listdir(home.cache / "aotautograd")
    shutil.rmtree(home.cache / "aotautograd")
    with single_flight.compile_scope(Kind.AOT_ENTRY, math.inf):
        assert single_flight.wait_or_lead(Ref(Kind.AOT_ENTRY, key, str(home.cache))) is not None
        assert starts(home, prepare=UNTOLD) == []
        for name in ("aotautograd", "fxgraph"):
            shutil.rmtree(home.cache / name)
        assert starts(home, prepare=UNTOLD) == ["starts in codegen"]


def test_packages_and_switched_off_caches_have_them_at_once(home):
    off = "\nimport torch._functorch.config\ntorch._functorch.config.enable_autograd_cache = False\n"
    starts(home)
    assert starts(home, prepare=off) == ["starts in lookup"]


def test_they_are_started_once():
    count: list[int] = []
    searches.postpone_workers(lambda: count.append(1))
    assert searches.has_postponed_workers()
    for _ in range(2):
        searches.start_workers()
    assert count == [1] and not searches.has_postponed_workers()
