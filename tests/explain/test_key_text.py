"""No secret of the environment is written down."""

from __future__ import annotations

import pytest

from safecache.explain import key_records


@pytest.mark.parametrize(
    "name",
    [
        *("HOME", "AWS_SECRET_ACCESS_KEY", "TORCH_TOKEN", "VLLM_API_KEY", "TRITON_PASSWORD", "vllm_x", "MY_TRITON_X"),
        *("TORCHINDUCTOR_REDIS_URL", "TORCH_CREDENTIALS", "VLLM_AUTH"),
    ],
)
def test_value_of_a_secret_or_of_another_program_is_not_shown(name):
    assert "hunter2" not in key_records.mask_variable(name, "hunter2")
    assert "hunter2" not in str(key_records.mask_environment({name: "hunter2"}))


@pytest.mark.parametrize(
    "name", ["TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_LOGS", "TRITON_DEBUG", "VLLM_USE_AOT_COMPILE", "DISABLE_LLVM_OPT"]
)
def test_value_that_decides_a_compile_is_shown(name):
    assert key_records.mask_variable(name, "1") == "1"
    assert key_records.mask_environment({name: "1"}) == ({} if name.startswith("DISABLE") else {name: "1"})
