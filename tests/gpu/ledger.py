"""Whole starts of a real server, phase by phase: each arm once in each round, in random order, in fresh processes.

    python tests/gpu/ledger.py start SERVER FILE [--rounds N] [--arms ARM...] [--seconds S] [--base DIR] [--set NAME=VALUE]...
    python tests/gpu/ledger.py table FILE...
    python tests/gpu/ledger.py plot FILE SVG

SERVER is vllm or sglang; ``start`` writes each start to FILE, a JSON line each, as it ends. The arms:

* ``stock cold`` and ``safecache cold``: empty caches.
* ``stock`` and ``safecache``: caches that two starts have filled. ``strict``: those, with SAFECACHE_STRICT=1.
* ``stock read-only`` and ``read-only``: those, bind-mounted read-only as in an image; needs root.
* ``pack``: an empty home with safecache's keys alone, and a pack of those caches as a tier below.
* ``rank 1 lost``, ``damaged``: a copy of those, without what the second rank has left, or with one bit flipped in each
  entry. ``full disk``: empty caches on a full one; needs root.
* ``killed``, ``frozen``: empty caches in which another server has begun to compile, and was killed or frozen meanwhile.

``ledgers`` has what the guide tells of. ``table`` gives of each arm the median and the range of the seconds until its first
tokens, its CPU seconds, the lines that are not in good order, the ratio to stock's start of the same round, and whether its
first tokens are as likely as in a start of stock; then the median seconds of each phase. What
``clock.py`` counts as a phase includes all that runs within it but other phases. ``imports`` is what comes before the model
is loaded: Python's start, the imports, the configuration and the server's processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import html
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import engines

# Each arm, and the one that it is compared with.
ARMS = {
    "stock cold": None,
    "safecache cold": "stock cold",
    "stock": None,
    "safecache": "stock",
    "strict": "stock",
    "stock read-only": None,
    "read-only": "stock read-only",
    "pack": "stock cold",
    "rank 1 lost": "stock",
    "damaged": "stock cold",
    "full disk": "stock cold",
    "killed": "stock cold",
    "frozen": "stock cold",
}
# Arms that begin with empty caches.
EMPTY = ("stock cold", "safecache cold", "full disk", "killed", "frozen")
PHASES = {
    "imports": "#9aa7b5",
    "weights": "#c9b8e8",
    "memory": "#d8d2c4",
    "trace": "#f0c36d",
    "load graphs": "#5b8def",
    "compile graphs": "#d9534f",
    "Triton kernels": "#e58a4e",
    "tune": "#a94464",
    "other libraries": "#4c9f70",
    "CUDA graphs": "#7cc6c3",
    "warm up": "#b0d4a0",
    "tokens": "#6f7d8c",
    "other": "#e3e6ea",
}


class Interrupted(engines.Engine):
    """An engine whose processes get a signal amid its first compile: once it holds a lease."""

    def __init__(self, number, *arguments, **how):
        self.number = number
        super().__init__(*arguments, **how)

    def answer(self):
        leases = ["find", str(self.arm.base), "-path", "*/.safecache/leases/*"]
        until = time.monotonic() + self.run.server.patience
        while not subprocess.run(leases, capture_output=True, check=False).stdout and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(self.process.pid, self.number)
        return {"interrupted": self.number.name}


class Ledger:
    """The starts of one server. Caches that warm starts take are made before, and are not written to the file."""

    def __init__(self, run, file, settings):
        self.run, self.file, self.settings, self.filled = run, file, settings, {}

    def fill(self, arms):
        """What the arms start from: for stock and for safecache the caches of two starts, and the pack of the latter."""
        for who in engines.WHO:
            if not any(arm not in EMPTY and (arm.startswith("stock") == (who == "stock")) for arm in arms):
                continue
            arm = self.filled[who] = self.run.arm()
            for name in ("fill", "settle"):
                self.start(name, arm, who)
        if "pack" in arms:
            arm = self.filled["safecache"]
            self.pack = arm.base / "caches.safecache"
            command = [sys.executable, "-m", "safecache", "pack", "-o", str(self.pack)]
            began = time.monotonic()
            done = subprocess.run(
                command,
                env=arm.environment("safecache", self.run),
                cwd=arm.base,
                capture_output=True,
                text=True,
                timeout=300,
            )
            size = self.pack.stat().st_size if self.pack.exists() else None
            seconds = round(time.monotonic() - began, 2)
            engines.say(packed=size, seconds=seconds, said=(done.stdout + done.stderr)[-600:])

    def round(self, number, arms):
        for name in arms:
            who = "stock" if name.startswith("stock") else "safecache"
            settings = {"SAFECACHE_STRICT": "1"} if name == "strict" else {}
            if name == "pack":
                arm = self.run.arm()
                keys = Path("home", ".config")
                shutil.copytree(self.filled[who].base / keys, arm.base / keys)
                settings["SAFECACHE_TIERS"] = str(self.pack)
            elif name in ("rank 1 lost", "damaged"):
                arm = self.filled[who].copy(f"arm-{name.replace(' ', '-')}-{number}")
                spoil(arm, name)
            else:
                arm = self.run.arm() if name in EMPTY else self.filled[who]
            with self.interrupt(arm, who, name):
                found = self.start(name, arm, who, disk=name.removeprefix("stock "), **settings)
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps({"round": number, "arm": name} | found) + "\n")
            if arm is not self.filled.get(who):
                shutil.rmtree(arm.base)

    @contextlib.contextmanager
    def interrupt(self, arm, who, name):
        """Another server has begun with these caches; frozen, it stays until this block ends."""
        number = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}.get(name)
        if number is None:
            yield
            return
        other = Interrupted(number, self.run, arm, who, **self.settings)
        try:
            yield
        finally:
            engines.say(**{name: other.end(limit=0)["interrupted"]})

    def start(self, name, arm, who, **how):
        began = time.time()
        found = engines.Engine(self.run, arm, who, **how, **self.settings).end()
        lines = found.pop("lines")
        found |= {"lines": len(lines), "safecache_lines": [line[:240] for line in lines if "safecache" in line][:6]}
        if "up" not in found:
            found["last"] = [line[:300] for line in lines[-12:]]
        engines.say(start=name, at=round(began), **found)
        return found


def spoil(arm, state):
    for path in sorted(arm.caches.rglob("*")):
        if state == "damaged" and path.is_file() and ".safecache" not in path.parts:
            engines.damage(path)
        elif state == "rank 1 lost" and path.name == "rank_1_0":
            shutil.rmtree(path)


def read(files):
    """The starts, of each that came up."""
    return [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]


def write_table(rows):
    """Markdown: one table of the arms, one of their phases."""
    arms = {name: [row for row in rows if row["arm"] == name] for name in ARMS}
    arms = {name: starts for name, starts in arms.items() if starts}
    up = [row for row in rows if "up" in row]
    rated = [row for row in up if "rated" in row]
    right = [row["rated"] for row in rated if row["arm"].startswith("stock") or row["arm"] == rated[0]["arm"]]
    lines = ["| arm | up, s | CPU, s | lines | of stock: up | CPU | starts, tokens |", "|---|---|---|---|---|---|---|"]
    for name, starts in arms.items():
        up = [row for row in starts if "up" in row]
        rated = [row["rated"] for row in up if "rated" in row]
        tokens = "equal" if all(any(engines.are_equal(each, one) for one in right) for each in rated) else "OTHER"
        cells = [name, spread([row["up"] for row in up]), spread([row["cpu"] for row in up])]
        cells.append(spread([row["lines"] for row in up], 0))
        cells += [ratio(rows, name, of) for of in ("up", "cpu")]
        cells.append(f"{len(up)} of {len(starts)}" + f", {tokens}" * bool(rated))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| phase, s (CPU) | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for phase in PHASES:
        cells = [median_phase(starts, phase) for starts in arms.values()]
        if any(wall for wall, _ in cells):
            lines.append(f"| {phase} | " + " | ".join(f"{wall:.2f} ({cpu:.2f})" for wall, cpu in cells) + " |")
    return "\n".join(lines)


def spread(numbers, digits=1):
    if not numbers:
        return "-"
    low, middle, high = (f"{each:.{digits}f}" for each in (min(numbers), statistics.median(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low} to {high})"


def ratio(rows, name, of):
    """The median of the rounds' ratios to what the arm is compared with, and their range."""
    rounds = {(row["round"], row["arm"]): row for row in rows if "up" in row}
    pairs = [(row, rounds.get((number, ARMS[name]))) for (number, arm), row in rounds.items() if arm == name]
    return spread([ours[of] / stock[of] for ours, stock in pairs if stock], 3)


def median_phase(starts, phase):
    found = [row["phases"].get(phase, [0, 0]) for row in starts if "phases" in row]
    return [statistics.median(column) for column in zip(*found, strict=True)] if found else [0, 0]


def draw(rows, title):
    """A bar of phases for each arm, as SVG: medians, so that a bar can differ a little from the median of the sums."""
    arms = {name: [row for row in rows if row["arm"] == name and "phases" in row] for name in ARMS}
    bars = {
        name: {phase: median_phase(starts, phase)[0] for phase in PHASES} for name, starts in arms.items() if starts
    }
    scale = 560 / max(sum(bar.values()) for bar in bars.values())
    shown = [phase for phase in PHASES if any(bar[phase] * scale >= 1 for bar in bars.values())]
    height = 44 + 30 * len(bars)
    body = [f'<text x="8" y="20" font-weight="bold">{html.escape(title)}</text>']
    for row, (name, bar) in enumerate(bars.items()):
        x, y = 130.0, 36 + 30 * row
        body.append(f'<text x="122" y="{y + 15}" text-anchor="end">{name}</text>')
        for phase in PHASES:
            width = bar[phase] * scale
            tip = f"<title>{phase}: {bar[phase]:.1f} s</title>"
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{PHASES[phase]}">{tip}</rect>'
            )
            x += width
        body.append(f'<text x="{x + 6:.1f}" y="{y + 15}">{sum(bar.values()):.1f} s</text>')
    for place, phase in enumerate(shown):
        x, y = 130 + 150 * (place % 4), height + 8 + 20 * (place // 4)
        body.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{PHASES[phase]}"/>')
        body.append(f'<text x="{x + 18}" y="{y + 10}">{phase}</text>')
    total = height + 20 * -(-len(shown) // 4) + 12
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {total}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="760" height="{total}" fill="#ffffff"/>', *body, "</svg>", ""])


def start(asked):
    # Both are imported here, since an engine's process imports one of them alone.
    import sglang_engines
    import vllm_engines

    server = {"vllm": vllm_engines.SERVER, "sglang": sglang_engines.SERVER}[asked.server]
    server = dataclasses.replace(server, model=server.model | asked.model)
    asked.processes = False
    generator = random.Random(0)
    asked.file = asked.file.resolve()
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=asked.base) as base:
        run = engines.Run(server, Path(base), asked)
        ledger = Ledger(run, asked.file, dict(pair.split("=", 1) for pair in asked.set))
        ledger.fill(asked.arms)
        if not ledger.filled:
            # The first start of all reads libraries from the disk, and Python compiles what it imports.
            ledger.start("first", run.arm(), "stock", options=server.modes[server.first])
        slowest = 0.0
        for number in range(asked.rounds):
            began = time.monotonic()
            if began + slowest > run.until:
                engines.say(left_out=asked.rounds - number)
                break
            ledger.round(number, generator.sample(asked.arms, len(asked.arms)))
            slowest = max(slowest, time.monotonic() - began)
    print(write_table(read([asked.file])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("start")
    one.add_argument("server", choices=("vllm", "sglang"))
    one.add_argument("file", type=Path)
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    one.add_argument("--seconds", type=float, default=3600)
    one.add_argument("--base", type=Path)
    one.add_argument("--options", type=json.loads, metavar="JSON", help="more arguments of each engine")
    one.add_argument("--model", type=json.loads, default={}, metavar="JSON", help="more of the model's configuration")
    one.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="in each engine's environment")
    one.set_defaults(run=start)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(run=lambda asked: print(write_table(read(asked.files))))
    three = commands.add_parser("plot")
    three.add_argument("file")
    three.add_argument("svg", type=Path)
    three.add_argument("--title", default="")
    three.set_defaults(run=lambda asked: asked.svg.write_text(draw(read([asked.file]), asked.title)))
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
