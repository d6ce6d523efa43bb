"""A feature is a folder and the lines of features.py that name it: without both, torch compiles, saves and finds as before."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.testing import isolated

FEATURES = (
    *("explain", "flights", "history", "isolation", "metrics", "omitted", "packs", "remote", "trials"),
    "recompile_check",
)
PROGRAM = """
import json, safecache, torch
found = []
for _ in range(2):
    safecache.reset()
    torch._dynamo.reset()
    value = torch.compile(lambda x: torch.relu(x * 3) @ x.T)(torch.ones(5, 3)).sum().item()
    found.append([value, safecache.stats()])
down = [each for each in safecache.status() if str(each.state) == "standing down"]
print(json.dumps([*found, list(map(str, down))]))
"""


class Removal(ast.NodeTransformer):
    """Of what names a feature: its imports, what is done with what they bind, and its rows."""

    def __init__(self, feature):
        self.feature, self.names = feature, set()

    def visit_ImportFrom(self, node):
        is_below = f"{node.module}.".startswith(f"safecache.{self.feature}.")
        kept = [each for each in node.names if not is_below and each.name != self.feature]
        self.names |= {each.asname or each.name for each in node.names if each not in kept}
        node.names = kept
        return node if kept else None

    def visit_Expr(self, node):
        return None if self.uses(node) else node

    def visit_Assign(self, node):
        return None if self.uses(node.value) and not isinstance(node.value, ast.Tuple) else self.generic_visit(node)

    def visit_If(self, node):
        self.generic_visit(node)
        return node if node.body else None

    def visit_Tuple(self, node):
        row = re.compile(rf"'{self.feature}\.\w+'")
        node.elts = [each for each in node.elts if not row.search(ast.unparse(each))]
        return node

    def uses(self, node):
        return any(isinstance(each, ast.Name) and each.id in self.names for each in ast.walk(node))


def remove(feature, root):
    """Take the feature out of the package below ``root``."""
    shutil.rmtree(root / "safecache" / feature)
    path = root / "safecache" / "features.py"
    path.write_text(ast.unparse(Removal(feature).visit(ast.parse(path.read_text(encoding="utf-8")))))


@pytest.mark.parametrize("feature", FEATURES)
def test_all_else_works_without(feature, tmp_path):
    shutil.copytree(SOURCE / "safecache", tmp_path / "safecache", ignore=shutil.ignore_patterns("__pycache__"))
    remove(feature, tmp_path)
    environment = os.environ | isolated(tmp_path) | {"PYTHONPATH": str(tmp_path)}
    environment["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"

    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "safecache:" not in done.stderr, done.stderr
    (first, cold), (second, warm), down = json.loads(done.stdout)
    assert first == second == 225.0 and down == []
    assert cold["saved"] == 2 and warm["verified"] == 2 and "saved" not in warm, (cold, warm)
