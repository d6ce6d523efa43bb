"""Real kernels that Triton 3.6 to 3.9 do not compile: they end the process, hang it, or take gigabytes of memory.

``python crashing_kernels.py NAME…`` compiles each in a fork of its own and says how that ended; none needs a GPU.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def scale(x, y, N: tl.constexpr):
    """A sound one."""
    index = tl.arange(0, N)
    tl.store(y + index, tl.load(x + index) * 2)


@triton.jit
def too_many_constraints(x, y, N: tl.constexpr):
    """LLVM: UNREACHABLE executed at Support/Error.h, SIGABRT, when it makes the LLVM IR."""
    index = tl.arange(0, N)
    loaded = tl.load(x + index)
    made = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r,r", [loaded], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + index, made)


@triton.jit
def unknown_operand(x, y, N: tl.constexpr):
    """LLVM ERROR: Invalid $ operand number, SIGABRT, when it makes the PTX."""
    index = tl.arange(0, N)
    loaded = tl.load(x + index)
    made = tl.inline_asm_elementwise("mov.b32 $0, $7;", "=r,r", [loaded], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + index, made)


@triton.jit
def narrow_register(x, y, N: tl.constexpr):
    """An assertion in LLVM's SelectionDAGBuilder, SIGABRT, when it makes the PTX."""
    index = tl.arange(0, N)
    loaded = tl.load(x + index)
    made = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,q", [loaded], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + index, made)


@triton.constexpr_function
def operand(number):
    return f"mov.b32 $0, ${number};"


@triton.jit
def read_here(x, y, N: tl.constexpr):
    """As unknown_operand, but with a call into Python: it travels as the IR that the front end makes of it."""
    index = tl.arange(0, N)
    made = tl.inline_asm_elementwise(operand(7), "=r,r", [tl.load(x + index)], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + index, made)


@triton.jit
def some_configurations(x, y, N: tl.constexpr, KIND: tl.constexpr):
    """One of those above, or a sound one."""
    if KIND == 1:
        too_many_constraints(x, y, N)
    elif KIND == 2:
        unknown_operand(x, y, N)
    else:
        scale(x, y, N)


@triton.jit
def wrong_instruction(x, y, N: tl.constexpr):
    """An ordinary failure: ptxas knows no such instruction."""
    index = tl.arange(0, N)
    loaded = tl.load(x + index)
    made = tl.inline_asm_elementwise("nonsense.b32 $0, $1;", "=r,r", [loaded], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(y + index, made)


@triton.jit
def wrong_types(x, y, N: tl.constexpr):
    """Another: a CompilationError of the front end."""
    tl.store(y + tl.arange(0, N), tl.arange(0, 2 * N))


@triton.jit
def square(x, y, N: tl.constexpr):
    """With num_ctas=3 an assertion in a pass of MLIR, which catches the SIGABRT."""
    index = tl.arange(0, N)
    offsets = index[:, None] * N + index[None, :]
    loaded = tl.load(x + offsets)
    tl.store(y + offsets, tl.dot(loaded, loaded))


@triton.jit
def softmax(x, y, N: tl.constexpr):
    """With 262144 elements in one warp it takes minutes."""
    index = tl.arange(0, N)
    loaded = tl.exp(tl.load(x + index))
    tl.store(y + index, loaded / tl.sum(loaded, 0))


@triton.jit
def long_assembly(x, y, N: tl.constexpr):
    """It takes gigabytes: LLVM has a copy of the text for each use of it."""
    index = tl.arange(0, N)
    loaded = tl.load(x + index)
    made = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;" + " " * 300_000_000, "=r,r", [loaded], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(y + index, made)


STEPS = tl.constexpr(10**9)


@triton.jit
def add_step(total, step: tl.constexpr):
    """What is called by another kernel travels with it."""
    return total + step


@triton.jit
def endless(x, y, N: tl.constexpr):
    """The front end unrolls it for hours."""
    index = tl.arange(0, N)
    total = tl.load(x + index)
    for step in tl.static_range(STEPS):
        total = add_step(total, step)
    tl.store(y + index, total)


INTEGERS = {"x": "*i32", "y": "*i32", "N": "constexpr"}
FLOATS = {"x": "*fp32", "y": "*fp32", "N": "constexpr"}
HALVES = {"x": "*fp16", "y": "*fp32", "N": "constexpr"}

# By name: the kernel, its signature, its constants and options.
CASES = {
    "sound": (scale, INTEGERS, {"N": 128}, {}),
    "too-many-constraints": (too_many_constraints, INTEGERS, {"N": 128}, {}),
    "unknown-operand": (unknown_operand, INTEGERS, {"N": 128}, {}),
    "narrow-register": (narrow_register, INTEGERS, {"N": 128}, {}),
    "read-here": (read_here, INTEGERS, {"N": 128}, {}),
    "recovered": (square, HALVES, {"N": 128}, {"num_ctas": 3}),
    "wrong-instruction": (wrong_instruction, INTEGERS, {"N": 128}, {}),
    "wrong-types": (wrong_types, INTEGERS, {"N": 128}, {}),
    "hang": (softmax, FLOATS, {"N": 262144}, {"num_warps": 1}),
    "endless": (endless, INTEGERS, {"N": 128}, {}),
    "memory": (long_assembly, INTEGERS, {"N": 128}, {}),
}
# A file that IRSource parses in its constructor, and dies of (SIGSEGV).
EMPTY_MODULE = "module { }\n"
TARGET = GPUTarget("cuda", 90, 32)


def compile(name, **options):
    """The kernel of this name, from the cache or anew."""
    if name == "empty-module":
        with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
            file.write(EMPTY_MODULE)
            file.flush()
            return triton.compile(file.name, target=TARGET)
    kernel, signature, constants, own = CASES[name]
    source = ASTSource(kernel, signature, constexprs=constants)
    return triton.compile(source, target=TARGET, options=own | options)


def autotuned(*kinds):
    """some_configurations with these KINDs to choose from."""
    configs = [triton.Config({"KIND": kind}, num_warps=4) for kind in kinds]
    return triton.autotune(configs=configs, key=["N"])(some_configurations)


def ending(name):
    """Of a process that compiles it with 3 s of the CPU: the exit code or signal, and what is said."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (3, 10))
            try:
                compile(name)
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read().decode(errors="replace")


if __name__ == "__main__":
    print(json.dumps({name: ending(name) for name in sys.argv[1:]}))
