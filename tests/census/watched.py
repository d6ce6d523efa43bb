"""Runs a program under strace and sitecustomize.py, and says what was read and used that nothing attests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conftest import SOURCE, TESTS, isolated_environment

HERE = Path(__file__).parent
_OPENED = re.compile(r'open(?:at2?)?\(.*?"(?P<path>.*)", (?:{flags=)?(?P<flags>[A-Z_|]+).* = \d+<(?P<opened>.*?)>')
_MADE = re.compile(r'mkdir(?:at)?\((?:.*?<(?P<above>.*)>, )?"(?P<path>.*)", .* = 0')
_RENAMED = re.compile(
    r'rename(?:at)?\((?:.*?<(?P<above>.*?)>, )?"(?P<path>.*?)", (?:.*?<(?P<beside>.*?)>, )?"(?P<to>.*)"\) += 0'
)

# What is read below the directories and is no code, or is verified in another way: by path, with the reason.
EXPECTED = {
    r"cache/locks/.*\.lock": "a lock, in which there is nothing",
    r"(cache|triton)/\.safecache/leases/.*": "a lease, of which nothing depends on what is in it",
    r"config/safecache/.*": "keys, which are believed by the path that they lie at",
    r"ext/.*(\.ninja_log|\.ninja_deps|build\.ninja|\.o\.d)": "ninja's: what that calls up to date needs its record",
    r"ext/(.*/)?probe\.cpp": "the user's own source",
    r"artifacts/halide/HalideRuntime\.h": "of an installation of Halide",
    r"(artifacts/)?(mega|standalone-binary)": "holds artifacts with a seal each, which are among what is unpickled",
    r"artifacts/memo/.*": "a version precedes the seal's content, which is among what is unpickled",
    r".*_metadata\.json": "JSON beside a model of AOTInductor's",
}
# What one build writes and reads again: tools of another process make it, under names that torch gives.
INTERMEDIATE = {
    r"cache/.*\.(kernel|wrapper|weights)\.o": "objects that AOTInductor links",
    r"cache/.*\.halide/(generate_kernel\.py|st\w+)": "the generator that Halide's compiler is run with",
    r"(artifacts/)?package\.pt2": "what was packed, which is read to be sealed",
    r"cache/halide-runtime-.*/standalone_halide_runtime\.a": "what the runtime's library is linked of",
}


class Finding(NamedTuple):
    """``used``: what did it, or "" if it was only opened; ``what``: a path below the directories, or the code's place."""

    used: str
    what: str


class Watched(NamedTuple):
    """The steps' results by name; what was used, and what of that and of the files opened nothing attests."""

    results: dict[str, object]
    used: list[Finding]
    unattested: list[Finding]


def run(
    base: Path, warmth: str, program: Path = HERE / "program.py", steps: tuple[str, ...] = (), **environment: str
) -> Watched:
    """``program``, or these steps of it, with all its directories below ``base``, as a process of its own."""
    name = f"{warmth}-{len(list(base.parent.iterdir()))}"
    log, trace = base.with_name(f"{name}.log"), base.with_name(f"{name}.trace")
    trace.mkdir()
    (base / "tmp").mkdir(parents=True, exist_ok=True)
    places = {
        "TORCH_EXTENSIONS_DIR": base / "ext",
        "TMPDIR": base / "tmp",
        "HOME": base / "home",
        "CENSUS_BELOW": f"{base}/",
        "CENSUS_LOG": log,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(TESTS), str(SOURCE)]),
    }
    variables = {name: str(place) for name, place in places.items()}
    variables |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    strace = [
        "strace",
        "-ff",
        "-qq",
        "-y",
        "--seccomp-bpf",
        "--signal=none",
        "--trace=open,openat,openat2,mkdir,mkdirat,rename,renameat",
    ]
    said = subprocess.run(
        [*strace, "-o", str(trace / "of"), sys.executable, str(program), str(base), warmth, *steps],
        env=os.environ | isolated_environment(base) | variables | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert said.returncode == 0, (said.returncode, said.stdout, said.stderr)
    results = dict(json.loads(line) for line in said.stdout.splitlines() if line.startswith("["))
    return Watched(results, *_judged(base, log, trace, intermediates=warmth == "cold"))


def _judged(base: Path, log: Path, trace: Path, *, intermediates: bool) -> tuple[list[Finding], list[Finding]]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    attested = {row[1] for row in rows if row[0] == "attested"}
    used = [(Finding(row[1], row[2]), row[3] in attested) for row in rows if row[0] == "used"]
    contents: dict[str, set[str]] = {}
    for row in rows:
        if row[0] == "read":
            contents.setdefault(row[1], set()).add(row[2])
    expected = EXPECTED | (INTERMEDIATE if intermediates else {})
    opened = [
        Finding("", os.path.relpath(path, base))
        for path in _read_files(base, trace)
        if not attested & {*contents.get(path, ()), *_digests(path)}
        and not any(re.fullmatch(pattern, os.path.relpath(path, base)) for pattern in expected)
    ]
    return [finding for finding, _ in used], [finding for finding, is_attested in used if not is_attested] + opened


def _digests(path: str) -> Iterator[str]:
    """Of what is there by now: all of it, and without a seal behind it."""
    from safecache.signing import seal

    try:
        content = Path(path).read_bytes()
    except OSError:
        return
    yield hashlib.sha256(content).hexdigest()
    yield hashlib.sha256(seal.strip_unverified(content)).hexdigest()


def _read_files(base: Path, trace: Path) -> list[str]:
    """The files below ``base`` that any process has opened for reading, and that these processes have not made in private.

    Private is what they have made under a name that was not taken, as in a directory of such a name.
    """
    read, own, renamed = set(), set(), []
    for file in trace.iterdir():
        for line in file.read_text(errors="replace").splitlines():
            if made := _MADE.match(line):
                own.add(os.path.join(made["above"] or "", made["path"]))
            elif moved := _RENAMED.match(line):
                above, path, beside, to = moved.groups()
                renamed.append((os.path.join(above or "", path), os.path.join(beside or "", to)))
            elif opened := _OPENED.match(line):
                path, flags = opened["opened"].removesuffix("(deleted)").rstrip(), opened["flags"].split("|")
                if "O_EXCL" in flags:
                    own.add(path)
                elif path.startswith(f"{base}/") and "O_WRONLY" not in flags and "O_DIRECTORY" not in flags:
                    read.add(path)
    own |= {to for path, to in renamed if path in own}
    temporary = {path for path in own if path.startswith(f"{base}/tmp/")}
    return sorted(
        path
        for path in read - own
        if not os.path.isdir(path) and not any(str(above) in temporary for above in Path(path).parents)
    )
