"""The table of paths in keys knows the settings of the torch that is installed, and the guide has what it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import NEEDS_TORCH

import safecache
from safecache.explain import baked

PAGE = (Path(safecache.__file__).parent / "guide" / "moving.md").read_text()
# Settings that only sound as if they named a path.
ELSE = {"inductor config assume_unaligned_fallback_output"}


def find_settings():
    """A scene: the names of settings in torch's keys that name a path, or could."""
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    found = []
    for module, title in ((inductor, "inductor"), (functorch, "functorch")):
        for name, value in module.save_config_portable(ignore_private_configs=False).items():
            named = re.search(r"(path|_dir|_home|_root|cxx|_libs?|_library|_output)$", name)
            if named or (isinstance(value, str) and "/" in value):
                found.append(f"{title} config {name}")
    return found


@NEEDS_TORCH
def test_each_setting_that_names_a_path_is_known(home):
    outcome = home.run(find_settings)
    assert outcome.ok and "inductor config cpp.cxx" in outcome.result, outcome
    names = set(outcome.result) - ELSE
    assert [name for name in names if baked.find_path(name) is None] == []
    assert [name for name in names if re.split(r"[ .]", name)[-1] not in PAGE] == []


@pytest.mark.parametrize("name", ["MLIR_DUMP_PATH", "LLVM_PASS_PLUGIN_PATH", "TRITON_PLUGIN_PATHS"])
def test_guide_names_each_variable_of_triton(name):
    assert baked.find_path(f"env {name}") is not None and f"`{name}`" in PAGE


def test_each_row_is_of_a_component():
    assert [row.path for row in baked.PATHS if not row.component] == []


@pytest.mark.parametrize(
    ("component", "path"),
    [
        ("inductor config cpp.cxx", "the compiler, from CXX"),
        ("inductor config rocm.ck_dir", "ROCm, and TORCHINDUCTOR_CK_DIR"),
        ("inductor config cpp.threads", None),
        ("graph", None),
    ],
)
def test_component_is_looked_up(component, path):
    found = baked.find_path(component)
    assert (found and found.path) == path
