"""An entry that was there is told from one that never was, and why it is gone, as far as anybody knows."""

from __future__ import annotations

import shutil

from scenes import explain_scenes


def test_deleted_entry_is_told_from_another_key(product, run):
    shutil.rmtree(product.home.cache / "aotautograd")
    hits, said = product.run(explain_scenes.compile_product)
    assert hits == [0, 1]
    [line] = said
    assert "the same key was saved on" in line and "its entry is gone" in line
    assert [row["reason"] for row in product.rows() if row["layer"] == "aot"] == ["evicted", "never seen"]
    assert run("gc", "--max-files", "100000", product.home.cache).code == 0
    assert product.run(explain_scenes.compile_product) == ([1, 1], [])


def test_damaged_entry_is_told_with_the_reason_of_its_refusal(product):
    [entry] = product.home.aot_entries
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    hits, said = product.run(explain_scenes.compile_product)
    assert hits == [0, 1]
    assert any("its entry was refused: bad seal" in line or "its entry was refused: damaged" in line for line in said)
    row = next(row for row in product.rows() if row["layer"] == "aot")
    assert row["reason"] in ("bad seal", "damaged") and row["cause"].startswith("its entry was refused: ")


def test_deleted_graph_of_inductors_is_told_too(product):
    shutil.rmtree(product.home.cache / "fxgraph")
    hits, said = product.run(explain_scenes.compile_product)
    assert hits[1] == 0
    assert any("FX graph entry of program.product forward: the same key was saved on" in line for line in said), said
