"""Dynamo keys a precompile entry by its function's name and first line, in whatever file: it is used for that one alone."""

from __future__ import annotations

import shutil

import pytest
from scenes import artifact_scenes

# All of them are compiled to one of two kernels.
ONE = "def forward(x):\n    return x.sin()\n"
OTHER = "def forward(x):\n    return x.cos()\n"
# The same bytecode, and other globals.
HELPED = "def forward(x):\n    return helper(x)\n\ndef helper(x):\n    return x.{}()\n"

HIT, MISS = [True, True], [False, True]
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


def write(home, name, text, directory="code"):
    path = home.base / directory / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path.parent)


def compiled(home, name, text, directory="code", **how):
    answer = home.run(artifact_scenes.precompile_of, directory=write(home, name, text, directory), name=name, **how)
    assert answer.ok and answer.warnings == [], answer
    return answer.result


@pytest.mark.parametrize(
    ("one", "other", "strict"),
    [
        (ONE, OTHER, False),
        (HELPED.format("sin"), HELPED.format("cos"), False),
        (HELPED.format("sin"), HELPED.format("cos"), True),
    ],
    ids=["another body", "the same body with other globals", "strict"],
)
def test_function_of_another_file_is_not_what_runs(home, one, other, strict):
    assert compiled(home, "one", one, strict=strict) == MISS
    assert compiled(home, "other", other, strict=strict) == MISS
    assert compiled(home, "other", other, strict=strict) == HIT


@STRICTNESS
def test_function_that_was_edited_in_place_is_compiled(home, strict):
    assert compiled(home, "one", ONE, strict=strict) == MISS
    shutil.rmtree(home.base / "code")
    assert compiled(home, "one", OTHER, strict=strict) == MISS


def test_checkout_elsewhere_hits(home):
    assert compiled(home, "one", ONE) == MISS
    assert compiled(home, "one", ONE, directory="elsewhere") == HIT
