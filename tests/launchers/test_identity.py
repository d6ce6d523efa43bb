"""A launcher is named after its kernel, its config and its binary, the same in every process."""

from __future__ import annotations

import pytest
from scenes import launcher_scenes

pytest.importorskip("triton")

KINDS = ["static", "ordinary", "store_cubin"]


def identities(home, kind, **options):
    answer = home.run(launcher_scenes.identities, name=kind, **options)
    assert answer.ok, answer
    return answer.result


@pytest.mark.parametrize("kind", KINDS)
def test_name_tells_kernel_config_and_binary(home, kind):
    for module, name, qualname, cache_hash in identities(home, kind):
        assert (module, name) == ("safecache.launchers", "triton_poi_scale")
        assert qualname.startswith("triton_poi_scale[") and "XBLOCK=" in qualname and "num_warps=4" in qualname
        assert qualname.endswith(f"]@{cache_hash[:16]}") and len(cache_hash) > 16


@pytest.mark.parametrize("kind", KINDS)
def test_name_is_the_same_in_another_process_and_in_a_copy(home, kind):
    first = identities(home, kind)
    assert first == identities(home, kind)
    assert first[: len(first) // 2] == first[len(first) // 2 :], "those after the first half came from a pickle"


@pytest.mark.parametrize("kind", ["static", "ordinary"])
def test_name_differs_between_configs_of_a_kernel(home, kind):
    qualnames = {qualname for _, _, qualname, _ in identities(home, kind)}
    assert len(qualnames) == 2 and {"XBLOCK=128", "XBLOCK=256"} == {n.split("[")[1].split(",")[0] for n in qualnames}


def test_function_as_meta_parameter_goes_by_its_name(home):
    qualname = identities(home, "user")[0][2]
    assert qualname.startswith("user_kernel[FUNCTION=double,XBLOCK=128,") and "0x" not in qualname


def test_stock_launchers_share_one_name(home):
    qualnames = {qualname for _, _, qualname, _ in identities(home, "static", stock=True)}
    assert qualnames == {"launcher"}
