"""Isolated caches and keys for every test, and one warm process for all of them."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from harness import selection
from scenes import model_scenes

from safecache import features
from safecache.testing import isolated as isolated_environment

TESTS = Path(__file__).parent
SOURCE = TESTS.parent
pytest.register_assert_rewrite("safecache.testing.tiers")
# As where a hook was imported: tests call the core by itself too.
features.plug()

# Of tests beside others that run on every Python, whether there is a torch for it or not.
NEEDS_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have every process of the run compile by way of harness/caching_compiler.py; workers of xdist inherit the PATH."""
    # The tests of a group share what one of them has made. As --dist loadgroup, whose absence a worker is not told.
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadgroup"
    config.option.loadgroup = True
    compiler = shutil.which("g++")
    if compiler is None or hasattr(config, "workerinput"):
        return
    store = tempfile.TemporaryDirectory(prefix="safecache-tests-compiled-")
    # For the users, too, that some tests become.
    os.chmod(store.name, 0o777)
    path = Path(store.name, "g++")
    command = [sys.executable, "-I", "-S", str(TESTS / "harness" / "caching_compiler.py"), store.name, compiler]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([store.name, os.environ["PATH"]])
    config.add_cleanup(store.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not run by default: see harness/selection.py."""
    for item in selection.left_out(items):
        item.add_marker("full")


@pytest.fixture(autouse=True)
def no_cache_set(monkeypatch):
    """No test begins with a cache directory set: torch sets one by itself, in its caller's own environment."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "_SAFECACHE_REDIRECTED"):
        monkeypatch.delenv(name, raising=False)


class Answer:
    """What a scene's process said."""

    def __init__(self, raw: dict) -> None:
        self.died = raw.get("died")
        self.result = raw.get("result")
        self.error = raw.get("error")
        self.errors = [name for name, _ in raw.get("error_chain", ())]
        self.messages = [text for _, text in raw.get("error_chain", ())]
        self.traceback = raw.get("traceback", "")
        self.warnings = raw.get("warnings", [])
        self.seen = raw.get("seen", [])
        self.torch_warnings = raw.get("torch_warnings", [])
        counters = raw.get("stats", {})
        self.stats = {name: n for name, n in counters.items() if not name.startswith("code ")}
        self.code_stats = {name: n for name, n in counters.items() if name.startswith("code ")}

    @property
    def ok(self) -> bool:
        return self.died is None and self.error is None

    @property
    def hits(self) -> tuple[int, int]:
        """(AOT hits, FX hits)"""
        return self.result["aot"]["hit"], self.result["fx"]["hit"]

    def __repr__(self) -> str:
        return json.dumps(vars(self), indent=1, default=repr)[:6000] + self.traceback


WARM = (1, 2)  # one AOT hit, and an FX hit for the forward and one for the backward graph


# As root whom file modes bind, as (user, group), with a umask, as stock torch, as another build, watched (harness/planted.py).
HOW = {"unprivileged": False, "user": None, "umask": None, "stock": False, "build": {}, "audit": False}


def name_of(scene) -> str:
    """Of a scene, or of one among the arguments of another: what pkgutil.resolve_name finds it by."""
    return f"{scene.__module__}:{scene.__qualname__}"


class Zygote:
    """Starts tests/harness/zygote.py once and has it run scenes, each in a fork.

    With ``packages`` it imports torch and Triton from there, and no safecache.
    """

    def __init__(self, base: Path, packages: Path | None = None) -> None:
        alone = packages is not None
        environment = os.environ | isolated_environment(base) | {"TMPDIR": str(base)}
        # Up to 2.12 it costs each zygote 20 CPU seconds to find out, which is nothing that they are started for.
        environment |= {"TORCHINDUCTOR_VEC_ISA_OK": "0"} if alone else {}
        found = [packages, None if alone else SOURCE]
        environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in found if path is not None)
        self.stderr = (base / "zygote.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "harness" / "zygote.py"), *(["alone"] if alone else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env=environment,
        )
        self.torch = self._reply()["ready"]

    def _reply(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the zygote died: {Path(self.stderr.name).read_text()[-4000:]}")
        return json.loads(line)

    def run(self, scene, environment, **arguments) -> Answer:
        """Run a scene, a function of tests/scenes or of another module, with ``arguments``, as one of HOW says."""
        how = {name: arguments.pop(name, default) for name, default in HOW.items()}
        request = {
            "scene": scene,
            "arguments": arguments,
            "environment": environment,
            "timeout": 120,
            **how,
        }
        print(json.dumps(request, default=name_of), file=self.process.stdin, flush=True)
        return Answer(self._reply())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stderr.close()


@pytest.fixture(scope="session")
def session_directory():
    # Not tmp_path: below /tmp/pytest-of-<user> another user, whom some tests become, cannot go.
    with tempfile.TemporaryDirectory(prefix="safecache-tests-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def zygote(session_directory):
    zygote = Zygote(session_directory)
    yield zygote
    zygote.close()


class Home:
    """One test's cache and keys."""

    def __init__(self, base: Path, zygote: Zygote) -> None:
        self.base = base
        self.cache = base / "cache"
        self.keys = base / "config" / "safecache"
        self.zygote = zygote
        self.environment = isolated_environment(base)

    def run(self, scene=model_scenes.compile_model, *, strict: bool = False, env=None, **arguments):
        environment = self.environment | {"SAFECACHE_STRICT": str(int(strict))} | (env or {})
        return self.zygote.run(scene, environment, **arguments)

    @property
    def aot_entries(self) -> list[Path]:
        return sorted(path for path in self.cache.glob("aotautograd/*/*") if not path.name.startswith("."))

    @property
    def fx_entries(self) -> list[Path]:
        return sorted(path for path in self.cache.glob("fxgraph/*/*/*") if not path.name.startswith("."))

    def entries(self, kind: str) -> list[Path]:
        return self.aot_entries if kind == "aot" else self.fx_entries

    @property
    def quarantined(self) -> list[Path]:
        return sorted(p for p in self.cache.glob(".safecache/quarantine/*") if p.suffix != ".json")

    @property
    def leftovers(self) -> list[Path]:
        """Temporary files of entries."""
        return [p for folder in ("aotautograd", "fxgraph") for p in (self.cache / folder).rglob(".*")]


@pytest.fixture(scope="session")
def warm_template(session_directory, zygote):
    """A home whose cache holds the entries of the model, sealed."""
    base = session_directory / "template"
    base.mkdir()
    home = Home(base, zygote)
    answer = home.run()
    assert answer.ok, answer
    assert answer.stats == {"sealed": 3, "saved": 3}, answer
    return home


@pytest.fixture(scope="session")
def new_home(session_directory, zygote):
    """Makes homes that last as long as the session."""

    def make() -> Home:
        base = Path(tempfile.mkdtemp(dir=session_directory))
        os.chmod(base, 0o755)
        return Home(base, zygote)

    return make


@pytest.fixture
def home(new_home):
    home = new_home()
    yield home
    shutil.rmtree(home.base, ignore_errors=True)


@pytest.fixture
def warm(home, warm_template):
    """A copy of the warm template, kernels included."""
    shutil.copytree(warm_template.base, home.base, dirs_exist_ok=True, symlinks=True)
    return home


def python(
    code: str,
    *,
    env: dict[str, str] | None = None,
    path: Path | None = None,
    timeout: float = 120,
    arguments: tuple[str, ...] = (),
    **kwargs,
):
    """Run ``code`` in a fresh interpreter that finds safecache, and first of all ``path``."""
    entries = [str(path)] if path else []
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SAFECACHE")} | (env or {})
    environment["PYTHONPATH"] = os.pathsep.join([*entries, str(SOURCE), os.environ.get("PYTHONPATH", "")]).strip(":")
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        env=environment,
        text=True,
        capture_output=True,
        timeout=timeout,
        **kwargs,
    )


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user or mount a tmpfs")
