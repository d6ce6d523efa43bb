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

pytestmark = pytest.mark.xdist_group("features")
FEATURES = (
    *("crash_guard", "explain", "fingerprints", "history", "isolation", "metrics", "packs", "remote", "single_flight"),
    "recompile_check",
)
# Forks for each directory with a package, so that torch is imported once; one thread, or a child of it would hang.
PROGRAM = """
import json, os, sys
import torch, torch._inductor.compile_fx

def compile():
    torch._dynamo.reset()
    return torch.compile(lambda x: torch.relu(x * 3) @ x.T)(torch.ones(5, 3)).sum().item()

compile()
for directory in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        sys.path.insert(0, directory)
        os.environ.update(json.load(open(os.path.join(directory, "environment.json"))))
        import safecache
        assert safecache.__file__.startswith(directory)
        found = []
        for _ in range(2):
            safecache.reset()
            found.append([compile(), safecache.stats()])
        down = [each for each in safecache.status() if str(each.state) == "standing down"]
        with open(os.path.join(directory, "found.json"), "w") as file:
            json.dump([*found, list(map(str, down))], file)
        sys.stderr.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, directory
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
        row = re.compile(rf"'{self.feature}(\.\w+)?'")
        node.elts = [each for each in node.elts if not row.search(ast.unparse(each))]
        return node

    def uses(self, node):
        return any(isinstance(each, ast.Name) and each.id in self.names for each in ast.walk(node))


def remove(feature, root):
    """Take the feature out of the package below ``root``."""
    shutil.rmtree(root / "safecache" / feature)
    path = root / "safecache" / "features.py"
    path.write_text(ast.unparse(Removal(feature).visit(ast.parse(path.read_text(encoding="utf-8")))))


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """What a process found that compiled without a feature, by feature."""
    base = tmp_path_factory.mktemp("without")
    for feature in FEATURES:
        root = base / feature
        shutil.copytree(SOURCE / "safecache", root / "safecache")
        remove(feature, root)
        (root / "environment.json").write_text(json.dumps(isolated(root)))
    environment = os.environ | isolated(base) | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", PROGRAM, *(str(base / feature) for feature in FEATURES)]
    done = subprocess.run(command, env=environment, cwd=base, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0 and "safecache:" not in done.stderr, done.stderr
    return {feature: json.loads((base / feature / "found.json").read_text()) for feature in FEATURES}


@pytest.mark.parametrize("feature", FEATURES)
def test_all_else_works_without(feature, without):
    (first, cold), (second, warm), down = without[feature]
    assert first == second == 225.0 and down == []
    assert cold["saved"] == 2 and warm["verified"] == 2 and "saved" not in warm, (cold, warm)
