"""A program of torch.export runs nothing of whoever could write it, and loads as ever where it is plain, or sealed.

Each attack is shown to work on stock torch first (CVE-2026-4538).
"""

from __future__ import annotations

import os
import shutil

import pytest
from conftest import needs_root
from scenes import program_scenes

PLACES = ("sample inputs", "weights", "constants", "object", "expression", "legacy", *program_scenes.NAMED)
HOW = pytest.mark.parametrize("how", ["path", "buffer", "load_pt2"])
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
EXPECTED = [0.0, 3.0, 6.0, 9.0]


@pytest.fixture
def program(home):
    """One that was saved with safecache on."""
    path = home.base / "program.pt2"
    assert home.run(program_scenes.save_program, path=str(path)).ok
    return path


def load(home, path, **how):
    return home.run(program_scenes.load_program, path=str(path), **how)


def plant(home, program, where):
    marker = home.base / "ran"
    assert home.run(program_scenes.plant, path=str(program), where=where, marker=str(marker), stock=True).ok
    return marker


@pytest.mark.parametrize("where", PLACES)
def test_planted_code_runs_on_stock_torch(home, program, where):
    if where == "object" and load(home, program, stock=True).ok and not _has_objects(home):
        pytest.skip("this release pickles no objects")
    marker = plant(home, program, where)
    load(home, program, stock=True)
    assert marker.exists()


def _has_objects(home):
    return home.run(program_scenes.has_opaque_objects).result


@HOW
@STRICTNESS
@pytest.mark.parametrize("where", [*PLACES, "script object", "twice"])
def test_planted_code_does_not_run(home, program, where, how, strict):
    marker = plant(home, program, where)
    answer = load(home, program, how=how, strict=strict)
    assert not marker.exists(), answer
    # Torch itself knows no such archive, or takes the other member of that name.
    if (where, how) != ("legacy", "load_pt2") and where != "twice" and not answer.ok:
        assert answer.error in ("EntryRefusedError", "RuntimeError"), answer
    if where in ("sample inputs", "weights", "constants", "expression", *program_scenes.NAMED):
        assert answer.error == "EntryRefusedError" and "no trusted key has sealed it" in answer.messages[0], answer


@HOW
@STRICTNESS
def test_sealed_program_is_loaded(home, program, how, strict):
    answer = load(home, program, how=how, strict=strict, times=2)
    assert answer.result == EXPECTED and not answer.warnings, answer


@HOW
def test_sealed_program_with_a_pickle_is_loaded_and_an_unsealed_one_refused(home, tmp_path, how):
    for stock in (False, True):
        path = tmp_path / f"more{stock}.pt2"
        assert home.run(program_scenes.save_program_with_more, path=str(path), stock=stock).ok
        answer = home.run(program_scenes.load_inputs, path=str(path), how=how)
        if stock:
            assert answer.error == "EntryRefusedError", answer
        else:
            assert answer.result == "Fraction", answer


@HOW
def test_unsealed_program_that_is_plain_is_loaded(home, tmp_path, how):
    path = tmp_path / "stock.pt2"
    assert home.run(program_scenes.save_program, path=str(path), stock=True).ok
    answer = load(home, path, how=how, strict=True)
    assert answer.result == EXPECTED and not answer.warnings, answer


@HOW
def test_unsealed_program_of_many_parts_computes_the_same(home, tmp_path, how):
    path = tmp_path / "parts.pt2"
    assert home.run(program_scenes.save_program_of_many_parts, path=str(path), stock=True).ok
    stock, answer = (
        home.run(program_scenes.load_program_of_many_parts, path=str(path), how=how, stock=stock, strict=not stock)
        for stock in (True, False)
    )
    assert stock.ok and stock.result[1], stock
    assert answer.result == stock.result and not answer.warnings, answer


def test_stock_torch_loads_a_sealed_program(home, program):
    assert load(home, program, stock=True).result == EXPECTED


@pytest.mark.parametrize("how", ["path", "buffer"])
def test_program_in_a_buffer_is_sealed(home, tmp_path, how):
    path = tmp_path / "buffer.pt2"
    assert home.run(program_scenes.save_program, path=str(path), to_buffer=True).ok
    content = bytearray(path.read_bytes())
    assert load(home, path, how=how, stock=True).result == EXPECTED
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    assert load(home, path, how=how).error == "EntryRefusedError"


@HOW
@pytest.mark.parametrize("at", [0.2, 0.5, 0.9])
def test_flipped_bit_of_a_sealed_program_is_refused(home, program, how, at):
    content = bytearray(program.read_bytes())
    content[int(len(content) * at)] ^= 1
    program.write_bytes(content)
    assert load(home, program, how=how).error == "EntryRefusedError"


def test_program_of_an_unknown_key_is_restricted(home, new_home, program):
    other = new_home()
    assert load(other, program).result == EXPECTED
    shutil.copy(program, other.base / "more.pt2")
    marker = plant(home, program, "weights")
    assert load(other, program).error == "EntryRefusedError" and not marker.exists()


def test_adopted_program_is_loaded(home, tmp_path):
    path = tmp_path / "more.pt2"
    assert home.run(program_scenes.save_program_with_more, path=str(path), stock=True).ok
    assert home.run(program_scenes.adopt_program, path=str(path)).ok
    assert home.run(program_scenes.load_inputs, path=str(path)).result == "Fraction"


@needs_root
def test_sealed_program_that_others_can_replace_is_loaded_from_a_copy(home, program):
    os.chmod(program.parent, 0o777)
    assert load(home, program).result == EXPECTED


GARBAGE = {"empty": b"", "text": b"no archive", "end": b"PK\x05\x06" + bytes(18), "half": None}


@HOW
@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_archive_is_torchs_error(home, program, how, content):
    program.write_bytes(program.read_bytes()[:1000] if content is None else content)
    answer = load(home, program, how=how)
    assert answer.error and answer.error == load(home, program, how=how, stock=True).error, answer
