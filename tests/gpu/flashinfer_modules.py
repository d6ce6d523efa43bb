"""Modules of FlashInfer that nvcc compiles, stock and with safecache: a JSON line of each process.

    python tests/gpu/flashinfer_modules.py [--base DIR] [--rounds N]

Each process makes FlashInfer's first call of three modules, norm, page and one of attention, which builds and loads
them, and compares the results with torch's. ``cold``: an empty workspace. ``warm``: that workspace, each of the two in
turns. ``pack``: another workspace and home, with the pack of the cold start and misses as errors. ``both cold``: two
processes at once with one empty workspace. Needs FlashInfer (written for 0.7.2), nvcc and a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
WHO = ("stock", "safecache")


def call_modules() -> None:
    """What each process does: a line with the seconds of each first call, and what safecache counts."""
    began = time.perf_counter()
    if os.environ["WHO"] == "safecache":
        import safecache
    import flashinfer
    import torch

    torch.manual_seed(0)
    cuda = {"device": "cuda", "dtype": torch.float16}
    x, weight = torch.randn(8, 1024, **cuda), torch.randn(1024, **cuda)
    query, keys, values = (torch.randn(*shape, 64, **cuda) for shape in ((8,), (128, 8), (128, 8)))
    pages, positions = torch.zeros(8, 2, 16, 8, 64, **cuda), torch.arange(128, dtype=torch.int32, device="cuda")
    tables = (torch.arange(8, dtype=torch.int32), torch.tensor([0, 8], dtype=torch.int32), torch.tensor([16]))
    tables = tuple(table.to("cuda", torch.int32) for table in tables)

    def call_norm():
        wanted = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6) * weight.float()
        return flashinfer.rmsnorm(x, weight), wanted

    def call_page():
        flashinfer.append_paged_kv_cache(keys, values, torch.zeros_like(positions), positions, pages, *tables)
        return pages[:, 0].reshape(128, 8, 64), keys.float()

    def call_attention():
        weights = torch.softmax(torch.einsum("hd,khd->hk", query.float(), keys.float()) / 8, -1)
        wanted = torch.einsum("hk,khd->hd", weights, values.float())
        return flashinfer.single_decode_with_kv_cache(query, keys, values), wanted

    said: dict[str, object] = {"imports": round(time.perf_counter() - began, 2)}
    for call in (call_norm, call_page, call_attention):
        began = time.perf_counter()
        found, wanted = call()
        torch.cuda.synchronize()
        said[call.__name__.removeprefix("call_")] = round(time.perf_counter() - began, 3)
        torch.testing.assert_close(found.float(), wanted, rtol=1e-2, atol=1e-2)
    if os.environ["WHO"] == "safecache":
        said["stats"] = {name: n for name, n in safecache.stats().items() if n and ("code" in name or "miss" in name)}
    print(json.dumps(said))


def start(name: str, who: str, home: Path, processes: int = 1, **settings: str) -> None:
    """Start so many of these processes at once, and say what they have said."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SAFECACHE", "FLASHINFER_", "XDG_"))}
    environment |= {"HOME": str(home), "TMPDIR": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "cache"), "WHO": who}
    environment["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, __file__, "--call"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=environment | settings, cwd=home, **pipes) for _ in range(processes)]
    outputs = [process.communicate() for process in running]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
    line = {"start": name, "who": who, "seconds": round(time.perf_counter() - began, 2), "cpu": cpu}
    line["said"] = [json.loads(out.splitlines()[-1]) if out else error[-2000:] for out, error in outputs]
    line["lines"] = sorted({each[:300] for _, error in outputs for each in error.splitlines() if "safecache" in each})
    print(json.dumps(line), flush=True)


def main() -> None:
    """All starts, with each of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--call", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        return call_modules()
    with tempfile.TemporaryDirectory(dir=arguments.base) as place:
        base = Path(place)
        for who in WHO:
            (base / who).mkdir()
            start("cold", who, base / who)
        for _ in range(arguments.rounds):
            for who in WHO:
                start("warm", who, base / who)
        home, pack = base / "elsewhere", base / "caches.safecache"
        shutil.copytree(base / "safecache" / ".config", home / ".config")
        settings = {"HOME": str(base / "safecache"), "TORCHINDUCTOR_CACHE_DIR": str(base / "safecache" / "cache")}
        command = [sys.executable, "-m", "safecache", "pack", "-o", str(pack)]
        subprocess.run(command, env=os.environ | settings, cwd=SOURCE, check=True, stdout=sys.stderr)
        print(json.dumps({"pack": pack.stat().st_size}), flush=True)
        start("pack", "safecache", home, SAFECACHE_TIERS=str(pack), SAFECACHE_STRICT="misses=1")
        for who in WHO:
            (base / f"both-{who}").mkdir()
            start("both cold", who, base / f"both-{who}", processes=2)


if __name__ == "__main__":
    main()
