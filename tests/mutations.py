"""Break the code in each place that safety hangs on, and see a test fail: ``python tests/mutations.py [MODULE …]``.

With ``--invariants``, in those places alone that a comment `# INVARIANT: …` stands above.

One at a time, in a copy of the package: each sync, renaming, lock and write is left out, each O_EXCL and O_NOFOLLOW
dropped, and each comparison and condition taken for true, and for false. Prints what fails for each, and what SURVIVED:
a test that is missing, or else a change that changes nothing and is listed in EQUIVALENT with the reason.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1]
_STORE = ["tests/store/test_store_publishing.py", "tests/store/test_durability.py", "tests/store/test_store_reading.py"]
_STORE += [
    "tests/store/test_store_quarantine.py",
    "tests/fs/test_temporaries.py",
    "tests/built_code/test_torch_writes.py",
]
_STORE += ["tests/faults/store/test_each_error.py", "tests/faults/store/test_power_loss.py"]
_SEAL = ["tests/signing/test_seal.py", "tests/signing/test_seal_damage.py", "tests/signing/test_seal_forgery.py"]
_SEAL += ["tests/signing/test_seal_inspection.py"]
_TRUST = ["tests/signing/test_trust.py", "tests/signing/test_signatures.py", "tests/upkeep/test_sign_and_verify.py"]
_GATE = [
    *("tests/built_code/test_gate.py", "tests/built_code/test_gate_records.py"),
    *("tests/built_code/test_group_records.py", "tests/upkeep/test_sign_code.py"),
]
_GATE += ["tests/built_code/test_private_build.py"]
_KILLS = ["tests/isolation/test_service_kills.py", "tests/isolation/test_service_deaths.py"]
_SERVICE = ["tests/isolation/test_service.py", *_KILLS]
_FLIGHTS = ["tests/single_flight/test_leases.py", "tests/single_flight/test_each_call.py"]
_COMPILING = ["tests/crashes/test_worker_results.py", "tests/crashes/test_compiling_ahead.py"]
_COMPILING += ["tests/crashes/test_confirmation.py"]
_VERDICTS = ["tests/recompile_check/test_verdicts.py"]
# The tests of each module, without torch, those that are most about it first.
TESTS = {
    "store/entry_files": _STORE,
    "fs/temporaries": [
        *("tests/fs/test_temporaries.py", "tests/store/test_durability.py", "tests/built_code/test_triton_files.py"),
        *("tests/faults/store/test_power_loss.py", *_STORE),
    ],
    "fs/opening": ["tests/fs/test_files.py", *_STORE, "tests/signing/test_key_file.py"],
    "fs/filesystem": ["tests/faults/store/test_each_error.py", *_STORE],
    "store/quarantine": ["tests/store/test_quarantine_limits.py", "tests/cli/test_quarantine_command.py", *_STORE],
    "signing/seal": [*_SEAL, *_TRUST],
    "signing/trust": [
        *_TRUST,
        "tests/upkeep/test_adopt.py",
        "tests/signing/test_binding.py",
        "tests/signing/test_seal_audit.py",
    ],
    "crash_guard/markers": ["tests/crash_guard/test_markers.py"],
    "crash_guard/strikes": ["tests/crash_guard/test_markers.py"],
    "recompile_check/__init__": _VERDICTS,
    "fingerprints/functions": ["tests/fingerprints/test_functions.py"],
    "fingerprints/__init__": ["tests/fingerprints/test_servers.py"],
    "single_flight/tuning": ["tests/single_flight/test_tunings.py"],
    "single_flight/__init__": _FLIGHTS,
    "fs/holders": _FLIGHTS,
    "store/manifests": ["tests/store/test_records.py", *_GATE],
    "store/gate": ["tests/built_code/test_disposal.py", *_GATE, "tests/remote/test_parcels.py"],
    "store/bundles": [
        "tests/remote/test_parcels.py",
        "tests/tiers/test_conformance.py",
        "tests/packs/test_hostile_packs.py",
    ],
    "store/wire": ["tests/remote/test_parcels.py", "tests/packs/test_hostile_packs.py"],
    "built_code/triton_remote": ["tests/built_code/test_triton_backend.py", "tests/built_code/test_triton_records.py"],
    "remote/parcels": ["tests/remote/test_parcels.py", "tests/remote/test_vllm_remote.py"],
    "remote/client": ["tests/remote/test_clients.py"],
    "built_code/build_keys": ["tests/built_code/test_build_keys.py"],
    "isolation/crashes": ["tests/crashes/test_known_bad.py"],
    "isolation/compiling": [*_COMPILING, "tests/isolation/test_attempts.py"],
    "isolation/client": ["tests/isolation/test_endings.py", "tests/crashes/test_limits.py", *_SERVICE],
    "isolation/protocol": ["tests/isolation/test_protocol.py"],
    "isolation/server": ["tests/isolation/test_worker.py", *_SERVICE],
}
_CALLS = {"fsync", "rename", "link", "unlink", "flock", "write_all", "close", "dup", "lstat"}
_CALLS |= {"killpg", "kill", "setrlimit", "setsid", "prctl", "remember", "stop_sealing"}
_FLAGS = {"O_EXCL", "O_NOFOLLOW", "O_NONBLOCK", "O_CREAT", "LOCK_NB"}
# By module, the changed text, and what it becomes: why that changes nothing that a user could see.
EQUIVALENT = {
    ("fs/temporaries", "os.O_NOFOLLOW", "0"): "O_EXCL refuses a link too: open(2)",
    ("store/quarantine", "os.O_NOFOLLOW", "0"): "O_EXCL refuses a link too: open(2)",
    ("store/quarantine", "moved", "True"): "what was not moved is not there to be read, nor to be the newest",
    ("store/gate", "verdict.reason is None", "True"): "a verdict that is none states no build that could be foreign",
    ("signing/seal", "verdict.reason is None", "True"): "what is refused already is refused, for its key then",
    ("fs/opening", "limit", "True"): "a read of no bytes is the end too",
    ("isolation/compiling", "{}", "True"): "what has no reply has ended with a crash, which was raised before",
    ("isolation/compiling", "{}", "False"): "what has no reply has ended with a crash, which was raised before",
    ("store/gate", "os.O_NOFOLLOW", "0"): "what was read is compared with what is attested, wherever it lies",
}


class Mutant(NamedTuple):
    """A module with ``old``, which starts at ``start``, replaced by ``new``."""

    module: str
    line: int
    start: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {' '.join(self.old.split())[:70]} -> {self.new}"

    @property
    def source(self) -> str:
        text = _read(self.module)
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


def _path(module: str) -> Path:
    return SOURCE / "safecache" / f"{module}.py"


def _read(module: str) -> str:
    return _path(module).read_text(encoding="utf-8")


def mutants(module: str) -> list[Mutant]:
    """All of a module, in order."""
    text = _read(module)
    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    found = set()
    for node, new in _changes(ast.parse(text)):
        old = ast.get_source_segment(text, node)
        assert old is not None
        line = node.lineno - 1
        column = len(lines[line].encode()[: node.col_offset].decode())
        if old != new:
            found.add(Mutant(module, node.lineno, starts[line] + column, old, new))
    return sorted(found, key=lambda mutant: (mutant.start, len(mutant.old), mutant.new))


def invariants(module: str) -> set[int]:
    """The lines that a comment `# INVARIANT: …` stands above."""
    return {number + 2 for number, line in enumerate(_read(module).splitlines()) if "# INVARIANT: " in line}


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CALLS:
            yield node, "None"
        elif isinstance(node, ast.Attribute) and node.attr in _FLAGS:
            yield node, "0"
        for condition in _conditions(node):
            yield condition, "True"
            yield condition, "False"


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Compare):
        return [node]
    if isinstance(node, (ast.If, ast.IfExp)) and ast.unparse(node.test) != "TYPE_CHECKING":
        return [node.test]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.comprehension):
        return node.ifs
    is_bool = isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Name) and node.returns.id == "bool"
    return [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value] if is_bool else []


def _test(copy: Path, tests: list[str], marker: str) -> str | None:
    """The first test that fails; None if all pass."""
    options = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-o", "timeout=60", "-m", marker]
    there = [path for path in dict.fromkeys(tests) if (copy / path).exists()]
    command = [sys.executable, "-m", "pytest", *options, *there]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr).strip().splitlines()[-1][:100]


def _outcome(mutant: Mutant, copies: SimpleQueue[Path], marker: str) -> str | None:
    copy = copies.get()
    target = copy / "safecache" / f"{mutant.module}.py"
    try:
        target.write_text(mutant.source, encoding="utf-8")
        return _test(copy, TESTS[mutant.module], marker)
    finally:
        target.write_text(_read(mutant.module), encoding="utf-8")
        copies.put(copy)


def _copies(base: str, jobs: int) -> SimpleQueue[Path]:
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        copy = Path(base, str(number))
        for name in ("safecache", "tests"):
            shutil.copytree(SOURCE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCE / "pyproject.toml", copy)
        copies.put(copy)
    return copies


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", nargs="*", metavar="MODULE", help=f"of {', '.join(TESTS)}; all, without one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--invariants", action="store_true", help="only what a comment `# INVARIANT: …` stands above")
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    parser.add_argument("-m", dest="marker", default="", help='as of pytest, such as "not full"; all tests, without it')
    chosen = parser.parse_args()
    todo = [mutant for module in chosen.module or TESTS for mutant in mutants(module)]
    if chosen.invariants:
        todo = [mutant for mutant in todo if mutant.line in invariants(mutant.module)]
    if chosen.list:
        print(*todo, sep="\n")
        return 0
    survived = 0
    with tempfile.TemporaryDirectory() as base, ThreadPoolExecutor(chosen.jobs) as pool:
        copies = _copies(base, chosen.jobs)
        killers = pool.map(lambda mutant: _outcome(mutant, copies, chosen.marker), todo)
        for mutant, killer in zip(todo, killers, strict=True):
            why = EQUIVALENT.get((mutant.module, " ".join(mutant.old.split()), mutant.new))
            survived += killer is None and why is None
            print(f"{mutant}: {killer or (f'changes nothing: {why}' if why else 'SURVIVED')}", flush=True)
    print(f"{len(todo)} changes, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
