"""What a worker answers, and that one job leaves nothing behind for the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import triton
import triton.language as tl
from conftest import SOURCE
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from isolation.corpus.cases import case
from isolation.encoding_process import WORKER, Worker
from safecache.isolation import encoding, protocol, values

TARGET = GPUTarget("cuda", 90, 32)


@triton.jit
def store(p, N: tl.constexpr):
    tl.store(p, N)


@triton.jit
def wrong(p, N: tl.constexpr):
    tl.store(p, tl.arange(0, 3))


@triton.jit
def untold(p, N: tl.constexpr):
    tl.static_assert(N == 1, "N is to be 1")


@triton.jit
def bad_assembly(p, N: tl.constexpr):
    tl.store(
        p, tl.inline_asm_elementwise("nonsense $0, $1;", "=r,r", [tl.load(p)], dtype=tl.int32, is_pure=False, pack=1)
    )


@triton.jit
def talks(p, N: tl.constexpr):
    tl.static_print("N is", N)
    tl.store(p, N)


@triton.jit
def asks(p, N: tl.constexpr):
    if tl.target_info.is_cuda():
        tl.store(p, N)


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture
def compile(worker, tmp_path):
    """Encode a kernel here and compile it there."""

    def compile(kernel, change=None, change_job=None, **options):
        what = case(kernel, "*i32", N=options.pop("N", 1))
        source = ASTSource(what.kernel, what.signature, what.constants, what.attributes)
        parsed = make_backend(TARGET).parse_options({"enable_fp_fusion": True, **options})
        encoded = encoding.encode(source, TARGET, vars(parsed))
        if change is not None:
            change(encoded)
        directory = tempfile.mkdtemp(dir=tmp_path)
        job = {"source": encoded, "target": ["cuda", 90, 32], "key": "k", "triton_key": "t", "backend_key": "b"}
        if change_job is not None:
            change_job(job)
        reply = worker.run(job, directory)
        return reply | {"files": {path.suffix: path for path in Path(directory).glob("*/*.*")}}

    return compile


def metadata(reply):
    return json.loads(reply["files"][".json"].read_text())


def test_files_are_under_the_key_of_the_parent_whatever_the_worker_computes(compile):
    reply = compile(store)
    assert metadata(reply)["hash"] == "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a"
    assert len(reply["key"]) == 64 and reply["key"] != metadata(reply)["hash"]
    assert [stage for stage, _ in reply["times"]["lowering_stages"]] == ["ttir", "ttgir", "llir", "ptx", "cubin"]


@pytest.mark.parametrize(
    ("kernel", "error", "text", "stage"),
    [
        pytest.param(wrong, "triton.compiler.errors.CompilationError", "power of 2", "source", id="front end"),
        pytest.param(
            untold, "triton.compiler.errors.CompileTimeAssertionFailure", "N is to be 1", "source", id="assertion"
        ),
        pytest.param(bad_assembly, "triton.runtime.errors.PTXASError", "nonsense", "cubin", id="ptxas"),
    ],
)
def test_error_is_told_by_its_class_its_text_and_the_stage(compile, kernel, error, text, stage):
    reply = compile(kernel, N=2)
    assert reply["error"]["type"] == error and text in reply["error"]["message"]
    assert reply["error"]["stage"] == stage


def test_worker_goes_on_after_an_error(compile):
    assert "error" in compile(wrong)
    assert "key" in compile(store)


def test_what_a_kernel_prints_is_told_with_the_reply_and_repeated_once(compile, capsys):
    reply = compile(talks, N=4)
    protocol.repeat_remarks(reply)
    assert capsys.readouterr().out == "N is 4\n"
    assert "output" not in compile(store)


def test_warnings_of_a_compile_are_repeated_as_warnings():
    with protocol.catch_remarks() as heard:
        warnings.warn_explicit("beware", DeprecationWarning, "kernel.py", 7)
    with pytest.warns(DeprecationWarning, match="beware") as caught:
        protocol.repeat_remarks(json.loads(json.dumps(heard)))
    assert (caught[0].filename, caught[0].lineno) == ("kernel.py", 7)


def test_knobs_of_one_job_are_not_those_of_the_next(compile):
    def only_binary(encoded):
        encoded["knobs"]["compilation"]["store_binary_only"] = True

    assert ".ptx" not in compile(store, only_binary)["files"]
    assert ".ptx" in compile(store)["files"]


def test_knob_that_is_set_in_python_alone_travels(compile, monkeypatch):
    assert ".loc" in compile(store)["files"][".ptx"].read_text()
    monkeypatch.setattr(triton.knobs, "propagate_env", False)
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        assert "TRITON_DISABLE_LINE_INFO" not in os.environ
        assert ".loc" not in compile(store)["files"][".ptx"].read_text()


def test_kernel_that_asks_which_gpu_there_is_gets_the_answer_of_the_parent(compile):
    reply = compile(asks, lambda encoded: encoded.update(driver=["cuda", 90, 32]))
    assert "st.global" in reply["files"][".ptx"].read_text()
    other = compile(asks, lambda encoded: encoded.update(driver=["hip", "gfx942", 64]))
    assert "st.global" not in other["files"][".ptx"].read_text()


def test_kernel_that_asks_which_gpu_there_is_where_nobody_knows_is_not_compiled(compile):
    reply = compile(asks, lambda encoded: encoded.update(driver=None))
    assert "which GPU is the current one is not known" in reply["error"]["message"]


def test_worker_computes_another_key_where_an_option_is_another(compile):
    one = compile(store)["key"]
    assert compile(store)["key"] == one
    assert compile(store, num_stages=1)["key"] != one


def test_worker_takes_the_hash_of_triton_from_the_parent(compile):
    """It has a part in the key. To compute it takes as long as several compiles."""

    def other(job):
        job["triton_key"] = "another"

    assert compile(store, change_job=other)["key"] != compile(store)["key"]


def test_worker_imports_neither_torch_nor_the_module_of_a_kernel(tmp_path):
    code = WORKER + "\nprint(json.dumps(sorted(sys.modules)), file=sys.__stdout__)"
    what = case(store, "*i32", N=1)
    source = ASTSource(what.kernel, what.signature, what.constants, what.attributes)
    encoded = encoding.encode(source, TARGET, vars(make_backend(TARGET).parse_options({"enable_fp_fusion": True})))
    job = {"source": encoded, "target": ["cuda", 90, 32], "key": "k", "triton_key": "t", "backend_key": "b"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, json.dumps([str(SOURCE), *sys.path])],
        input=json.dumps({"job": job, "directory": str(tmp_path)}) + "\n",
        env={**os.environ, "SAFECACHE": "0"},
        text=True,
        capture_output=True,
        timeout=120,
    )
    reply, modules = map(json.loads, done.stdout.splitlines())
    assert "key" in reply, reply
    assert {name.partition(".")[0] for name in modules} & {"torch", "isolation", "pytest", "site", "pickle"} == set()


@pytest.mark.parametrize(
    "encoded", [{"module": "os"}, {"triton": ["os", "system"]}, {"instance": ["os", "stat_result", {}]}]
)
def test_value_can_name_nothing_but_what_is_triton_s(encoded):
    with pytest.raises(ValueError, match="os is no module of Triton's"):
        values.Decoder(lambda number: number).decode(encoded)
