"""Everything that torch keeps on disk: made in a first process, ``cold``, and used in a second, ``warm``."""

from __future__ import annotations

import json
import os
import sys
from functools import partial

import safecache  # noqa: F401 # isort: skip - before torch, as in a server
import torch
from scenes import artifact_scenes, load_scenes, model_scenes, sink_scenes
from torch._dynamo.utils import counters

SOURCE = 'extern "C" int answer() { return 42; }\n'
DOORS = ("function", "model", "bundled", "graph_module", "precompile", "profile")


def steps(base: str, warm: bool):
    """(name, what to do), in the order in which to do it."""
    place = partial(os.path.join, base, "artifacts")
    os.makedirs(place(), exist_ok=True)
    yield "entries", model_scenes.compile_model
    # Before any door: a loaded function installs globals of its own numbering, and up to torch 2.14 Dynamo ends a later
    # compile of the same module with "Name '__builtins_dict___6' already exists in scope", in stock torch too.
    yield "C++ wrapper", sink_scenes.call_cpp_wrapper
    for door in DOORS:
        does = getattr(artifact_scenes, f"{'load' if warm else 'save'}_{door}")
        yield door, partial(does, place(door))
    yield "mega-cache", partial(model_scenes.load_mega_cache if warm else model_scenes.save_mega_cache, place("mega"))
    for form in "binary", "unpacked":
        does = partial(model_scenes.load_standalone, fmt=form) if warm else partial(_save_standalone, fmt=form)
        yield f"standalone, {form}", partial(does, place(f"standalone-{form}"))
    if hasattr(torch.compiler, "precompile"):
        does = sink_scenes.load_precompiled if warm else sink_scenes.precompile
        yield "precompile", partial(does, place("precompiled.py"), place("precompiled.cache"))
    does = (lambda path: sink_scenes.load_models([path])) if warm else sink_scenes.package_model
    yield "package", partial(does, place("package.pt2"))
    yield "library", partial(_library, f"{base}.library", warm)
    yield "operator", sink_scenes.run_operator
    yield "halide", partial(sink_scenes.run_halide, place("halide"))
    yield "vector instructions", load_scenes.find_vector_instructions
    yield "precompiled header", partial(load_scenes.build_with_header, place("headers"))
    yield "kernel in a pool", load_scenes.load_kernel_asynchronously
    yield "extension", partial(load_scenes.load_operators, SOURCE, "operators", "operators")
    yield "extension of Python", partial(load_scenes.build, "extension")
    if _has_triton():
        from scenes import kernel_scenes

        yield "Triton's kernel", kernel_scenes.compile_kernel
        yield "Triton's module", kernel_scenes.build_module
    # The last: some of the others clear it.
    os.makedirs(place("memo"), exist_ok=True)
    yield "memo", partial(artifact_scenes.load_memo if warm else artifact_scenes.save_memo, place("memo"))


def _save_standalone(path, fmt):
    model_scenes.standalone(save=path, fmt=fmt)


def _library(note: str, warm: bool):
    if not warm:
        with open(note, "w") as file:
            file.write(sink_scenes.build_library())
        return
    with open(note) as file:
        sink_scenes.load_library(file.read())


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    base, warmth, *chosen = sys.argv[1:]
    for name, step in steps(base, warmth == "warm"):
        if chosen and name not in chosen:
            continue
        torch._dynamo.reset()
        counters.clear()
        print(json.dumps([name, step()]), flush=True)
