"""`.ci/newest.py` finds, in sources alone, what would make a hook stand down, and sinks that nobody has looked at."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from conftest import NEEDS_TORCH, SOURCE

from safecache.patching.activation import list_hooks
from safecache.signing import provenance

spec = importlib.util.spec_from_file_location("newest", SOURCE / ".ci" / "newest.py")
newest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(newest)

SAVE = "torch._inductor.codecache.FxGraphCache._save_graph"


@pytest.fixture(scope="module")
def packages():
    """The directory that torch is installed in."""
    return Path(importlib.util.find_spec("torch").submodule_search_locations[0]).parent


def hook_on(name):
    return next(hook for _, hook in list_hooks() if hook.name == name)


@NEEDS_TORCH
def test_hooks_find_what_they_are_on_in_the_sources_as_in_the_process(packages):
    sources, release = newest.Sources([packages]), provenance.torch_release()
    hooks = [hook for _, hook in list_hooks() if hook.module.startswith(("torch.", "triton"))]
    if not (packages / "triton").exists():
        hooks = [hook for hook in hooks if not hook.module.startswith("triton")]
    found = {hook.name: newest.objection(hook, sources) for hook in hooks if not hook.is_not_for(release)}
    assert len(found) > 130 - 20 * (not (packages / "triton").exists())
    assert {name: why for name, why in found.items() if why} == {}


CHANGES = {
    "signature": ("def _save_graph(", "def _save_graph(\n        new,", "(new, key, compiled_graph, "),
    "renamed": ("def _save_graph(", "def _save_graph_otherwise(", "not found"),
}


@NEEDS_TORCH
@pytest.mark.parametrize("how", CHANGES)
def test_change_upstream_is_told_by_name(packages, tmp_path, how):
    old, new, why = CHANGES[how]
    source = (packages / "torch" / "_inductor" / "codecache.py").read_text(encoding="utf-8")
    assert source.count(old) == 1
    (tmp_path / "torch" / "_inductor").mkdir(parents=True)
    (tmp_path / "torch" / "_inductor" / "codecache.py").write_text(source.replace(old, new), encoding="utf-8")
    assert newest.objection(hook_on(SAVE), newest.Sources([packages])) == ""
    assert newest.objection(hook_on(SAVE), newest.Sources([tmp_path, packages])).startswith(why)


def test_problems_are_lines_with_package_version_unit_and_name(tmp_path):
    package = tmp_path / "torch" / "_inductor"
    package.mkdir(parents=True)
    (package / "codecache.py").write_text("import pickle\ndef new(path): return pickle.load(open(path))\n")
    lines = list(newest.problems({"torch": tmp_path}, {"torch": "2.16.0"}))
    assert f"torch 2.16.0: inductor: {SAVE}: not found" in lines
    assert "torch 2.16.0: new sink: torch/_inductor/codecache.py: new: pickle.load *1" in lines
    assert "torch 2.16.0: export: torch.export.load: there is no such module" in lines
    assert any(line.startswith("torch 2.16.0: sink is gone: torch/_inductor/codecache.py: ") for line in lines)
    assert not any("_utils.default_cache_dir: " in line or "vllm" in line for line in lines), "no hook, not asked for"


SOURCES = """
import other
from .below import moved as renamed
PLACE: str = "/"

class Base:
    def inherited(self, a, *, b=1): ...

class Derived(Base):
    if True:
        def conditional(self, *rest, **named): ...

try:
    def late(a, /, b=2): ...
except ImportError:
    def late(): ...
"""


def test_definitions_are_found_through_imports_bases_and_conditions(tmp_path):
    place = tmp_path / "upstream" / "package"
    (place / "below").mkdir(parents=True)
    (place / "__init__.py").write_text(SOURCES)
    (place / "below" / "__init__.py").write_text("from ..beside import moved\n")
    (place / "beside.py").write_text("def moved(x, y=None): ...\n")
    sources = newest.Sources([tmp_path])

    def of(name):
        module, node = sources.find("upstream.package", name)
        return newest.signature(node) if hasattr(node, "args") else (module, type(node).__name__)

    assert (of("renamed"), of("other"), of("late")) == ("x, y=", ("other", "Import"), "a, b=")
    assert of("PLACE") == ("upstream.package", "AnnAssign")
    _, derived = sources.find("upstream.package", "Derived")
    found = [
        newest.signature(sources.method("upstream.package", derived, name)) for name in ("inherited", "conditional")
    ]
    assert found == ["self, a, *b=", "self, rest, named"]
    assert sources.find("upstream.package", "gone") is None and sources.tree("upstream.gone") is None
