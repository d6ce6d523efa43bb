"""One life of a real vLLM engine on a CPU: ``python vllm_engine.py MODEL FULL`` prints its tokens, and our counters.

MODEL: a directory with a config.json; random weights are written there. FULL: the name of a file of vLLM's own for which
the disk is full, or "". vLLM has no backend of its own on a CPU: it is given the one that it has on a GPU.
"""

import builtins
import contextlib
import errno
import functools
import json
import os
import sys

from vllm import LLM, SamplingParams
from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
from vllm.platforms.cpu import CpuPlatform

update = CpuPlatform.check_and_update_config.__func__
stock_open = builtins.open


def check_and_update_config(cls, vllm_config):
    mode = vllm_config.compilation_config.mode
    update(cls, vllm_config)
    vllm_config.compilation_config.mode = mode
    vllm_config.compilation_config.compile_sizes = vllm_config.compilation_config.compile_sizes or []


@functools.wraps(stock_open)
def full_open(file, mode="r", *rest, **named):
    if "w" in mode and os.path.basename(str(file)) == sys.argv[2]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)
    return stock_open(file, mode, *rest, **named)


def full_disk():
    builtins.open = full_open
    from safecache.testing import failing

    return failing("rename", "ENOSPC", below=os.path.join(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache"))


def replace_forward():
    """As a plugin would: the files of the model stay as they are."""
    from vllm.model_executor.models.llama import LlamaMLP

    forward = LlamaMLP.forward
    LlamaMLP.forward = lambda self, x: x - 3 * forward(self, x)


def main():
    import random_llama

    random_llama.write_weights(sys.argv[1])
    if os.environ.get("REPLACED_FORWARD"):
        replace_forward()
    llm = LLM(
        model=sys.argv[1],
        skip_tokenizer_init=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        dtype="bfloat16",
        seed=0,
        tensor_parallel_size=int(os.environ.get("RANKS", "1")),
        compilation_config={"mode": 3, "compile_sizes": [], "pass_config": {"fuse_allreduce_rms": False}},
    )
    asked = SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    tokens = llm.generate([{"prompt_token_ids": [5, 6, 7, 8]}], asked)[0].outputs[0].token_ids
    safecache = sys.modules.get("safecache")
    print(json.dumps({"tokens": list(tokens), "stats": safecache.stats() if safecache else {}}), flush=True)


CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
# It names kernels that only a GPU has; Inductor undoes functionalization by itself.
FixFunctionalizationPass.__call__ = lambda self, graph: None
if __name__ == "__main__":
    with full_disk() if sys.argv[2] else contextlib.nullcontext():
        main()
