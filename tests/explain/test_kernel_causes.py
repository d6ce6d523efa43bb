"""A miss of a Triton kernel is explained by what was changed, and by nothing else."""

from __future__ import annotations

import shutil

import pytest
from scenes import explain_kernel_scenes

pytest.importorskip("triton", reason="needs Triton", exc_type=ImportError)

KERNEL = """
import triton
import triton.language as tl

FACTOR: tl.constexpr = tl.constexpr(2.0)

@triton.jit
def times(x):
    return x * FACTOR

@triton.jit
def scale(source, destination, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    tl.store(destination + index, times(tl.load(source + index, mask)), mask)
"""


@pytest.fixture(scope="session")
def kernel_template(new_home):
    """A home with scale() in Triton's cache."""
    home = new_home()
    path = home.base / "kernels.py"
    path.write_text(KERNEL)
    answer = home.run(explain_kernel_scenes.compile_scale, env={"SAFECACHE_EXPLAIN": "1"}, path=str(path))
    assert answer.ok and answer.result is True, answer
    return home


@pytest.fixture
def kernel(explained, kernel_template):
    base = explained.home.base
    shutil.copytree(kernel_template.base, base, dirs_exist_ok=True)
    explained.path = base / "kernels.py"
    return explained


def differences(kernel, text=KERNEL, **changes):
    """What the process said that had to compile it, and what is said of it then."""
    kernel.path.write_text(text)
    compiled, said = kernel.run(explain_kernel_scenes.compile_scale, path=str(kernel.path), **changes)
    assert compiled is True
    row = kernel.rows(directory=kernel.home.base / "triton")[0]
    assert row["layer"] == "triton" and row["name"] == "kernels.scale"
    [line] = said
    assert all(each["what"] in line for each in row["differences"]), (said, row)
    return {each["what"]: (each["before"], each["after"]) for each in row["differences"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"block": 256}, {"constexpr BLOCK": ("128", "256")}, id="constexpr"),
        pytest.param({"num_warps": 8}, {"option num_warps": ("4", "8")}, id="num_warps"),
        pytest.param({"arch": 80}, {"target": ("cuda 90", "cuda 80")}, id="device"),
        pytest.param(
            {"variables": {"TRITON_DISABLE_LINE_INFO": "1"}}, {"env TRITON_DISABLE_LINE_INFO": ("", "true")}, id="env"
        ),
        pytest.param({"signature": {"count": "i64"}}, {"type of argument count": ("i32", "i64")}, id="type"),
        pytest.param(
            {"aligned": True}, {"attributes of argument source": ("", "[['tt.divisibility', 16]]")}, id="alignment"
        ),
    ],
)
def test_changed_part_of_a_kernels_key_is_named_with_both_values(kernel, change, expected):
    assert differences(kernel, **change) == expected


def test_edited_kernel_is_told_by_its_line(kernel):
    said = differences(kernel, KERNEL.replace("index < count", "index <= count"))
    assert said == {"kernel source line 3": ("mask = index < count", "mask = index <= count")}


def test_edited_function_that_it_calls_is_named(kernel):
    said = differences(kernel, KERNEL.replace("x * FACTOR", "FACTOR * x"))
    assert list(said) == ["source of times, which it calls"]


def test_kernel_that_only_moved_in_its_file_is_told_by_its_line_number(kernel):
    said = differences(kernel, KERNEL.replace("@triton.jit\ndef scale", "\n\n@triton.jit\ndef scale"))
    assert list(said) == ["first line of the kernel in its file"]


def test_another_build_of_triton_is_named_and_not_what_follows_from_it(kernel):
    assert list(differences(kernel, triton_key="0123456789abcdef")) == ["triton"]


def test_kernel_in_the_cache_is_not_explained(kernel):
    compiled, said = kernel.run(explain_kernel_scenes.compile_scale, path=str(kernel.path))
    assert compiled is False and said == []
    assert len(kernel.rows(directory=kernel.home.base / "triton")) == 1


def test_deleted_kernel_is_told_from_another_key(kernel):
    for folder in (kernel.home.base / "triton").glob("[A-Z2-7]*"):
        shutil.rmtree(folder)
    compiled, [line] = kernel.run(explain_kernel_scenes.compile_scale, path=str(kernel.path))
    assert compiled is True and "the same key was saved on" in line
