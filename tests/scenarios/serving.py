"""Starts the server of server.py on a cache of its own, with one thing wrong, and tells what became of it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conftest import SOURCE, TESTS, isolated_environment
from faults import damage

from . import log_lines

SERVER = Path(__file__).with_name("server.py")


class Started:
    """What a server said, and the lines of safecache in its log."""

    def __init__(self, done: subprocess.CompletedProcess, seconds: float) -> None:
        self.log = done.stderr
        found = [line for line in done.stdout.splitlines() if line.startswith("[{")]
        assert found, done.stderr[-6000:] + done.stdout[-2000:]
        self.workers = json.loads(found[-1])
        self.seconds = round(seconds, 1)
        self.reasons = log_lines.reasons(done.stderr)

    @property
    def up(self) -> bool:
        return all(worker["up"] for worker in self.workers)

    @property
    def logits(self) -> list[float]:
        return [number for worker in self.workers for answer in worker["answers"] for number in answer["logits"]]

    def outcome(self) -> str:
        """In few words."""
        worker = self.workers[0]
        if not self.up:
            return f"down: {worker.get('failed', worker['deaths'])}"[:300]
        parts = [worker["source"], *(f"after {failure}" for failure in worker["failures"])]
        return ", ".join(parts + [f"deaths {worker['deaths']}"] * bool(worker["deaths"]))[:300]

    def check(self) -> None:
        """It is up, and each worker's numbers are those of the reference."""
        assert self.up, self.log[-6000:]
        for worker in self.workers:
            assert len(worker["answers"]) == 3
            assert all(answer["error"] < 1e-5 for answer in worker["answers"]), worker["answers"]

    def __repr__(self) -> str:
        return json.dumps([worker | {"answers": len(worker["answers"])} for worker in self.workers]) + self.log[-4000:]


class Site:
    """A server's directory: its caches, the ranks' model files, and, apart from them, its keys."""

    def __init__(self, base: Path, device: str, workers: int, *, stock: bool = False) -> None:
        self.base, self.device, self.workers, self.stock = base, device, workers, stock
        self.served, self.inductor, self.triton = base / "served", base / "served/inductor", base / "served/triton"
        self.marker = base / "marker"
        # Where precompiled headers lie; many servers share it on a machine.
        self.temporary = base.parent / "tmp"

    @property
    def models(self) -> list[Path]:
        return sorted(self.served.glob("rank_*/model"))

    def copy(self, base: Path) -> Site:
        """Another site with the same content, as when an image with a warm cache is started."""
        shutil.copytree(self.base, base, symlinks=True)
        return Site(base, self.device, self.workers, stock=self.stock)

    def start(self, activation="import", *, prefix=(), env=None, **options) -> Started:
        """Run the server to its end."""
        for directory in (self.inductor, self.triton, self.temporary):
            directory.mkdir(parents=True, exist_ok=True)
        activation = "none" if self.stock else activation
        request = {"device": self.device, "root": str(self.served), "workers": self.workers, **options}
        command = [*prefix, sys.executable, str(SERVER), json.dumps(request)]
        if activation == "run":
            command = [sys.executable, "-m", "safecache", "run", "--", *command]
        began = time.monotonic()
        done = subprocess.run(
            command, env=self.environment(activation) | (env or {}), capture_output=True, text=True, timeout=600
        )
        return Started(done, time.monotonic() - began)

    def environment(self, activation: str) -> dict[str, str]:
        """Of a server that is started so."""
        path = [SOURCE, TESTS, TESTS / "gpu"]
        if activation == "sitecustomize":
            path.insert(0, self._with_file("site", "sitecustomize.py", "import safecache\n"))
        elif activation == "plugin":
            points = "[vllm.general_plugins]\nsafecache = safecache_entry:vllm\n"
            path.insert(0, self._with_file("installed", "safecache-0.dist-info/entry_points.txt", points))
        return (
            os.environ
            | isolated_environment(self.base)
            | {
                "PYTHONPATH": os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]).strip(":"),
                "TORCHINDUCTOR_CACHE_DIR": str(self.inductor),
                "TRITON_CACHE_DIR": str(self.triton),
                "TMPDIR": str(self.temporary),
                # As vLLM has them.
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "TRITON_CACHE_AUTOTUNING": "1",
                "SCENARIO_ACTIVATION": activation,
                "SAFECACHE": "0" if self.stock else "1",
            }
        )

    def _with_file(self, directory: str, name: str, content: str) -> Path:
        path = self.base / directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if name.endswith("entry_points.txt"):
            path.with_name("METADATA").write_text("Metadata-Version: 2.1\nName: safecache\nVersion: 0\n")
        return self.base / directory

    def forget(self, *, kernels: bool = False) -> None:
        """Remove what was compiled; without ``kernels``, but for the code of kernels."""
        for path in [*self.served.glob("rank_*"), *self.inductor.glob("aotautograd"), *self.inductor.glob("fxgraph")]:
            shutil.rmtree(path)
        if kernels:
            shutil.rmtree(self.inductor)
            shutil.rmtree(self.triton)


@functools.cache
def namespace() -> list[str] | None:
    """A command that runs another one where it may mount; None if this user may not."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        with contextlib.suppress(OSError):
            if not subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
                return command
    return None


def mounting(directory: Path, options: str, *, filled: bool = False) -> list[str]:
    """A prefix for a command that sees ``directory``, with all that is in it, on a tmpfs of its own."""
    place, saved = shlex.quote(str(directory)), shlex.quote(f"{directory}.saved")
    script = f"cp -a {place} {saved}; mount -t tmpfs -o {options},mode=755 none {place}; cp -a {saved}/. {place}; "
    script += f"rm -r {saved}; "
    if namespace() is None:
        raise PermissionError("nothing can be mounted")
    if filled:
        script += f"cat /dev/zero > {place}/filler 2> /dev/null || true; "
    return [*namespace(), "sh", "-ec", script + 'exec "$@"', "sh"]


@dataclass
class Case:
    """One thing that goes wrong, at a site that is warm.

    ``harm``: done to it; what it returns is how the server is started there. ``reasons``: of safecache's lines, in each
    process that says something. ``source``: how the workers come by their function. ``again``: and at the next start,
    if there is one. ``deaths``: whether each of them dies at first.
    """

    name: str
    harm: Callable[[Site], dict]
    reasons: list[str] = field(default_factory=list)
    source: str = "compiled"
    again: str | None = "loaded"
    deaths: bool = False
    activation: str = "import"
    options: dict = field(default_factory=dict)


def untouched(site: Site) -> dict:
    return {}


def truncate(site: Site) -> dict:
    for model in site.models:
        damage.truncate_to_half(model)
    return {}


def plant(site: Site) -> dict:
    """A hostile pickle as each model, and beside each entry, where it is read first."""
    import pickle

    for model in site.models:
        model.write_bytes(pickle.dumps(damage.Marker(site.marker)))
    for entry in sorted(site.inductor.glob("aotautograd/*/*")):
        if not entry.name.startswith("."):
            damage.plant(entry, site.marker, as_torch_would=True)
    return {}


def be_unpicklable(site: Site) -> dict:
    site.forget()
    return {"sabotage": "unpicklable"}


def keep_launchers(site: Site) -> dict:
    site.forget(kernels=True)
    return {"sabotage": "launcher"}


def fill(site: Site) -> dict:
    site.forget(kernels=site.device == "cuda")
    if namespace() is None:
        return {"sabotage": "no room"}
    for directory in (site.inductor, site.triton):
        directory.mkdir(exist_ok=True)
    return {"prefix": mounting(site.served, "size=64m", filled=True)}


def forbid_execution(site: Site) -> dict:
    """Of the drivers' helpers of Triton, which is told an approved place; on the CPU, of Inductor's libraries."""
    site.forget()
    if site.device == "cpu":
        return {"prefix": mounting(site.inductor, "noexec")}
    approved = site.base / "approved"
    approved.mkdir()
    return {"prefix": mounting(site.triton, "noexec"), "env": {"SAFECACHE_EXEC_DIR": str(approved)}}


def kill_in_compile(site: Site) -> dict:
    site.forget(kernels=site.device == "cuda")
    return {"sabotage": "killed in compile"}


def kill_in_save(site: Site) -> dict:
    site.forget()
    return {"sabotage": "killed in save"}


def truncate_artifacts(site: Site) -> dict:
    """Of the pieces, where they lie beside the model."""
    site.forget()
    site.start(one_file=False).check()
    for artifact in site.served.glob("rank_*/artifact_*"):
        damage.truncate_to_half(artifact)
    return {}


def plant_in_artifacts(site: Site) -> dict:
    """Hostile pickles in place of the entries in them, by somebody who has torch to make them; and no other entries."""
    site.forget()
    site.start(one_file=False).check()
    code = "import sys; from scenes import artifact_scenes as a; [a.plant_in_standalone(path, sys.argv[1]) for path in sys.argv[2:]]"
    artifacts = map(str, site.served.glob("rank_*/artifact_*"))
    environment = site.environment("none") | {"SAFECACHE": "0", "TORCHINDUCTOR_CACHE_DIR": str(site.base / "other")}
    subprocess.run([sys.executable, "-c", code, str(site.marker), *artifacts], env=environment, check=True)
    assert not site.marker.exists()
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(site.inductor / folder)
    return {}


def run(case: Case, site: Site) -> list[Started]:
    """The start with the fault, and the one after it, without."""
    first = site.start(case.activation, **(case.options | case.harm(site)))
    return [first] if case.again is None else [first, site.start(case.activation, **case.options)]


def check(case: Case, started: list[Started], site: Site) -> None:
    """What safecache promises of a case."""
    first, *rest = started
    first.check()
    assert {worker["source"] for worker in first.workers} == {case.source}, first
    assert all(worker["active"] for worker in first.workers), first
    assert first.reasons == [case.reasons] * (len(first.workers) if case.reasons else 0), first
    assert not site.marker.exists()
    assert all(bool(worker["deaths"]) == case.deaths for worker in first.workers), first
    for second in rest:
        second.check()
        assert {worker["source"] for worker in second.workers} == {case.again}, second
        assert second.reasons == [], second


def outcome(ran: list[Started] | Exception, site: Site) -> dict:
    """What became of a case, to be printed."""
    if isinstance(ran, Exception):
        return {"outcome": f"{type(ran).__name__}: {ran}"[:300], "marker": site.marker.exists()}
    first = ran[0]
    told = {"outcome": [each.outcome() for each in ran], "seconds": [each.seconds for each in ran]}
    return told | {"lines": sum(map(len, first.reasons)), "marker": site.marker.exists()} | versions(first)


def versions(started: Started) -> dict:
    return {name: started.workers[0].get(name) for name in ("torch", "triton")}
