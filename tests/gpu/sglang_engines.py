"""Real engines of SGLang, stock and with safecache, one after the other: a JSON line of each start, and of each pair.

    python tests/gpu/sglang_engines.py PHASE[:PAIRS]... [--seconds S] [--base DIR] [--options JSON]

``engines.py`` says which phases there are. ``damaged`` flips a bit in each cubin, then in each of torch's entries. The
throughput is measured with torch.compile and CUDA graphs of decoding and of prefill, without those of prefill, without
torch.compile, and without both: each of these alone is ``graphs``, ``no-prefill-graphs``, ``no-compile``, ``eager``. SGLang
compiles where it captures a graph of decoding: for 1 and for 4 requests, as ``torch_compile_max_bs`` here says.

Needs SGLang (written for 0.5.23) in this Python, or on its PYTHONPATH, and nvcc for the kernels of its own. The scheduler is
a process of its own, as in a server: what is counted is counted there, and the CPU seconds are those until the engine has
answered. Attention is Triton's; ``--options '{"attention_backend": "fa3"}'`` takes SGLang's choice for Hopper. Without a GPU
all of it runs too, for those who change this file, with the parts that ``tests/faults/sglang_engine.py`` puts in place of
the CPU's kernels.

On an H200 a cold start takes 115 s, and a warm one 35 to 40 s.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

import engines

ON_GPU = {
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "context_length": 1024,
    "max_running_requests": 64,
    "chunked_prefill_size": 2048,
    # Each engine takes no more than these, since another may be up.
    "max_total_tokens": 65536,
    "mem_fraction_static": 0.6,
    "cuda_graph_bs_decode": [1, 4, 64],
    "cuda_graph_bs_prefill": [128, 512, 2048],
    "torch_compile_max_bs": 4,
}
ON_CPU = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "context_length": 128,
    "max_running_requests": 4,
    "max_total_tokens": 1024,
    "mem_fraction_static": 0.1,
    "disable_overlap_schedule": True,
    "cuda_graph_bs_decode": [1],
    "torch_compile_max_bs": 1,
}
NO_GRAPHS = {"disable_decode_cuda_graph": True, "disable_prefill_cuda_graph": True}
# The level first: SGLang's own lines do not say it.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"level": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "level"}},
    "root": {"level": "INFO", "handlers": ["stderr"]},
}


class Loaded:
    """An engine, whose scheduler has been started by run_scheduler."""

    def __init__(self, spec):
        if not spec["gpu"]:
            replace_cpu_kernels()
        from sglang.srt.entrypoints.engine import Engine

        class Told(Engine):
            run_scheduler_process_func = staticmethod(run_scheduler)

        options = {
            "model_path": spec["model"],
            "load_format": "auto" if engines.has_weights(spec["model"]) else "dummy",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "random_seed": 0,
            "grammar_backend": "none",
            "disable_radix_cache": True,
            "log_level": "info",
            "enable_torch_compile": True,
        }
        self.engine = Told(**(options | (ON_GPU if spec["gpu"] else ON_CPU) | spec["options"]))

    def generate(self, prompts, length, **more):
        asked = {"max_new_tokens": length, "temperature": 0, "ignore_eos": True}
        return self.engine.generate(input_ids=prompts, sampling_params=asked, **more)

    def rate(self, prompts, adapter):
        answers = self.generate(prompts, 16, return_logprob=True)
        return [[rated[0] for rated in answer["meta_info"]["output_token_logprobs"]] for answer in answers]

    def counted(self):
        with tempfile.TemporaryDirectory() as place:
            told = Path(place, "told")
            self.engine.collective_rpc("tell_counted", path=str(told))
            return json.loads(told.read_text()) | {"cpu": cpu_seconds()}


def run_scheduler(*given, **named):
    """A scheduler's process, which can say what it has counted."""
    from sglang.srt.managers import scheduler

    kernels, clock = engines.count_kernels(), engines.watch(SERVER)

    def tell_counted(self, path):
        Path(path).write_text(json.dumps({"kernels": kernels} | engines.counted() | clock.read()))

    scheduler.Scheduler.tell_counted = tell_counted
    scheduler.run_scheduler_process(*given, **named)


def cpu_seconds():
    """Of this process and of all that it has started: most of them end by SIGKILL, and are not counted after that."""
    import psutil

    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return round(sum(each.user + each.system + each.children_user + each.children_system for each in times), 2)


def replace_cpu_kernels():
    """Have an engine without a GPU come up, and compile."""
    sys.path.insert(0, str(engines.SOURCE / "tests" / "faults"))
    import sglang_engine
    from sglang.srt.model_executor.cpu_graph_runner import CPUGraphRunner

    CPUGraphRunner.capture = sglang_engine.capture


def environment(arm, run):
    logging = run.base / "logging.json"
    logging.write_text(json.dumps(LOGGING))
    return {
        "SGLANG_CACHE_DIR": str(arm.caches),
        "TORCHINDUCTOR_CACHE_DIR": str(arm.caches / "inductor"),
        "SGLANG_LOGGING_CONFIG_PATH": str(logging),
        "SGLANG_JIT_CACHE_DIR": str(arm.caches / "jit"),
        "TVM_FFI_CACHE_DIR": str(arm.caches / "tvm-ffi"),
        # SGLang has it below its own caches, where FlashInfer's import ends if they are read-only.
        "FLASHINFER_WORKSPACE_BASE": str(arm.base / "home"),
    }


SERVER = engines.Server(
    name="sglang",
    file=__file__,
    load=Loaded,
    environment=environment,
    settings={} if engines.has_gpu() else {"SGLANG_USE_CPU_ENGINE": "1"},
    expected=re.compile(r"^(INFO|DEBUG) |%\||it/s\]|^\s*$"),
    modes={
        "graphs": {},
        "no-prefill-graphs": {"disable_prefill_cuda_graph": True},
        "no-compile": {"enable_torch_compile": False},
        "eager": {"enable_torch_compile": False} | NO_GRAPHS,
    },
    first="no-compile",
    faults={"cubins": ("*.cubin",), "entries": ("fxgraph/*/*/*", "aotautograd/*/*")},
    # A Llama whose layers do without CUTLASS's package, which is large to carry.
    model={"architectures": ["GraniteForCausalLM"], "model_type": "granite"},
    seam="sglang.srt.model_executor.model_runner:ModelRunner.initialize",
    phases={
        "sglang.srt.model_executor.model_runner:ModelRunner.load_model": "weights",
        "sglang.srt.model_executor.model_runner:ModelRunner.init_cuda_graphs": "CUDA graphs",
        "sglang.kernels.jit.utils.compile.cache:compute_build_key": "other libraries",
        "sglang.kernels.jit.utils.compile.cache:find_prebuilt": "other libraries",
        "sglang.kernels.jit.utils.compile.ninja:build": "other libraries",
        "sglang.kernels.jit.utils.compile.loader:_load": "other libraries",
        "sglang.srt.managers.scheduler:Scheduler.run_batch": "tokens",
    },
    patience=420,
)

if __name__ == "__main__":
    engines.main(SERVER, engines.arguments(SERVER, __doc__))
elif __name__ == "__mp_main__" and not engines.has_gpu():
    # A process of an engine: what it is given to run imports the kernels.
    replace_cpu_kernels()
