"""A machine to examine: directories of its own, and the real command, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE
from helpers.message_form import check_form


class Report:
    """What the command said."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.stderr == "", done.stderr
        self.code = done.returncode
        answer = json.loads(done.stdout)
        self.worst = answer["worst"]
        self.findings = answer["findings"]
        check_form(self.findings)

    @property
    def codes(self) -> set[str]:
        return {finding["code"] for finding in self.findings}

    def found(self, code: str, severity: str) -> list[dict[str, str]]:
        """The findings of this code, all of this severity, and with a remedy if one is called for."""
        findings = [finding for finding in self.findings if finding["code"] == code]
        assert {finding["severity"] for finding in findings} <= {severity}, findings
        assert severity in ("ok", "info") or all(finding["remedy"] for finding in findings), findings
        return findings

    def one(self, code: str, severity: str) -> dict[str, str]:
        findings = self.found(code, severity)
        assert len(findings) == 1, (code, self.findings)
        return findings[0]


class Forker:
    """Runs the command in forks of one process, which has imported it: it takes a third of the time."""

    def __init__(self, base: Path) -> None:
        self.output, self.errors = base / "output", base / "errors"
        environment = os.environ | {"SAFECACHE": "0", "PYTHONPATH": str(SOURCE), "XDG_CONFIG_HOME": str(base)}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forking.py"))],
            cwd="/",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments, environment, without) -> subprocess.CompletedProcess[str]:
        for path in (self.output, self.errors):
            path.write_bytes(b"")
        places = {"output": str(self.output), "errors": str(self.errors)}
        request = {"arguments": arguments, "environment": environment, "without": without, **places}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        said = [path.read_text(errors="surrogateescape") for path in (self.output, self.errors)]
        return subprocess.CompletedProcess(arguments, code, *said)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(20)


class Machine:
    """``base``: where its directories are, which any user may enter."""

    # The check that costs most, by far: only where a test is about it.
    checks_compilers = False

    def __init__(self, base: Path, forker: Forker) -> None:
        self.base, self.forker = base, forker
        places = {"HOME": "home", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TMPDIR": "tmp"}
        self.environment = {variable: str(base / name) for variable, name in places.items()}
        for name in places.values():
            (base / name).mkdir(mode=0o755)
        self.inductor, self.triton, self.home, self.tmp = (
            base / name for name in ("inductor", "triton", "home", "tmp")
        )

    def run(self, *arguments: str, within=(), env=None) -> subprocess.CompletedProcess[str]:
        """Run it; ``within`` another command, such as one that becomes another user."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment = kept | {"PYTHONPATH": str(SOURCE)} | self.environment | (env or {})
        environment = {name: str(value) for name, value in environment.items() if value is not None}
        if not within:
            without = [] if self.checks_compilers else ["compilers"]
            return self.forker.run(["doctor", *arguments], environment, without)
        if not self.checks_compilers:
            environment |= {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
        command = [*within, sys.executable, "-m", "safecache", "doctor", *arguments]
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, errors="surrogateescape", timeout=120
        )

    def examine(self, *arguments: str, within=(), env=None) -> Report:
        """Its report, after it was seen that nothing was left behind or changed."""
        before = self.listing()
        report = Report(self.run("--json", *(arguments or ("--no-import",)), within=within, env=env))
        assert self.listing() == before
        return report

    def listing(self) -> list[tuple]:
        """All that is there, as it is. (A probe that was removed leaves a time on the directory that it was in.)"""
        found = []
        for path in sorted(self.base.rglob("*")):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            found.append((str(path), status.st_mode, status.st_uid, status.st_ino, content))
        return found


@pytest.fixture(scope="session")
def forker(tmp_path_factory):
    forker = Forker(tmp_path_factory.mktemp("forker"))
    yield forker
    forker.close()


@pytest.fixture
def machine(session_directory, forker, request):
    base = session_directory / f"machine-{request.node.name.partition('[')[0]}-{os.getpid()}-{id(request)}"
    base.mkdir(mode=0o755)
    yield Machine(base, forker)
    shutil.rmtree(base)


@pytest.fixture
def mount():
    """Mount a file system on a new directory until the test ends."""
    points = []

    def mount(point: Path, options: str, kind: str = "tmpfs", source: str = "none") -> Path:
        point.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", kind, "-o", options, source, str(point)], check=True)
        points.append(point)
        return point

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)
