"""verified-loads: with patched sources alone, what is planted or damaged is refused, and what is good hits.

Nothing of safecache is active in these processes but the hooks in the source. What is planted is that of
tests/faults/hostile.py, which has its control on stock torch in tests/faults/test_hostile_bytes.py.
"""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import WARM
from faults import damage, hostile
from faults.conftest import trojan  # noqa: F401
from faults.hostile import CASES
from harness.planted import MARKER

from patches import generate
from patches.conftest import installed
from safecache.patching.targets import TARGETS

NAME = "verified-loads"
MODEL = """
import json, sys, torch
from torch._dynamo.utils import counters
compiled = torch.compile(lambda x: (x.sin() + 1).relu())
x = torch.ones(8)
torch.testing.assert_close(compiled(x), (x.sin() + 1).relu())
def counted():
    # Not by an import, which would activate it.
    events = sys.modules.get("safecache.reporting.events")
    return {
        "hits": [counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]],
        "safecache": "safecache" in sys.modules,
        "active": "safecache" in sys.modules and sys.modules["safecache"].is_active(),
        "counters": events.counters() if events else {},
    }
"""
PRINT = "print(json.dumps(counted()))\n"


@pytest.fixture(scope="session")
def homes(homes_with):
    return homes_with(NAME, dormant=True)


@pytest.fixture(scope="session")
def template(homes):
    """A home whose cache holds the entries of the model, sealed by the hooks in the source."""
    home = homes()
    answer = home.run()
    # The zygote has precompiled a header before its hooks were on: nothing attests that, and it goes.
    assert answer.ok and answer.stats | {"unsealed": 1} == {"sealed": 3, "saved": 3, "unsealed": 1}, answer
    return home


@pytest.fixture
def warm(homes, template):
    home = homes()
    shutil.copytree(template.base, home.base, dirs_exist_ok=True, symlinks=True)
    home.environment[MARKER] = str(hostile.marker(home))
    yield home
    shutil.rmtree(home.base, ignore_errors=True)


def test_good_entry_is_verified_and_hits(warm):
    answer = warm.run()
    assert answer.ok and answer.hits == WARM and not answer.warnings, answer
    assert answer.stats == {"verified": 3} and answer.code_stats["code verified"] > 0, answer


def meet(home, case, library, **how):
    if case.needs and installed(case.needs) is None:
        pytest.skip(f"needs {case.needs}")
    scene = case.plant(home, library)
    hostile.marker(home).unlink(missing_ok=True)
    answer = home.run(**scene, audit=True, **how)
    return answer, hostile.did_harm(home, answer)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_planted_is_refused_and_never_looked_at(warm, trojan, case):  # noqa: F811
    answer, harmed = meet(warm, case, trojan)
    assert not harmed and answer.seen == [], answer
    assert answer.warnings, answer
    assert answer.ok if case.misses else answer.errors[0] == "RefusedArtifactError", answer


@pytest.mark.parametrize(
    "name", ["aot-entry", "fx-entry", "source-in-a-warm-cache", "library-in-a-warm-cache", "kernel"]
)
def test_hooks_in_the_source_obey_the_switch(warm, trojan, name):  # noqa: F811
    """With SAFECACHE=0 patched torch does what stock torch does; or the tests here would prove nothing."""
    case = next(case for case in CASES if case.name == name)
    answer, harmed = meet(warm, case, trojan, env={"SAFECACHE": "0"})
    assert harmed and answer.stats.get("unsealed", 0) == 0, answer


@pytest.mark.parametrize("cut", damage.CUT, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("kind", ["aot", "fx"])
def test_damaged_entry_is_one_warning_and_heals(warm, kind, cut):
    for path in warm.entries(kind):
        cut(path)
    answer = warm.run()
    assert answer.ok and answer.hits != WARM and len(answer.warnings) == 1, answer
    again = warm.run()
    assert again.ok and again.hits == WARM and not again.warnings, again


def test_refusal_is_an_error_in_strict_mode(warm):
    for path in warm.aot_entries:
        damage.flip_in_payload(path)
    answer = warm.run(strict=True)
    assert "EntryRefusedError" in answer.errors and not answer.warnings, answer


def test_torch_without_the_hooks_reads_what_they_have_written(warm):
    answer = warm.run(stock=True)
    assert answer.ok and answer.hits == WARM and not answer.torch_warnings, answer


def test_program_that_does_not_import_safecache_has_what_it_loads_verified(patched, tmp_path):
    site = patched(NAME)
    cold = site.said(MODEL + PRINT, tmp_path)
    assert cold["hits"] == [0, 0] and cold["counters"]["sealed"] == 2, cold
    warm = site.said(MODEL + PRINT, tmp_path)
    assert warm["hits"] == [1, 1] and warm["counters"]["verified"] == 2, warm
    assert (warm["safecache"], warm["active"]) == (True, False), warm


def test_compile_workers_seal_what_they_build(patched, tmp_path):
    """They import the patched torch themselves."""
    site = patched(NAME)
    workers = {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
    cold = site.said(MODEL + PRINT, tmp_path, env=workers)
    assert cold["hits"] == [0, 0] and not cold["active"], cold
    libraries = {path.name for path in (tmp_path / "cache").glob("??/*.main.so")}
    assert libraries
    before = {path: path.stat().st_ino for path in (tmp_path / "cache").glob("??/*.so")}
    warm = site.said(MODEL + PRINT, tmp_path, env=workers)
    assert warm["hits"] == [1, 1] and warm["counters"]["code verified"] >= len(libraries), warm
    assert not {"code unsealed", "code damaged"} & set(warm["counters"]), warm
    assert {path: path.stat().st_ino for path in before} == before


def test_without_safecache_patched_torch_is_as_stock(patched, tmp_path):
    site = patched(NAME)
    for hits in ([0, 0], [1, 1]):
        said = site.said(MODEL + PRINT, tmp_path, importable=False)
        assert said == {"hits": hits, "safecache": False, "active": False, "counters": {}}, said


def test_bad_setting_is_said_once_and_torch_works(patched, tmp_path):
    done = patched(NAME).python(MODEL + PRINT, tmp_path, env={"SAFECACHE_STRICT": "perhaps"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("SAFECACHE_STRICT") == 1 and "not on in this process" in done.stderr, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["counters"] == {}


def test_all_patches_go_together(patched, tmp_path):
    """Each module that one of them changes can be imported, and entries hit."""
    site = patched(*_all_names())
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in _all_files()}
    modules = sorted(modules - {target.module for target in TARGETS if target.needs not in ("torch", "triton")})
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)\n{MODEL}{PRINT}"
    assert site.said(code, tmp_path)["hits"] == [0, 0]
    said = site.said(code, tmp_path)
    assert said["hits"] == [1, 1] and said["counters"]["verified"] == 2, said


def _patches():
    from safecache.source_patches import sites

    return [patch for site in sites.find(str(generate.installed())) for patch in site.patches]


def _all_names():
    return {patch.name for patch in _patches()}


def _all_files():
    return {path for patch in _patches() for path in patch.edits}


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_patch_is_what_is_generated_for_the_installed_release(package):
    site = generate.installed()
    release = generate.releases(site).get(package)
    if release is None:
        pytest.skip(f"needs {package}")
    assert generate.path_of(package, release).read_text() == generate.generate(site, package, release)
