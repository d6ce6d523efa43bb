"""What somebody else says was the fastest configuration of a kernel can at most choose among Inductor's candidates."""

from __future__ import annotations

import json
import os

import pytest
from scenes import artifact_scenes

from faults import damage

pytest.importorskip("triton")

STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
CANDIDATES, ELSEWHERE = (64, 128), 7
COORDESC = pytest.mark.parametrize("coordesc", [False, True], ids=["candidate", "coordesc"])


class Kernel:
    """A kernel of Inductor's, and the file with the result of its tuning."""

    def __init__(self, home):
        self.home = home
        self.filename = str(home.cache / "ab" / "cab.py")

    def save(self, size, **how):
        answer = self.home.run(artifact_scenes.save_tuning, filename=self.filename, size=size, **how)
        assert answer.ok and not answer.warnings, answer

    def read(self, **how):
        return self.home.run(artifact_scenes.read_tuning, filename=self.filename, **how)

    @property
    def result(self):
        (path,) = (self.home.cache / "ab").glob("*.best_config")
        return path

    def alter(self, **fields):
        self.result.write_text(json.dumps(json.loads(self.result.read_text()) | fields))


@pytest.fixture
def kernel(home):
    return Kernel(home)


@COORDESC
def test_result_is_read_in_a_fresh_process_and_by_stock_torch(kernel, coordesc):
    size = ELSEWHERE if coordesc else CANDIDATES[1]
    kernel.save(size, coordesc=coordesc)
    for stock in (False, True):
        answer = kernel.read(stock=stock)
        assert answer.ok and answer.result["size"] == size and not answer.warnings, answer


def test_result_belongs_to_the_cache_here_whatever_cache_an_autotuner_names(kernel):
    """One in an entry that has moved names the directory that it was made in, which may be there, and another's."""
    kernel.save(CANDIDATES[1])
    elsewhere = kernel.home.base / "elsewhere"
    elsewhere.write_text("where nothing can be opened")
    kernel.filename = str(elsewhere / "ab" / "cab.py")
    answer = kernel.read()
    assert answer.ok and answer.result["size"] == CANDIDATES[1] and not answer.warnings, answer
    assert kernel.read(stock=True).errors == ["NotADirectoryError"]
    elsewhere.unlink()
    kernel.save(CANDIDATES[0])
    assert kernel.read().result["size"] == CANDIDATES[0] and not list(elsewhere.rglob("*.best_config"))


def test_result_of_stock_torch_chooses_among_the_candidates(kernel):
    kernel.save(CANDIDATES[1], stock=True)
    answer = kernel.read(strict=True)
    assert answer.ok and answer.result["size"] == CANDIDATES[1], answer


@STRICTNESS
@pytest.mark.parametrize(
    "fields",
    [
        {"XBLOCK": ELSEWHERE, "num_warps": 8, "found_by_coordesc": True},
        {"found_by_coordesc": True},
        {"extra_options": {"evil": 1}},
    ],
    ids=["other-block", "coordesc", "options"],
)
def test_altered_result_that_is_no_candidate_is_not_used(kernel, zygote, fields, strict):
    if "extra_options" in fields and zygote.torch.startswith("2.11."):
        pytest.skip("torch 2.11 does not read options")
    kernel.save(CANDIDATES[1])
    kernel.alter(**fields)
    answer = kernel.read(strict=strict)
    if strict:
        assert answer.errors == ["EntryRefusedError"], answer
    else:
        assert answer.ok and answer.result == {"size": None, "altered": False}, answer
        assert len(answer.warnings) == 1 and str(kernel.result) in answer.warnings[0], answer
        assert answer.stats == {"unsealed": 1}, answer


def test_altered_result_runs_on_stock_torch(kernel):
    kernel.save(CANDIDATES[1], stock=True)
    kernel.alter(XBLOCK=ELSEWHERE, num_warps=8, found_by_coordesc=True)
    assert kernel.read(stock=True).result["size"] == ELSEWHERE


def test_result_of_coordinate_descent_of_stock_torch_is_used_by_private_trust_alone(kernel):
    kernel.save(ELSEWHERE, coordesc=True, stock=True)
    assert kernel.read().result["size"] is None
    answer = kernel.read(env={"SAFECACHE_TRUST": "private"})
    assert answer.ok and answer.result["size"] == ELSEWHERE and not answer.warnings, answer


GARBAGE = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[]",
    b"3",
    b'{"configs_hash": "the hash of the candidates", "found_by_coordesc": 1}',
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_garbage_in_place_of_a_result_is_tuned_again_and_heals(kernel, garbage):
    kernel.save(CANDIDATES[0])
    kernel.result.write_bytes(garbage)
    answer = kernel.read()
    assert answer.ok and answer.result["size"] is None, answer
    kernel.save(CANDIDATES[1])
    assert kernel.read().result["size"] == CANDIDATES[1]


@pytest.mark.timeout(120)  # would hang for ever
@pytest.mark.parametrize("how", [damage.fifo, damage.directory, damage.dangling_link], ids=lambda how: how.__name__)
def test_what_is_no_file_is_passed_over(kernel, how):
    kernel.save(CANDIDATES[0])
    how(kernel.result)
    answer = kernel.read()
    assert answer.ok and answer.result["size"] is None and len(answer.warnings) == 1, answer


def test_result_that_cannot_be_saved_is_a_warning(kernel):
    kernel.save(CANDIDATES[0])
    path = kernel.result
    damage.directory(path)
    (path / "full").touch()
    answer = kernel.home.run(artifact_scenes.save_tuning, filename=kernel.filename, size=CANDIDATES[0])
    assert answer.ok and len(answer.warnings) == 1 and os.path.basename(path) in answer.warnings[0], answer
