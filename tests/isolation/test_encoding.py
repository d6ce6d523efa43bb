"""What travels, and how; and what stays, with one reason that a user can act on."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.language.semantic import TritonSemantic
from triton.runtime.driver import driver
from triton.runtime.jit import constexpr_function

from isolation.corpus.cases import case
from safecache.isolation import encoding
from safecache.isolation.encoding import CannotTravel, FrontEndError, Kernels, encode
from safecache.isolation.job import Rebuilt

TARGET = GPUTarget("cuda", 90, 32)
SCALE = tl.constexpr(2)
BEYOND = tl.constexpr(math.inf)
UNFIT = object()


@triton.jit
def helper(x):
    return x * SCALE


@triton.jit
def kernel(p, N: tl.constexpr):
    tl.store(p, helper(tl.load(p)) + N)


@triton.jit
def infinite(p, N: tl.constexpr):
    tl.store(p, BEYOND)


@constexpr_function
def by_python(x):
    return x + 1


@triton.jit
def needs_python(p, N: tl.constexpr):
    tl.store(p, by_python(N))


@triton.jit
def python_helper(x):
    return by_python(x)


@triton.jit
def uses_python_helper(x):
    return python_helper(x)


@triton.jit
def names_it_twice(p: python_helper, N: tl.constexpr):
    tl.store(p, uses_python_helper(N))


@triton.jit
def broken(p, N: tl.constexpr):
    tl.store(p, UNFIT)


@triton.jit
def hides(p, N: tl.constexpr):
    if N == 2:
        UNFIT = N
    tl.store(p, UNFIT)


def source_of(kernel, **constants):
    what = case(kernel, "*i32", **{"N": 1, **constants})
    return ASTSource(what.kernel, what.signature, what.constants, what.attributes)


def encoded(kernel, **constants):
    options = make_backend(TARGET).parse_options({"enable_fp_fusion": True})
    return encode(source_of(kernel, **constants), TARGET, vars(options))


def sources(record):
    return [function["source"] for function in record["functions"]]


def test_encoded_kernel_is_json_by_the_standard_whatever_its_constants():
    record = encoded(infinite, N=math.nan)
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_kernel_travels_with_the_globals_and_helpers_that_it_uses_and_no_others():
    record = encoded(kernel)
    assert record["kind"] == "kernel"
    assert [function["name"] for function in record["functions"]] == ["kernel", "helper"]
    assert record["scopes"] == [
        {"tl": {"module": "triton.language"}, "helper": {"function": 1}, "SCALE": {"constexpr": 2}}
    ]


def test_changed_source_travels_the_next_time():
    before = encoded(kernel)
    helper._unsafe_update_src(helper.src.replace("* SCALE", "- SCALE"))
    kernel.hash = None
    try:
        assert "- SCALE" in sources(encoded(kernel))[1]
    finally:
        helper._unsafe_update_src(helper.src.replace("- SCALE", "* SCALE"))
        kernel.hash = None
    assert sources(encoded(kernel)) == sources(before)


def test_changed_global_travels_the_next_time(monkeypatch):
    encoded(kernel)
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(5))
    assert encoded(kernel)["scopes"][0]["SCALE"] == {"constexpr": 5}


def test_rebuilt_kernel_is_in_all_that_triton_asks_for_the_one_that_travelled():
    # Up to 3.8 the hash of a kernel depends on whether its helpers had been hashed before.
    for function in (kernel, helper):
        function.hash, function.used_global_vals = None, {}
    rebuilt = Rebuilt(json.loads(json.dumps(Kernels(kernel).encode_all()))).get_kernel()
    names = [
        "src",
        "starting_line_number",
        "arg_names",
        "constexprs",
        "noinline",
        "cache_key",
        "__qualname__",
        "module",
    ]
    assert [getattr(rebuilt, name) for name in names] == [getattr(kernel, name) for name in names]
    assert repr(rebuilt) == repr(kernel) and type(rebuilt) is type(kernel)


def test_kernel_that_calls_python_travels_as_its_ir():
    record = encoded(needs_python)
    assert record["kind"] == "lowered" and "tt.func public @needs_python" in record["text"]


def test_helper_that_calls_python_has_all_that_uses_it_travel_as_ir():
    """Also where it is named first in an annotation, which alone would not need it."""
    assert encoded(names_it_twice)["kind"] == "lowered"


def test_kernel_whose_front_end_fails_stays_and_the_error_is_the_reason():
    with pytest.raises(FrontEndError, match="its front end fails with CompilationError") as raised:
        encoded(broken)
    assert isinstance(raised.value.__cause__, triton.CompilationError)


def test_global_behind_a_local_is_left_out_but_not_where_triton_takes_any_global():
    """Without the knob, a kernel that came to read it would fail, in a worker as here."""
    record = encoded(hides, N=2)
    assert (record["kind"], record["scopes"][0]["UNFIT"]) == ("kernel", {"absent": None})
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.allow_non_constexpr_globals = True
        assert encoded(hides, N=2)["kind"] == "lowered"


def test_replaced_function_of_the_language_is_what_is_compiled():
    """The front end runs here, where it has been replaced."""

    def minus(self, *rest, **named):
        return type(self).sub(self, *rest, **named)

    assert encoded(kernel)["kind"] == "kernel"
    with mock.patch.object(TritonSemantic, "mul", minus):
        assert encoding.find_replaced_front_end() == "triton.language.semantic.TritonSemantic.mul"
        record = encoded(kernel)
        assert record["kind"] == "lowered" and "arith.subi" in record["text"] and "muli" not in record["text"]
    assert encoding.find_replaced_front_end() is None
    assert encoded(kernel)["kind"] == "kernel"


@pytest.mark.parametrize(
    "replacement",
    [
        pytest.param(lambda stock: mock.MagicMock(), id="mock"),
        pytest.param(lambda stock: lambda *rest, **named: stock(*rest, **named), id="function"),
        pytest.param(lambda stock: tl.core.builtin(lambda *rest, **named: stock(*rest, **named)), id="builtin"),
        pytest.param(lambda stock: helper, id="kernel"),
    ],
)
def test_replacement_is_noticed_whatever_it_is(monkeypatch, replacement):
    assert encoding.find_replaced_front_end() is None
    monkeypatch.setattr(tl, "load", replacement(tl.load))
    assert encoding.find_replaced_front_end() == "triton.language.load"


def test_kernel_of_triton_with_another_source_is_noticed():
    source = tl.cdiv.src
    tl.cdiv._unsafe_update_src(source + "\n    # changed")
    try:
        assert encoding.find_replaced_front_end().endswith(".cdiv")
    finally:
        tl.cdiv._unsafe_update_src(source)
    assert encoding.find_replaced_front_end() is None


def test_replaced_pass_of_the_backend_keeps_a_compile_here(monkeypatch):
    backend = type(make_backend(TARGET))
    monkeypatch.setattr(backend, "make_ttgir", staticmethod(lambda *rest: rest[0]))
    with pytest.raises(CannotTravel, match=r"CUDABackend\.make_ttgir is not as Triton was released"):
        encoded(kernel)


def hook(*rest):
    return "key", "hash"


@pytest.mark.parametrize(
    ("group", "name", "value", "reason"),
    [
        ("runtime", "add_stages_inspection_hook", hook, "add_stages_inspection_hook changes the stages"),
        ("runtime", "interpret", True, "TRITON_INTERPRET"),
        ("compilation", "use_ir_loc", "ttir", "USE_IR_LOC"),
        ("nvidia", "ptxas_options", ["-O1"], r"triton\.knobs\.nvidia\.ptxas_options is set to a list"),
    ],
)
def test_knob_that_cannot_travel_keeps_a_compile_here_and_is_named(group, name, value, reason):
    knobs = getattr(triton.knobs, group)
    with knobs.scope(), pytest.raises(CannotTravel, match=reason):
        setattr(knobs, name, value)
        encoded(kernel)


def test_knobs_that_only_this_process_needs_keep_nothing_here():
    with triton.knobs.compilation.scope(), triton.knobs.runtime.scope():
        triton.knobs.compilation.listener = hook
        triton.knobs.runtime.jit_cache_hook = hook
        record = encoded(kernel)
    assert "listener" not in record["knobs"]["compilation"]


def test_threads_encode_the_same_at_once():
    expected = encoded(kernel)
    with ThreadPoolExecutor(8) as threads:
        encoding._area.cache_clear()
        assert list(threads.map(encoded, [kernel] * 64)) == [expected] * 64


def test_error_of_the_user_s_own_code_keeps_a_compile_here_where_it_is_raised_again(monkeypatch):
    def name(specialization):
        raise LookupError("no name")

    monkeypatch.setattr(kernel, "_repr", name)
    with pytest.raises(CannotTravel, match="raises LookupError: no name"):
        encoded(kernel)


def test_source_of_another_class_keeps_a_compile_here():
    class Other(ASTSource):
        pass

    source = source_of(kernel)
    source.__class__ = Other
    with pytest.raises(CannotTravel, match=r"Other is no source of Triton's"):
        encode(source, TARGET, {})


def test_gpu_of_this_process_is_told_only_where_that_initialises_nothing():
    assert encoded(kernel)["driver"] is None
    active = mock.Mock(get_current_target=lambda: GPUTarget("cuda", 100, 32))
    cuda = mock.Mock()
    with mock.patch.object(driver, "_active", active), mock.patch.dict("sys.modules", {"torch.cuda": cuda}):
        cuda.is_initialized.return_value = False
        assert encoded(kernel)["driver"] is None
        cuda.is_initialized.return_value = True
        assert encoded(kernel)["driver"] == ["cuda", 100, 32]
