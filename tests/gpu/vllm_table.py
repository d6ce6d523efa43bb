"""Server by mode, fault and kind of start: does vLLM come up, with the right tokens, how fast, with how many lines?

    python tests/gpu/vllm_table.py [MODE...] [--at-once N] [--seconds S] [--base DIR] [--who WHO] [--start START]...

A JSON line of each start, then a table. The modes, each with stock and with safecache, in fresh processes with caches of
their own: ``default``, ``apart`` (VLLM_USE_MEGA_AOT_ARTIFACT=0), ``no-aot`` (VLLM_USE_AOT_COMPILE=0), ``lora`` (with an
adapter), ``ngram`` and ``draft`` (speculative decoding). The starts, in order:

* ``cold``, ``settle``: fresh caches, then what a start without a compile needs. ``warm``; ``read-only``: as in an image.
* ``damaged``: one bit is flipped in each of vLLM's models and artifacts and of torch's entries. ``kernels``: in each cubin.
* ``before``: with the caches of a start whose options were others: no adapters, or another number of speculative tokens.
* ``damaged, strict``, ``kernels, strict``: the same faults in strict mode, which is not to come up.
* ``pack``: another home with nothing but safecache's keys, and the caches' pack below. Then ``serve``: ``vllm serve``
  from that home, twice: what its /metrics says, and after SIGKILL what ``safecache stats`` says.

Right are tokens as likely as those of the same mode's cold starts. Times are of N engines at once: only ``vllm_engines.py`` compares.
On an H200, five at once, ``default apart no-aot`` take about 400 s. Needs what that file needs.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import vllm_engines
from engines import are_equal
from vllm_engines import WHO, Engine, Run, damage, say, write_model

MODES = {
    "default": {},
    "apart": {"VLLM_USE_MEGA_AOT_ARTIFACT": "0"},
    "no-aot": {"VLLM_USE_AOT_COMPILE": "0"},
    "lora": {"options": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}},
    "ngram": {
        "options": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}}
    },
    "draft": {"options": {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}}},
}
# Each engine says how much it takes, since others come and go while it looks.
MEMORY = {"kv_cache_memory_bytes": 1 << 30}
STRICT = {"SAFECACHE_STRICT": "1"}


class Table:
    """What has been found, and what all of its starts share."""

    def __init__(self, run, until, wanted):
        self.run, self.until, self.wanted = run, until, wanted
        self.rows, self.right, self.lock = [], {}, threading.Lock()
        run.model(4)
        self.adapter = write_adapter(run.base / "adapter", run.gpu)
        self.draft = run.base / "draft"
        write_model(self.draft, 1, *((512, 8, 32000) if run.gpu else (64, 2, 256)))

    def how(self, mode, **changed):
        how = dict(MODES[mode])
        options = (MEMORY if self.run.gpu else {}) | how.pop("options", {}) | changed
        if mode == "draft":
            options["speculative_config"] = {"model": str(self.draft)} | options["speculative_config"]
        return how | {"options": options} | ({"adapter": str(self.adapter)} if mode == "lora" else {})

    def before(self, mode):
        """The same mode with other options, or none."""
        if mode == "lora":
            return self.how("default")
        if "speculative_config" in MODES[mode].get("options", {}):
            fewer = MODES[mode]["options"]["speculative_config"] | {"num_speculative_tokens": 2}
            return self.how(mode, speculative_config=fewer | ({"model": str(self.draft)} if mode == "draft" else {}))
        return None

    def start(self, mode, name, who, arm, how, **more):
        """One start, if it is wanted. Nothing is started once the time is up."""
        if self.wanted and not {name, name.partition(",")[0]} & {*self.wanted}:
            return {"up": None}
        if time.monotonic() > self.until:
            return self.add(mode, name, who, {"left out": True, "lines": []})
        return self.add(mode, name, who, Engine(self.run, arm, who, **how, **more).end())

    def add(self, mode, name, who, found):
        lines = found.pop("lines")
        with self.lock:
            if name == "cold" and "rated" in found:
                self.right.setdefault(mode, []).append(found["rated"])
            counted = {kind: number for kind, number in found.pop("safecache", {}).items() if number}
            row = {"mode": mode, "start": name, "who": who, **found, "safecache": counted}
            row["safecache_lines"] = [line[:240] for line in lines if "safecache" in line]
            row["lines"] = len(lines)
            if "up" not in found:
                row["last"] = [line[:240] for line in lines[-6:]]
            self.rows.append(row)
            say(**row)
        return row

    def chain(self, mode, who):
        """All starts of one mode, one after the other."""
        how, base = self.how(mode), self.run.arm()
        for name in ("cold", "settle", "warm"):
            if "up" not in self.start(mode, name, who, base, how):
                return
        self.start(mode, "read-only", who, base, how, disk="read-only")
        before = self.before(mode)
        if before is not None:
            other = self.run.arm()
            self.start(mode, "before, cold", who, other, before)
            self.start(mode, "before", who, other, how)
        for name, patterns in (
            ("damaged", ("model", "artifact_*", "fxgraph/*/*/*", "aotautograd/*/*")),
            ("kernels", ("*.cubin",)),
        ):
            for suffix, settings in (("", {}), (", strict", STRICT)) if who == "safecache" else (("", {}),):
                arm = base.copy(f"{base.base.name}-{name}{suffix[2:]}")
                for pattern in patterns:
                    for path in arm.base.rglob(pattern):
                        damage(path)
                self.start(mode, name + suffix, who, arm, how, **settings)
        if who == "safecache":
            self.packed(mode, base, how)

    def packed(self, mode, base, how):
        if self.wanted and "pack" not in self.wanted:
            return
        pack = base.base / "model.safecache"
        done = command(self.run, base, "pack", "-o", str(pack))
        if done.returncode:
            self.add(mode, "pack", "safecache", {"lines": (done.stdout + done.stderr).splitlines()})
            return
        host = self.run.arm()
        shutil.copytree(base.base / "home" / ".config", host.base / "home" / ".config")
        self.start(mode, "pack", "safecache", host, how, SAFECACHE_TIERS=str(pack))
        if mode == "default":
            for name in ("serve", "serve again"):
                self.add(mode, name, "safecache", serve(self.run, host, SAFECACHE_TIERS=str(pack)))

    def show(self):
        print(
            f"{'mode':8} {'start':18} {'who':10} {'up':5} {'tokens':7} {'lines':>5} {'seconds':>8} {'kernels compiled':>17}"
        )
        for row in sorted(self.rows, key=lambda row: list(MODES).index(row["mode"])):
            right = "-"
            if "rated" in row:
                is_right = any(are_equal(row["rated"], each) for each in self.right.get(row["mode"], ()))
                right = "right" if is_right else "OTHER"
            up = "?" if "left out" in row else "up" if "up" in row else "down"
            compiled = row.get("kernels", {}).get("compiled", "-")
            print(
                f"{row['mode']:8} {row['start']:18} {row['who']:10} {up:5} {right:7} {row['lines']:5} "
                f"{row.get('engine', '-'):>8} {compiled:>17}"
            )


def command(run, arm, *words):
    """A command of safecache there."""
    environment = arm.environment("safecache", run)
    line = [sys.executable, "-m", "safecache", *words]
    return subprocess.run(line, env=environment, cwd=arm.base, capture_output=True, text=True, timeout=120, check=False)


def serve(run, arm, **settings):
    """The server until it has answered: what its metrics say of safecache, and what the journal says after SIGKILL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(run.model(4)), "--port", str(port)]
    line += ["--skip-tokenizer-init", "--max-model-len", "1024", "--max-num-seqs", "64"]
    line += ["--max-num-batched-tokens", "2048", "--dtype", "bfloat16", "--seed", "0"]
    line += ["--kv-cache-memory-bytes", str(MEMORY["kv_cache_memory_bytes"]), "--gpu-memory-utilization", "0.1"]
    environment = arm.environment("safecache", run) | settings | {"SAFECACHE_METRICS": "1"}
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    began, log = time.monotonic(), arm.base / "log"
    with open(log, "wb") as file:
        server = subprocess.Popen(line, env=environment, cwd=arm.base, stdout=file, stderr=file, start_new_session=True)
    try:
        up = wait_for(server, f"http://127.0.0.1:{port}/health", began + 200)
        found = {"up": up, "engine": round(time.monotonic() - began, 1)} if up else {}
        if up:
            text = fetch(f"http://127.0.0.1:{port}/metrics")
            found["metrics"] = [line for line in text.splitlines() if line.startswith("safecache_")]
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    found["stats"] = command(run, arm, "stats", "--json").stdout[:2000]
    lines = log.read_text(errors="replace").splitlines()
    return found | {"lines": [line for line in lines if not vllm_engines.EXPECTED.search(line)]}


def wait_for(server, address, until):
    while server.poll() is None and time.monotonic() < until:
        try:
            fetch(address)
        except OSError:
            time.sleep(0.5)
        else:
            return True
    return False


def fetch(address):
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


def write_adapter(place, gpu):
    """A LoRA adapter of random weights for the model's attention."""
    import torch
    from safetensors.torch import save_file

    place.mkdir()
    rank, width = 8, 512 if gpu else 64
    generator = torch.Generator().manual_seed(0)
    weights = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{side}.weight": torch.randn(
            (rank, width) if side == "A" else (width, rank), generator=generator, dtype=torch.bfloat16
        )
        for layer in range(4)
        for name in ("q_proj", "v_proj")
        for side in "AB"
    }
    save_file(weights, str(place / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (place / "adapter_config.json").write_text(json.dumps(config))
    return place


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modes", nargs="*", metavar="MODE", default=list(MODES))
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--who", choices=WHO, action="append")
    parser.add_argument("--start", action="append", help="only these; most need those before them")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    asked.processes = False
    with tempfile.TemporaryDirectory(prefix="vllm-table-", dir=asked.base) as base:
        table = Table(Run(Path(base), asked), until, asked.start)
        with concurrent.futures.ThreadPoolExecutor(asked.at_once) as pool:
            chains = [pool.submit(table.chain, mode, who) for mode in asked.modes for who in asked.who or WHO]
            for chain in concurrent.futures.as_completed(chains):
                if chain.exception():
                    say(failed=repr(chain.exception()))
        table.show()


if __name__ == "__main__":
    main()
