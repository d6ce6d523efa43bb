"""What a person is told of a miss: by the process that misses, and by ``safecache explain`` afterwards."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.in_process import isolated, local, run, settings, shared
from scenes import explain_scenes

from safecache.cli.main import main

__all__ = ["explained", "isolated", "local", "product", "product_template", "run", "settings", "shared"]

EXPLAIN = {"SAFECACHE_EXPLAIN": "1"}


class Explained:
    """A home, and what is said of the misses in it."""

    def __init__(self, home, capsys) -> None:
        self.home, self._capsys = home, capsys

    def run(self, scene, **arguments):
        """What the scene returns, and what was said while it ran."""
        answer = self.home.run(scene, env=EXPLAIN | arguments.pop("env", {}), **arguments)
        assert answer.ok, answer
        return answer.result, answer.warnings

    def rows(self, *arguments, directory=None):
        """What ``safecache explain`` prints of this cache, the last miss first."""
        self._capsys.readouterr()
        main(["explain", "--json", "--dir", str(directory or self.home.cache), *arguments])
        return json.loads(self._capsys.readouterr().out)["misses"]

    def causes(self, layer, **where):
        """What the last miss of a layer differed in, without the values."""
        row = next(row for row in self.rows(**where) if row["layer"] == layer)
        return [difference["what"] for difference in row["differences"]]


@pytest.fixture
def explained(home, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.base / "config"))
    return Explained(home, capsys)


@pytest.fixture(scope="session")
def product_template(new_home):
    """A home with product() in its caches."""
    home = new_home()
    answer = home.run(explain_scenes.compile_product, env=EXPLAIN)
    assert answer.ok and answer.result == [0, 0], answer
    return home


@pytest.fixture
def product(explained, product_template):
    shutil.copytree(product_template.base, explained.home.base, dirs_exist_ok=True)
    return explained
