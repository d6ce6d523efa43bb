"""One life of a real SGLang engine on a CPU: ``python sglang_engine.py MODEL HOW`` prints its tokens.

MODEL: a directory with a config.json; random weights are written there. HOW, as JSON: ``stats``, the file to which its
scheduler writes our counters once it has compiled; ``full``, a directory for which the disk is full, or ""; and ``suppress``, whether
dynamo logs errors, and runs eagerly, as with FlashInfer's attention. Its kernels for CPUs are on no package index: PyTorch's
attention takes their place. It compiles as it does for a GPU; what it does for a CPU, freezing, torch never caches. Each
process that it spawns imports this module, too.
"""

import contextlib
import json
import sys
import time
import types
from pathlib import Path

HOW = json.loads(sys.argv[2])


class NoKernels(types.ModuleType):
    """The package of the kernels, for those who import names of it: it has none that can be called."""

    __version__ = "0.4.10"
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


sys.modules.setdefault("sgl_kernel", NoKernels("sgl_kernel"))

# Before torch, which would choose directories for its caches.
from sglang.srt.compilation import torch_compile_decoration  # noqa: E402
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend  # noqa: E402
from sglang.srt.model_executor import cpu_graph_runner  # noqa: E402

capture = cpu_graph_runner.CPUGraphRunner.capture


def full_disk():
    from safecache.testing import failing

    return failing("write", "ENOSPC", below=HOW["full"])


def capture_and_tell(self):
    cpu_graph_runner.torch._dynamo.config.suppress_errors = HOW["suppress"]
    with full_disk() if HOW["full"] else contextlib.nullcontext():
        capture(self)
    safecache = sys.modules.get("safecache")
    Path(HOW["stats"]).write_text(json.dumps(safecache.stats() if safecache else {}))


cpu_graph_runner.CPUGraphRunner.capture = capture_and_tell
cpu_graph_runner.register_fake_ops = lambda tp_size: None  # of the kernels
cpu_graph_runner.patch_model = torch_compile_decoration.patch_model
cpu_graph_runner.set_torch_compile_config = torch_compile_decoration.set_torch_compile_config
TorchNativeAttnBackend.init_cpu_graph_state = lambda self, *sizes: None
TorchNativeAttnBackend.get_cpu_graph_seq_len_fill_value = lambda self: 1
TorchNativeAttnBackend.init_forward_metadata_capture_cpu_graph = lambda self, *batch: None


def main():
    import random_llama
    from sglang.srt.entrypoints.engine import Engine

    random_llama.write_weights(sys.argv[1])
    engine = Engine(
        model_path=sys.argv[1],
        skip_tokenizer_init=True,
        device="cpu",
        attention_backend="torch_native",
        dtype="bfloat16",
        random_seed=0,
        mem_fraction_static=0.1,
        max_total_tokens=1024,
        max_running_requests=4,
        context_length=128,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        grammar_backend="none",
        log_level="info",
        enable_torch_compile=True,
        torch_compile_max_bs=1,
        cuda_graph_bs_decode=[1],
    )
    asked = {"max_new_tokens": 8, "temperature": 0}
    (answer,) = engine.generate(input_ids=[[5, 6, 7, 8]], sampling_params=asked)
    print(json.dumps({"tokens": answer["output_ids"]}), flush=True)
    time.sleep(3)  # a server lives on after its last hit
    engine.shutdown()


if __name__ == "__main__":
    main()
