"""What the other modules here show on a fake torch holds on the installed one."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from conftest import NEEDS_TORCH, isolated_environment, python

from hooks import real_scenes
from hooks.conftest import FAKE_TORCH

pytestmark = [NEEDS_TORCH, pytest.mark.xdist_group("real torch")]
pytest.importorskip("triton", reason="torch would find the fake torch's Triton")

# Behind everything else, so that only the probe is found there: torch itself is the installed one.
START = f"""
import json, os, sys
sys.path.append({str(FAKE_TORCH)!r})
from probe import *
"""

ON_AND_OFF = """
import_all()
import copy, inspect, pickle

def travels(found):
    "How pickling and copying it, of its class and of an instance, ends: torch keeps methods in what it saves."
    said = []
    for travel in (lambda it: pickle.loads(pickle.dumps(it))), copy.copy, copy.deepcopy:
        try:
            copied = travel(found)
            said.append([copied == found, getattr(copied, "__qualname__", None), type(getattr(copied, "__self__", 0)).__name__])
        except Exception as error:
            said.append(type(error).__name__)
    return said

def journeys():
    said = {}
    for target in TARGETS:
        if target.name not in known or target.signatures[0].startswith("<module") or target.is_on_builtin:
            continue
        owner, name, _ = wrapt.resolve_path(sys.modules[target.module], target.attribute)
        said[target.name] = [travels(getattr(owner, name))]
        if isinstance(owner, type) and not inspect.isabstract(owner) and "__getattr__" not in vars(owner):
            said[target.name].append(travels(getattr(owner.__new__(owner), name)))
    return said

import contextlib, types
import safecache, torch
from safecache.places import layout; from safecache.patching import patching
from safecache.patching.activation import list_hooks
TARGETS = [hook for _, hook in list_hooks()]
import wrapt
known = states()
assert not torch.__file__.startswith(sys.path[-1])
codecache = sys.modules[CODECACHE]
said = {
    "stock": sorted(set(states().values())),
    "signatures": {
        t.name: [patching.format_signature(patching._resolve_attribute(sys.modules[t.module], t.attribute)), t.signatures]
        for t in TARGETS if t.name in states() and not t.is_on_builtin
    },
    "entry_name": [layout.name_entry(b"x"), codecache.sha256_hash(b"x")],
}
said["stock journeys"] = journeys()
for name in sorted({name for target in TARGETS for name in target.copies}):
    with contextlib.suppress(ImportError):  # not in each release
        importlib.import_module(name)
stock = {
    id(function): target.name for target in TARGETS if target.name in known
    for function in [vars(sys.modules[target.module]).get(target.attribute)]
    if (target.copies or getattr(function, "__module__", "") == target.module)
}

def holders():
    "Where the functions that are to be hooked are, but where they are from and what is hooked itself."
    modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    found = {(stock[id(value)], f"{m.__name__}.{n}") for m in modules for n, value in list(vars(m).items()) if id(value) in stock}
    return sorted(pair for pair in found if pair[1] not in known)

said["copies"] = holders()
before = snapshot()
safecache.activate()
said["copies on"] = holders()
said["on"], said["reasons"] = states(), reasons()
said["journeys"] = journeys()
said["patched"] = [".".join(key) for key in differences(before, snapshot())]
safecache.deactivate()
said["left over"] = differences(before, snapshot())
said["copies off"] = holders()
said["off"] = sorted(set(states().values()))
"""

WORKERS = """
from torch._inductor.compile_worker.subproc_pool import SubprocPool

def children(parents):
    found = set()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) in parents and state != "Z":
            found.add(int(name))
    return found

del os.environ["SAFECACHE"]
safecache.activate()
pool = SubprocPool(2)
ask = "(lambda m: bool(m) and m.is_active())(__import__('sys').modules.get('safecache'))"
said["worker"] = [type(pool.pickler).__name__, pool.submit(eval, ask).result(timeout=100)]
workers = children({pool.process.pid})
assert workers, "there is nothing to be left behind"
pool.shutdown()
end = time.monotonic() + 10
while workers and time.monotonic() < end:
    workers = {pid for pid in workers if os.path.exists(f"/proc/{pid}")}
    time.sleep(0.05)
said["left behind"] = [*workers, *children({os.getpid()})]
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def on_and_off(tmp_path_factory):
    """What an interpreter saw that imported torch, switched safecache on and off again, and on with a pool of workers."""
    directory = tmp_path_factory.mktemp("real_torch")
    environment = isolated_environment(directory) | {"SAFECACHE": "0"}
    done = python(START + ON_AND_OFF + WORKERS, env=environment, timeout=280, cwd=directory)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_hook_is_active(on_and_off):
    assert set(on_and_off["on"].values()) == {"active"}, on_and_off["reasons"]


def test_activating_changes_the_attributes_of_the_table_and_no_other(on_and_off):
    copies = {name for _, name in on_and_off["copies"]}
    assert sorted(set(on_and_off["patched"]) - copies) == sorted(on_and_off["on"])


def test_deactivating_puts_back_every_identical_object(on_and_off):
    assert on_and_off["left over"] == []
    assert on_and_off["stock"] == on_and_off["off"] == ["inactive"]


def test_functions_that_others_imported_by_name_before_are_hooked_there_too(on_and_off):
    """Wherever a server has imported what it needs of torch before its plugins are loaded."""
    names = {name for _, name in on_and_off["copies"]}
    assert "torch._functorch._aot_autograd.autograd_cache.write_atomic" in names and len(names) > 15
    assert on_and_off["copies on"] == [] and on_and_off["copies off"] == on_and_off["copies"]


def test_every_signature_is_in_the_table(on_and_off):
    for name, (found, known) in on_and_off["signatures"].items():
        assert found in known, name


def test_functions_and_methods_pickle_and_copy_as_in_stock(on_and_off):
    journeys, stock = on_and_off["journeys"], on_and_off["stock journeys"]
    for said in (journeys, stock):  # torch calls it by the name of an instance, where ours is found and its own is not
        said.pop("torch._precompile._PrecompileApi.load", None)
    assert journeys == stock and any("PicklingError" not in said[0] for said in journeys.values())


def test_entries_are_named_as_torch_names_them(on_and_off):
    ours, torchs = on_and_off["entry_name"]
    assert ours == torchs


def test_compile_workers_are_active(on_and_off):
    assert on_and_off["worker"] == ["WorkerPickler", True]


def test_pool_ends_when_it_is_shut_down(on_and_off):
    assert on_and_off["left behind"] == []


def test_status_command_finds_every_hook_active_in_modules_imported_later(home):
    answer = home.run(real_scenes.status)
    code, report = answer.result
    assert {hook["state"] for hook in report["hooks"]} - {"not for this torch"} == {"active"}, answer
    assert code == 0 and report["enabled"] and report["torch"].startswith(metadata.version("torch").split("+")[0])
