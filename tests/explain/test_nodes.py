"""With a local tier on each node, what one has compiled explains what another did not find."""

from __future__ import annotations

import shutil

import pytest
from scenes import explain_scenes

pytestmark = pytest.mark.default_release


def test_miss_of_a_node_is_explained_by_what_another_has_saved(explained):
    nodes = {name: {"SAFECACHE_LOCAL": str(explained.home.base / name)} for name in ("a", "b")}
    explained.run(explain_scenes.compile_product, env=nodes["a"])
    hits, said = explained.run(explain_scenes.compile_product, env=nodes["b"], inductor={"max_autotune": True})
    assert hits == [0, 0] and len(said) == 2
    assert all("inductor config max_autotune: False → True (against" in line for line in said), said
    shutil.rmtree(explained.home.base / "b")  # the node is gone, and its journal with it
    for layer in ("aot", "fx"):
        assert explained.causes(layer) == ["inductor config max_autotune"]
