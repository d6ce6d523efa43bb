"""What real compiles have left is listed by name, build and signer, and nothing of it is used for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE
from scenes import kernel_scenes

pytestmark = pytest.mark.default_release


def ask(home, *arguments, code=0):
    """What a command says as JSON, with the keys and directories of this home."""
    done = subprocess.run(
        [sys.executable, "-m", "safecache", *map(str, arguments), "--json"],
        env=os.environ | home.environment | {"TMPDIR": str(home.base), "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr + done.stdout
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_entries_and_libraries_of_a_compile_are_named_and_sealed(warm, zygote):
    rows = ask(warm, "ls")["entries"]
    by_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in ("aot", "fx", "code")}
    assert [len(by_kind[kind]) for kind in ("aot", "fx")] == [1, 2]
    for row in by_kind["aot"] + by_kind["fx"]:
        assert row["states"] == {"sealed": 1} and row["torch"] == zygote.torch
        assert "cpp_fused_" in row["name"], row
    libraries = [row for row in by_kind["code"] if any(path.endswith(".so") for path in row["paths"])]
    assert libraries and all(row["states"] == {"sealed": 1} for row in libraries)
    [aot] = by_kind["aot"]
    told = ask(warm, "show", aot["key"][:12])["entries"][0]
    assert {row["key"] for row in by_kind["fx"]} <= set(told["refers_to"])
    assert all(file["verified"] for file in told["contents"])
    assert warm.run().hits == (1, 2), "listing changes nothing"


def test_kernel_is_told_with_what_it_was_compiled_for(home):
    assert home.run(kernel_scenes.compile_kernel).result["compiled"]
    [row] = [row for row in ask(home, "ls", "--kind", "triton")["entries"] if row["name"] == "triton_poi_scale"]
    assert row["gpu"] == "sm_90" and row["triton"] and row["states"] == {"sealed": 1}
    told = ask(home, "show", "triton_poi_scale")["entries"][0]
    assert told["options"]["num_warps"] == "4" and all(file["verified"] for file in told["contents"])


def test_what_stock_torch_has_left_is_told_as_unsealed(home):
    assert home.run(stock=True).ok
    rows = [row for row in ask(home, "ls")["entries"] if row["kind"] in ("aot", "fx")]
    assert rows and all(row["states"] == {"unsealed": 1} and "cpp_fused_" in row["name"] for row in rows)


def test_damaged_entry_is_found_by_verify_in_the_directories_of_the_environment_and_told_in_quarantine(warm):
    found = ask(warm, "verify")
    assert found["refused"] == [] and found["entries"] == 3 and found["code"] > 0
    entry = warm.fx_entries[0]
    content = entry.read_bytes()
    entry.write_bytes(b"x" + content[1:])
    assert [each["path"] for each in ask(warm, "verify", code=1)["refused"]] == [str(entry)]
    assert warm.run().ok
    [item] = ask(warm, "quarantine")["items"]
    assert (item["from"], item["reason"], item["bytes"]) == (str(entry), "damaged", len(content))
    assert ask(warm, "quarantine", "show", item["item"])["refused"]
    assert ask(warm, "quarantine", "rm", "--all")["removed"] == [item["item"]]
    assert ask(warm, "quarantine")["items"] == []
