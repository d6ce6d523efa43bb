"""Hooks that are in the source: safecache leaves to them what they do, and is not activated by their import of it."""

from __future__ import annotations

import json

import pytest
from conftest import python

from patches.conftest import installed
from safecache.patching.targets import TARGETS, VERIFYING

LAUNCHERS = {
    "torch._inductor.runtime.triton_heuristics.TritonCompileResult.make_launcher",
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner.__getstate__",
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner._build_fast_launcher",
}
# In a process that has torch, or Triton, not at all.
PATCHED = """
import sys
from safecache.patched import hook
def state():
    package = sys.modules["safecache"]
    return [type(package).__name__, package.is_active()]
"""
STATES = """
import json, sys, {first}
{then}
import importlib
from safecache.signing import provenance
from safecache.patching.targets import VERIFYING, TARGETS
release = provenance.torch_release()
for name in sorted({{target.module for target in TARGETS if not target.needs and not target.is_not_for(release)}}):
    if not name.startswith("triton") or {triton}:
        importlib.import_module(name)
import safecache
def states():
    return {{hook.name: [hook.state, hook.reason] for hook in safecache.status()}}
found = [states()]
safecache.deactivate()
found.append(states())
safecache.activate()
found.append(states())
print(json.dumps(found))
"""


@pytest.mark.parametrize("order", [("safecache", "import torch"), ("torch", "import safecache")], ids=" then ".join)
def test_hook_that_is_in_the_source_is_not_put_on_again(patched, tmp_path, order):
    """The others are, and off and on again nothing changes."""
    triton = installed("triton") is not None
    code = STATES.format(first=order[0], then=order[1], triton=triton)
    site = patched("verified-loads", "picklable-launchers")
    on, off, again = site.said(code, tmp_path)
    expected = {target.name for target in TARGETS if target.hook in VERIFYING} | LAUNCHERS
    known = {name for name, (state, _) in on.items() if state not in ("not for this torch", "not yet imported")}
    assert {name for name, (state, _) in on.items() if state == "in the source"} == expected & known
    assert {on[name][0] for name in known - expected} == {"active"}
    assert {off[name][0] for name in known - LAUNCHERS} == {"inactive"}
    # What needs no safecache cannot be turned off by it.
    assert {off[name][0] for name in known & LAUNCHERS} == {"in the source"}
    assert again == on and not any(reason for name, (_, reason) in on.items() if name in known)


def test_status_command_finds_all_well(patched, tmp_path):
    code = "import sys; from safecache.cli.main import main; sys.exit(main(['status', '--json']))"
    done = patched("verified-loads").python(code, tmp_path)
    hooks = json.loads(done.stdout.splitlines()[-1])["hooks"]
    assert "in the source" in {hook["state"] for hook in hooks}
    off = {hook["name"] for hook in hooks if hook["state"] not in ("in the source", "active", "not for this torch")}
    assert all(name.startswith("triton.") for name in off) and not (off and installed("triton")), off


@pytest.mark.parametrize(
    "statement",
    [
        "import safecache",
        "from safecache import stats",
        "import importlib; importlib.import_module('safecache')",
        "import safecache.errors",
    ],
)
def test_import_by_anybody_else_activates(tmp_path, statement):
    code = f"{PATCHED}assert state() == ['_Sleeping', False], state()\n{statement}\nassert state() == ['module', True]"
    done = python(code, cwd=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "repr(sys.modules)",
        "import importlib.util; importlib.util.find_spec('safecache')",
        "import inspect; inspect.getmodule(state); inspect.getmembers(sys.modules['safecache'])",
        "from safecache.patched import hook",
        "import importlib; importlib.import_module('safecache._plugins').vllm()",
    ],
)
def test_what_is_no_import_by_somebody_else_does_not(tmp_path, statement):
    code = f"{PATCHED}{statement}\nassert state() == ['_Sleeping', False], state()\n"
    # And does not keep a later import from it.
    code += "import safecache\nassert state() == ['module', True] and safecache.is_active(), state()"
    done = python(code, cwd=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_import_with_safecache_off_activates_nothing(tmp_path):
    done = python(f"{PATCHED}import safecache\nassert state() == ['module', False], state()", env={"SAFECACHE": "0"})
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_bad_setting_is_said_at_the_import_and_raises_nothing(tmp_path):
    code = f"{PATCHED}assert hook('codecache:write')(state) is state\nimport safecache\nprint('here')"
    done = python(code, cwd=tmp_path, env={"SAFECACHE_TRUST": "everybody"})
    assert done.stdout == "here\n" and "the hooks in the source are not on in this process" in done.stderr, done.stderr


def test_hook_that_cannot_be_imported_passes_calls_on_and_says_so_once(tmp_path):
    code = f"""{PATCHED}
import pickle
@hook("no_such_module:function")
def double(number):
    return 2 * number
assert [double(2), double(number=3)] == [4, 6]
assert hook("no_such_module:pickle")(pickle) is pickle
class Holder:
    @hook("no_such_module:function")
    @classmethod
    def name(cls, suffix=""):
        return cls.__name__ + suffix
assert Holder.name("!") == "Holder!"
"""
    done = python(code, cwd=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no_such_module:function is as in stock torch") == 1, done.stderr
