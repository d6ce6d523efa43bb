"""The digest of a function: what an edit changes, and what a restart does not."""

from __future__ import annotations

import functools
import subprocess
import sys
import types

import pytest
from conftest import SOURCE

from safecache import fingerprints
from safecache.fingerprints import functions, operators
from safecache.places.refs import Ref
from safecache.ports import Compiling
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.signing import provenance

TEXT = """
FACTOR = {factor}
TABLE = {{"by": {table}}}
count = {calls}

def helper(x):
    return x * {inner}

def counted(x):
    global count
    count += 1
    return helper(x) * FACTOR * TABLE["by"]

def outer(by={default}):
    def inner(x):
        return x {sign} by
    return inner
"""
PLAIN = {"factor": 2, "table": 0, "calls": 0, "inner": 3, "default": 4, "sign": "+"}


def module(file="a.py", above="", **changes):
    made = types.ModuleType("edited_module")
    exec(compile(above + TEXT.format(**PLAIN | changes), file, "exec", dont_inherit=True), made.__dict__)
    return made


@pytest.mark.parametrize("change", [{"factor": 3}, {"inner": 4}, {"factor": "None"}, {"table": 1}], ids=repr)
def test_what_it_refers_to_is_part_of_it(change):
    assert functions.digest([module().counted]) != functions.digest([module(**change).counted])


@pytest.mark.parametrize("change", [{"default": 5}, {"sign": "-"}], ids=repr)
def test_what_it_encloses_is_part_of_it(change):
    assert functions.digest([module().outer()]) != functions.digest([module(**change).outer()])


@pytest.mark.parametrize(
    "change", [{"file": "/elsewhere/b.py"}, {"above": "# a comment\n" * 9}, {"calls": 7}], ids=repr
)
def test_where_it_lies_and_how_often_it_was_called_is_not(change):
    assert functions.digest([module().counted]) == functions.digest([module(**change).counted])


def test_partials_methods_and_objects_are_followed():
    class Called:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return module().helper(x)

        @staticmethod
        def apart(x):
            return x + 1

    first, second = module().helper, module(inner=9).helper
    assert functions.digest([functools.partial(first, 1)]) != functions.digest([functools.partial(second, 1)])
    assert functions.digest([Called(1)]) and functions.digest([Called(1).apart])


@pytest.mark.parametrize(
    "argument", [lambda helper: functools.partial(print, end=helper), lambda helper: lambda: helper]
)
def test_what_is_called_inside_or_given_by_name_is_followed(argument):
    assert functions.digest([argument(module().helper)]) != functions.digest([argument(module(inner=9).helper)])


def test_globals_of_functions_within_are_part_of_it():
    def made(factor):
        found = types.ModuleType("edited_module")
        exec(f"FACTOR = {factor}\ndef outer():\n    return lambda x: x * FACTOR", found.__dict__)
        return found.outer

    assert functions.digest([made(2)]) != functions.digest([made(3)])


def test_both_halves_of_a_gradient_are_part_of_it():
    def made(backward, setup):
        return types.SimpleNamespace(_backward_fn=backward.helper, _setup_context_fn=setup.helper)

    same, other = module(), module(inner=9)
    assert len({functions.digest([made(*each)]) for each in ((same, same), (same, other), (other, same))}) == 3


def test_objects_among_constants_do_not_differ_from_one_process_to_the_next():
    first, second = object(), object()
    assert functions.digest([lambda x, by=(first,): x]) == functions.digest([lambda x, by=(second,): x])


def test_a_variable_that_is_not_bound_yet_breaks_nothing():
    def outer():
        def inner(x):
            return later(x)

        found = functions.digest([inner])
        later = None
        return found, later

    assert outer()[0]


def test_the_last_of_very_many_functions_is_part_of_it():
    def made(last):
        many = [types.FunctionType((lambda: 0).__code__, {}) for _ in range(300)]
        return [*many, module(inner=last).helper]

    assert functions.digest(made(1)) != functions.digest(made(2)) != ""


def test_a_walk_without_end_is_an_error(monkeypatch):
    monkeypatch.setattr(functions, "_MOST", 100)
    kept = [[number] for number in range(101)]
    with pytest.raises(LookupError):
        functions.digest([lambda: kept])


def test_paths_are_not_part_of_it():
    def made(path):
        return lambda x: (path, x)

    assert functions.digest([made("/one")]) == functions.digest([made("/other")]) != functions.digest([made("one")])


def test_what_is_upstreams_alone_has_none():
    assert functions.digest([functools.wraps, len, None, functools.partial(sorted)]) == ""


def test_what_upstream_keeps_is_not_part_of_what_uses_it():
    """Its counters and settings, for instance, which differ from one start to the next."""
    state = types.ModuleType("torch.state")
    theirs = types.FunctionType((lambda: state).__code__, {}, closure=(types.CellType(1),))
    theirs.__module__ = "torch.state"
    assert functions.digest([theirs]) == ""

    def made(value):
        state.calls = value
        found = types.ModuleType("edited_module")
        found.state = state
        exec("def function(x):\n    return x * state.calls", found.__dict__)
        return functions.digest([found.function])

    assert made(1) == made(2) != ""


def test_a_walk_ends():
    def first():
        return second()

    def second():
        return first()

    assert functions.digest([first]) != functions.digest([second])


def test_a_module_that_is_not_imported_stays_so(tmp_path, monkeypatch):
    text = TEXT.format(**PLAIN) + "\nclass Layer:\n    def forward(self):\n        return 1\n\nraise SystemExit\n"
    (tmp_path / "not_imported_yet.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    expected = provenance.digest_code(module().helper.__code__)
    assert functions.digest_named("not_imported_yet", "helper") == expected
    assert functions.digest_named("not_imported_yet", "Layer.forward") and "not_imported_yet" not in sys.modules
    assert (
        functions.digest_named("not_imported_yet", "gone")
        == functions.digest_named("no_such_module_anywhere", "f")
        == ""
    )
    assert functions.digest_named("no_such_package.inner", "f") == ""


def test_a_package_that_is_not_imported_stays_so(tmp_path, monkeypatch):
    (tmp_path / "closed_package").mkdir()
    (tmp_path / "closed_package" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "closed_package" / "inner.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert functions.digest_named("closed_package.inner", "f") == "" and "closed_package" not in sys.modules


def test_of_two_functions_of_one_name_the_last_is_meant(tmp_path, monkeypatch):
    (tmp_path / "defined_twice.py").write_text("def f():\n    return 1\n\ndef f():\n    return 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = functions.digest_named("defined_twice", "f")
    import defined_twice

    assert before == provenance.digest_code(defined_twice.f.__code__)


def test_what_a_module_has_from_another_is_not_named_by_its_line(monkeypatch):
    made, other = types.ModuleType("importing_module"), module(above="\n" * 500)
    made.borrowed = other.helper
    assert other.helper.__module__ != "importing_module"
    assert functions.find_at_line(made, other.helper.__code__.co_firstlineno) == ""


def test_functions_are_named_by_their_first_line(monkeypatch):
    made = module()
    made.helper.__module__ = "edited_module"
    monkeypatch.setitem(sys.modules, "edited_module", made)
    name = functions.find_at_line(made, made.helper.__code__.co_firstlineno)
    assert name == "helper" and functions.digest_named("edited_module", name)
    assert functions.find_at_line(made, 10_000) == ""


def test_an_op_that_raises_when_it_is_looked_at_is_reported_and_a_miss(isolated, settings, monkeypatch):
    def fail(name):
        raise RuntimeError("its property raises")

    monkeypatch.setattr(operators, "fingerprint_operator", fail)
    sealed = {fingerprints.FIELD: '{"files":{},"ops":{"shop.op.default":{"schema":"shop::op() -> ()"}}}'}
    refusal = fingerprints.find_refusal(Ref(Kind.FX_ENTRY, "key"), sealed)
    assert refusal is not None and "SAFECACHE_ASSUME_UNCHANGED=shop.op.default" in refusal.evidence
    assert events.read_counters() == {"key not recorded": 1}
    settings(SAFECACHE_ASSUME_UNCHANGED="shop.op.default")
    assert fingerprints.find_refusal(Ref(Kind.FX_ENTRY, "key"), sealed) is None


def test_a_kernel_has_no_ops_to_be_looked_at(isolated, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("looked at")

    monkeypatch.setattr(operators, "list_ops", fail)
    fingerprints.note_compile(Compiling(Ref(Kind.KERNEL, "key"), object()))
    assert events.read_counters() == {}


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"ops":[]}', '{"ops":{"a":1}}', '{"rank":"1"}'])
def test_a_statement_that_is_none_is_taken_for_none(isolated, text):
    assert fingerprints.find_refusal(Ref(Kind.FX_ENTRY, "key"), {fingerprints.FIELD: text}) is None


def test_a_part_of_a_newer_safecache_is_passed_over(isolated):
    sealed = {fingerprints.FIELD: '{"files":{},"ops":{},"weather":{"":"sunny"}}'}
    assert fingerprints.find_refusal(Ref(Kind.FX_ENTRY, "key"), sealed) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x, by=2: x * by, lambda x, by=3: x * by),
        (lambda x, *, by=2: x * by, lambda x, *, by=3: x * by),
        (lambda x: x in {1, 2}, lambda x: x in {1, 3}),
        (lambda x: x in (1, 2), lambda x: x in (1, 2.0)),
        (lambda x: x in (1, 2), lambda x: x in {1, 2}),
    ],
    ids=["default", "default by name", "set", "type", "tuple and set"],
)
def test_defaults_and_constants_are_part_of_it(one, other):
    assert functions.digest([one]) != functions.digest([other])


def test_sets_have_no_order():
    code = "import sys; from safecache.fingerprints import functions; print(functions.digest([eval(sys.argv[1])]))"
    command = [sys.executable, "-c", code, "lambda x: x in {'a', 'b', 'c', 'd'}"]
    environment = {"PYTHONPATH": str(SOURCE), "SAFECACHE": "0"}
    made = {subprocess.check_output(command, env=environment | {"PYTHONHASHSEED": seed}) for seed in "12"}
    assert len(made) == 1 and made != {b"\n"}
