"""Runs the functions here that its arguments name, each in a fork, and prints what each came to, a line of JSON each.

An argument may have assignments of variables after the name, for that fork alone.
"""

import json
import os
import sys
import traceback

import torch
import torch._inductor.cpu_vec_isa
from torch._dynamo.utils import counters

import safecache


def inference():
    import model

    torch.manual_seed(0)
    with torch.no_grad():
        torch.compile(model.Block().eval())(torch.ones(4, 32))


def training():
    import model

    torch.manual_seed(0)
    torch.compile(model.Block())(torch.ones(4, 32)).sum().backward()


def custom_op():
    import model

    torch.compile(model.with_own_operator)(torch.ones(4, 8, requires_grad=True)).sum().backward()


def dynamic():
    import model

    compiled = torch.compile(model.of_any_length, dynamic=True)
    compiled(torch.ones(4, 8))
    compiled(torch.ones(5, 8))


def profile():
    """Returns how many graphs were captured: 2 until a profile of the job says which size is dynamic."""
    import model

    torch.compiler.config.job_id = "a_job"
    compiled = torch.compile(model.of_any_length)
    for length in (4, 5, 6):
        compiled(torch.ones(length, 8))
    return counters["stats"]["unique_graphs"]


def cpp_wrapper():
    import model

    torch.manual_seed(0)
    with torch.no_grad(), torch._inductor.config.patch(cpp_wrapper=True):
        torch.compile(model.Block().eval())(torch.ones(4, 32))


def precompiled():
    """Returns how many graphs were captured."""
    import model
    from torch._dynamo.precompile_context import PrecompileContext

    torch._dynamo.config.caching_precompile = True
    torch.compile(model.ahead)(torch.ones(4, 8))
    PrecompileContext.save_to_dynamo_cache()
    return counters["stats"]["unique_graphs"]


def ahead_of_time():
    import model

    path = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ahead.bin")
    if not os.path.exists(path):
        if hasattr(torch._dynamo.config, "enable_aot_compile"):
            torch._dynamo.config.enable_aot_compile = True
        compiled = torch.compile(model.ahead, fullgraph=True).aot_compile(((torch.ones(4, 8),), {}))
        compiled.save_compiled_function(path)
    with open(path, "rb") as file:
        torch.compiler.load_compiled_function(file)(torch.ones(4, 8))


def kernel():
    """Compiles for a GPU that nobody has to have."""
    import kernels
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {"X": "*fp32", "Y": "*fp32", "N": "i32", "B": "constexpr"}
    source = ASTSource(fn=kernels.copy, signature=signature, constexprs={(3,): 64})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).hash


def amd_options():
    """Returns what is in Triton's key of the options of a kernel for an AMD GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    return make_backend(GPUTarget("hip", "gfx942", 64)).parse_options({"arch": "gfx942"}).hash()


def extension():
    from torch.utils.cpp_extension import load_inline

    load_inline("moving_extension", "int three() { return 3; }", functions=["three"])


WITHOUT_CPU_KERNELS = frozenset({"kernel", "amd_options", "extension"})


def _run(scene):
    outcome = {"scene": scene}
    name, *assignments = scene.split()
    try:
        os.environ.update(each.split("=", 1) for each in assignments)
        outcome["result"] = globals()[name]()
    except BaseException:
        outcome["error"] = traceback.format_exc()[-3000:]
    outcome["stats"] = dict(safecache.stats())
    print(json.dumps(outcome), flush=True)


if not WITHOUT_CPU_KERNELS.issuperset(scene.split()[0] for scene in sys.argv[1:]):
    # Torch does so at the first C++ kernel; up to 2.12 it takes 20 s of CPU, which each child would spend.
    torch._inductor.cpu_vec_isa.valid_vec_isa_list()
for argument in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        _run(argument)
        sys.exit(0)
    os.waitpid(child, 0)
