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
# In a process that has torch, or Triton, not at all, as in a source that is patched; and a hook that says if it is on.
PATCHED = """
import os, pickle, sys, types
from safecache_entry import hook
def loaded():
    return [name for name in sys.modules if name.partition(".")[0] == "safecache"]
def is_active():
    return sys.modules["safecache"].is_active()
sys.modules["safecache.hooks.simple"] = simple = types.ModuleType("simple")
simple.hooked = lambda wrapped, instance, args, kwargs: "hooked"
@hook("simple:hooked")
def function():
    return "stock"
"""
STATES = """
import json, sys, {first}
{then}
import importlib
from safecache.signing import provenance
from safecache.patching.targets import VERIFYING, TARGETS
release = provenance.torch_release()
needed = ["torch", "triton"] if {triton} else ["torch"]
for name in sorted({{target.module for target in TARGETS if target.needs in needed and not target.is_not_for(release)}}):
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


def ended_well(code, directory, said="", **environment):
    done = python(f"{PATCHED}{code}", cwd=directory, env={"XDG_CONFIG_HOME": str(directory)} | environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(said) == 1 if said else not done.stderr, done.stderr


DECORATED = """
del sys.modules["safecache.hooks.simple"]
class Holder:
    @hook("simple:hooked")
    @classmethod
    def name(cls):
        return cls.__name__
bound = Holder.name
stand_in = hook("pickle_module:sealing_pickle")(pickle)
assert isinstance(stand_in, types.ModuleType) and stand_in.HIGHEST_PROTOCOL == pickle.HIGHEST_PROTOCOL
class Pickler(stand_in.Pickler):
    pass
assert loaded() == [], loaded()
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import safecache",
        "from safecache import stats",
        "import importlib; importlib.import_module('safecache')",
        "import safecache.errors",
        "__import__('safecache')",
    ],
)
def test_decorating_loads_nothing_of_safecache_and_an_import_of_it_activates(tmp_path, statement):
    ended_well(f"{DECORATED}{statement}\nassert is_active()", tmp_path)


def test_importing_patched_torch_loads_nothing_of_safecache_and_an_import_of_it_activates(patched, tmp_path):
    code = """
import json, sys
def loaded():
    return sorted(name for name in sys.modules if name.startswith("safecache"))
import torch, torch._inductor.compile_fx, torch._dynamo.aot_compile
found = [loaded()]
import safecache
print(json.dumps(found + [safecache.is_active()]))
"""
    assert patched("verified-loads").said(code, tmp_path) == [["safecache_entry"], True]


@pytest.mark.parametrize("call", ["function()", "hook('pickle_module:sealing_pickle')(pickle).dumps(1)"])
def test_first_call_of_a_hook_loads_safecache_and_activates_nothing(tmp_path, call):
    code = f"{call}\nassert loaded() and not is_active() and function() == 'hooked'\n"
    # That is the price: a module that is loaded is not executed again.
    code += "import safecache\nassert not is_active()\nsafecache.activate()\nassert is_active()"
    ended_well(code, tmp_path)


def test_import_by_another_thread_than_that_of_the_hook_activates(tmp_path):
    ended_well(
        "import safecache_entry\nsafecache_entry._loading.append(1)\nimport safecache\nassert is_active()", tmp_path
    )


def test_hooks_obey_the_switch_and_then_what_was_called_last(tmp_path):
    code = """
stand_in = hook("pickle_module:sealing_pickle")(pickle)
def are_on():
    assert (function() == "hooked") == (stand_in.loads is not pickle.loads)
    return function() == "hooked"
assert not are_on()
import safecache
assert not is_active() and not are_on()
safecache.activate()
assert are_on()
safecache.deactivate()
assert not are_on()
"""
    ended_well(code, tmp_path, SAFECACHE="0")


def test_bad_setting_is_said_once_and_hooks_are_off_until_it_is_corrected(tmp_path):
    code = """
assert [function(), function()] == ["stock", "stock"] and not is_active()
os.environ["SAFECACHE_TRUST"] = "private"
assert function() == "hooked"
"""
    said = "the hooks in the source are not on in this process: SAFECACHE_TRUST='everybody'"
    ended_well(code, tmp_path, said, SAFECACHE_TRUST="everybody")


CANNOT_BE_IMPORTED = """
@hook("no_such_module:function")
def double(number):
    return 2 * number
assert [double(2), double(number=3)] == [4, 6]
assert hook("no_such_module:function")(pickle).dumps(1) == pickle.dumps(1)
class Holder:
    @hook("no_such_module:function")
    @classmethod
    def name(cls, suffix=""):
        return cls.__name__ + suffix
assert Holder.name("!") == "Holder!"
"""


@pytest.mark.parametrize("strict", ["0", "1"])
def test_hook_that_cannot_be_imported_passes_calls_on_and_says_so_once(tmp_path, strict):
    """In strict mode too, where it verifies nothing."""
    said = "no_such_module:function is as in stock torch"
    ended_well(CANNOT_BE_IMPORTED, tmp_path, said, SAFECACHE_STRICT=strict)


@pytest.mark.parametrize(
    ("decorated", "call"),
    [("codecache:load_library", "decorated()"), ("pickle_module:sealing_pickle", "decorated.loads(b'')")],
)
def test_hook_that_verifies_and_cannot_be_imported_is_an_error_in_strict_mode(tmp_path, decorated, call):
    module = decorated.partition(":")[0]
    original = "pickle" if "pickle" in module else "lambda: pickle.loads(b'')"
    code = f"""
sys.modules["safecache.hooks.{module}"] = None
decorated = hook("{decorated}")({original})
for attempt in range(2):
    try:
        {call}
    except Exception as error:
        assert type(error).__name__ == "VerifierError", error
    else:
        assert False
"""
    ended_well(code, tmp_path, SAFECACHE_STRICT="1")


BROKEN = """
sys.modules["safecache.reporting.events"] = None
for attempt in range(2):
    try:
        print(function())
    except ImportError:
        print("refused")
"""


@pytest.mark.parametrize(
    ("environment", "outcome"),
    [
        ({}, "stock"),
        ({"SAFECACHE_STRICT": "1"}, "refused"),
        ({"SAFECACHE_STRICT": "1", "SAFECACHE": "0"}, "stock"),
    ],
    ids=["default", "strict", "off"],
)
def test_safecache_that_cannot_be_loaded_is_said_once_and_an_error_in_strict_mode(tmp_path, environment, outcome):
    done = python(PATCHED + BROKEN, cwd=tmp_path, env=environment)
    assert done.returncode == 0 and done.stdout.split() == [outcome] * 2, done.stderr
    assert done.stderr.count("safecache: the hooks in the source are not on in this process: ") == 1


def test_without_wrapt_sources_are_as_in_stock(tmp_path):
    code = "import sys, pickle\nsys.modules['wrapt'] = None\nfrom safecache_entry import hook\n"
    code += "assert hook('locks:release')(print) is print and hook('pickle_module:sealing_pickle')(pickle) is pickle"
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_functions_and_methods_pickle_and_copy_as_in_stock(tmp_path):
    code = """
import copy
class Holder:
    @hook("simple:hooked")
    def method(self): pass
    @hook("simple:hooked")
    @staticmethod
    def static(): pass
    @hook("simple:hooked")
    @classmethod
    def of_class(cls): pass
def made():
    @hook("simple:hooked")
    def local(): pass
    return local
holder = Holder()
for travel in (lambda it: pickle.loads(pickle.dumps(it))), copy.copy, copy.deepcopy:
    assert travel(function) is function
    assert type(travel(holder.method).__self__) is Holder and travel(holder.method)() == "hooked"
    assert travel(Holder.of_class).__self__ is Holder and travel(Holder.static)() == "hooked"
assert copy.copy(holder.method).__self__ is holder and copy.deepcopy(holder.method).__self__ is not holder
try:
    pickle.dumps(made())
except (pickle.PicklingError, AttributeError):
    pass
else:
    assert False
"""
    ended_well(code, tmp_path)


LEFT = "directory_faults._parent_tells and fallback._parent_tells"


def test_compile_worker_leaves_to_its_parent_what_that_decides(tmp_path):
    code = """
sys.modules["__main__"].__file__ = "/torch/_inductor/compile_worker/__main__.py"
function()
from safecache.tiers import directory_faults, fallback
"""
    ended_well(f"{code}assert {LEFT}", tmp_path)
    ended_well(f"{code.replace('/compile_worker', '')}assert not ({LEFT})", tmp_path)


def test_source_that_0_1_0_has_patched_finds_its_hooks_and_activates(tmp_path):
    code = "from safecache.patched import hook as old\nassert old is hook and is_active() and function() == 'hooked'"
    ended_well(code, tmp_path)
