"""Units of hooks are described once, are left off by name, and can be those of other packages."""

from __future__ import annotations

import os
import re

import pytest
from conftest import NEEDS_TORCH, SOURCE, WARM

from safecache.patching import units
from safecache.patching.activation import list_hooks

NAMES = [unit.name for unit in units.UNITS]
LINK = re.compile(r"https://github\.com/[\w-]+/[\w-]+/((issues|pull)/\d+|blob/v\d+\.\d+\.\d+/[\w/.]+(#L\d+)?)")


def needing(name):
    """The unit, and those that need it."""
    found = {name}
    while True:
        more = {unit.name for unit in units.UNITS if found.intersection(unit.needs)} - found
        if not more:
            return sorted(found)
        found |= more


def test_table_names_the_modules_that_hooks_are_on():
    """It is read before the hooks are imported."""
    described = {}
    for _, hook in list_hooks():
        described.setdefault(hook.function.__module__, set()).add(hook.module)
    assert described == {name: set(on) for unit in units.UNITS for name, on in unit.modules.items()}


def test_units_have_names_of_their_own_and_say_what_they_need_and_what_is_lost():
    assert len(set(NAMES)) == len(NAMES) and {name for unit in units.UNITS for name in unit.needs} <= set(NAMES)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in NAMES)
    assert all(unit.lost[0].isupper() or unit.lost.startswith("vLLM") for unit in units.UNITS)
    assert all(unit.lost.endswith(".") for unit in units.UNITS)


@pytest.mark.parametrize("hook", [hook for _, hook in list_hooks()], ids=lambda hook: f"{hook.label}-{hook.name}")
def test_hook_says_which_defect_it_answers_with_a_link(hook):
    assert len(hook.why.split()) <= 25 and hook.why.endswith(".") and LINK.fullmatch(hook.issue)


def test_unit_that_is_left_off_leaves_stock_objects_and_all_others_on(fake):
    fake(
        f"""
        import os
        import_all()
        before = snapshot()
        import safecache
        for off in {[needing(name) for name in NAMES]}:
            os.environ["SAFECACHE_DISABLE"] = " , ".join(off)
            safecache.activate()
            found = {{}}
            for hook in safecache.status():
                found.setdefault(hook.unit, set()).add(str(hook.state))
            for unit, states in found.items():
                expected = "switched off" if unit in off else "active"
                assert states <= {{expected, "not for this torch"}}, (off, unit, states)
            on = {{hook.name for hook in safecache.status() if hook.state == "active"}}
            changed = {{".".join(key) for key in differences(before, snapshot())}}
            assert changed == on, (off, changed ^ on)
        safecache.deactivate()
        assert differences(before, snapshot()) == []
        """
    )


def test_unit_is_left_off_from_the_start_and_on_again_by_activation(fake):
    fake(
        """
        import os
        import_all()
        before = snapshot()
        import safecache
        some = differences(before, snapshot())
        os.environ["SAFECACHE_DISABLE"] = ""
        safecache.activate()
        assert all_are("active") and len(differences(before, snapshot())) == len(some) + 8
        """,
        SAFECACHE_DISABLE="vllm",
    )


def test_unit_that_another_needs_is_not_left_off_alone(fake):
    fake(
        """
        try:
            import safecache
        except ValueError as error:
            assert type(error).__name__ == "ConfigError"
            assert str(error) == "SAFECACHE_DISABLE='export' is not allowed alone: use it with aot_inductor, which need it"
        else:
            raise AssertionError("accepted")
        """,
        SAFECACHE_DISABLE="export",
    )


def test_name_of_no_unit_is_refused_with_those_there_are(fake):
    fake(
        """
        try:
            import safecache
        except ValueError as error:
            assert str(error).startswith("SAFECACHE_DISABLE='vlm' is not allowed: use units of "), error
            assert "remote_caches" in str(error) and "vllm" in str(error)
        else:
            raise AssertionError("accepted")
        """,
        SAFECACHE_DISABLE="vlm",
    )


UNIT = """
from safecache.patching.hook import hook
from safecache.patching.units import Unit

UNIT = Unit("acme", {"hooks": ("acme_jit",)}, "Kernels of Acme are loaded unverified.", package="acme_safecache")
"""
HOOKS = """
from safecache.patching.hook import hook

@hook(
    "acme_jit:load",
    "path",
    verifies=True,
    why="Acme loads what it finds.",
    issue="https://github.com/acme/jit/issues/1",
)
def load(wrapped, instance, args, kwargs):
    return "verified " + wrapped(*args, **kwargs)
"""


@pytest.fixture
def acme(tmp_path):
    """A package with a cache, and another with a unit for it, both installed."""
    place = tmp_path / "installed"
    for name, text in {
        "acme_jit.py": "def load(path): return path\n",
        "acme_safecache/__init__.py": UNIT,
        "acme_safecache/hooks.py": HOOKS,
        "acme_safecache-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-safecache\nVersion: 1\n",
        "acme_safecache-1.dist-info/entry_points.txt": f"[{units.GROUP}]\nacme = acme_safecache:UNIT\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


IMPORT = "import sys; sys.path.insert(0, {!r}); import safecache, acme_jit, torch, torch._inductor.codecache; "


def test_unit_of_another_package_is_on_with_ours(fake, acme):
    fake(
        f"""
        {IMPORT.format(str(acme))}
        assert acme_jit.load("a") == "verified a"
        found = [hook for hook in safecache.status() if hook.unit == "acme"]
        assert [(hook.name, hook.state) for hook in found] == [("acme_jit.load", "active")], found
        safecache.deactivate()
        assert acme_jit.load("a") == "a"
        """
    )


def test_unit_of_another_package_is_left_off_by_its_name(fake, acme):
    fake(
        f"""
        {IMPORT.format(str(acme))}
        assert acme_jit.load("a") == "a"
        assert [str(hook.state) for hook in safecache.status() if hook.unit == "acme"] == ["switched off"]
        """,
        SAFECACHE_DISABLE="acme",
        PYTHONPATH=os.pathsep.join(map(str, (acme, SOURCE))),
    )


BROKEN = {
    "raises": ("raise RuntimeError('no')", "RuntimeError: no"),
    "is no unit": ("UNIT = 1", "TypeError: acme_safecache:UNIT is no safecache.patching.units.Unit of this name"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_unit_that_cannot_be_loaded_stands_down_alone(fake, acme, how):
    text, why = BROKEN[how]
    (acme / "acme_safecache" / "__init__.py").write_text(text)
    said = fake(
        f"""
        {IMPORT.format(str(acme))}
        assert acme_jit.load("a") == "a"
        import_all()
        assert all_are("active"), states()
        """,
        loud=True,
    )
    assert [line for line in said.warnings if f"the unit acme stands down: {why}" in line] == said.warnings != []


def test_strict_mode_does_not_start_without_a_unit_that_is_installed(fake, acme):
    (acme / "acme_safecache" / "__init__.py").write_text("raise RuntimeError('no')")
    fake(
        f"""
        for _ in range(2):
            try:
                {IMPORT.format(str(acme))}
            except Exception as error:
                assert type(error).__name__ == "VerifierError" and "acme" in str(error), error
            else:
                raise AssertionError("started")
        """,
        loud=True,
        SAFECACHE_STRICT="1",
    )


# What these guard, the model does not use.
UNUSED = (
    "cpp_extension",
    "cute_dsl",
    "cutlass",
    "deep_gemm",
    "flashinfer",
    "flydsl",
    "halide",
    "isolation",
    "quack",
    "remote_caches",
    "sglang",
    "tilelang",
    "tvm_ffi",
    "vllm",
)


@NEEDS_TORCH
@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in UNUSED), "unused"])
def test_what_stays_on_saves_and_verifies_without_the_unit(name, home):
    """In the real torch: no warning, no error, and no entry that nothing takes."""
    off = UNUSED if name == "unused" else needing(name)
    cold, warm = (home.run(env={"SAFECACHE_DISABLE": ",".join(off)}) for _ in range(2))
    assert cold.ok and warm.ok and cold.warnings == warm.warnings == [], (cold, warm)
    if name == "inductor":
        assert cold.stats == warm.stats == {} and warm.hits == WARM
    else:
        assert cold.stats["saved"] == warm.stats["verified"] == 3 and "saved" not in warm.stats, (cold, warm)
