"""Processes that run triton_program.py, on patched or on pristine sources."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conftest import TESTS, name_of

if TYPE_CHECKING:
    from patches.conftest import Site

_SCRIPT = str(TESTS / "patches" / "triton_program.py")
_CODE = f"import runpy, sys; sys.path.insert(0, {str(TESTS)!r}); runpy.run_path({_SCRIPT!r}, run_name='__main__')"


class Said:
    """What a process said: ``answers`` by the name of the request; ``cache`` is where its caches lie."""

    def __init__(self, raw: dict[str, Any], home: Path) -> None:
        self.answers = raw["said"]
        self.release = tuple(map(int, raw["triton"].split(".")[:2]))
        self.patches = raw["patches"]
        self.cache = home / "triton"

    def result(self, name: str) -> Any:
        """Of the only scene of this name, which must have ended well."""
        (answer,) = self.answers[name]
        return answer["result"]


def run(site: Site, home: Path, requests: dict[str, list[tuple[Callable[..., Any], dict[str, Any]]]]) -> Said:
    """Run the scenes; patched ones must leave no temporary file, in the cache or beside it."""
    home.mkdir(exist_ok=True)
    done = site.python(_CODE, home, importable=False, arguments=(json.dumps(requests, default=name_of),))
    assert done.returncode == 0, done.stdout + done.stderr
    said = Said(json.loads(done.stdout.splitlines()[-1]), home)
    if said.patches:
        assert "Exception ignored" not in done.stderr, done.stderr  # of a kernel that could not be read, as in stock
        left = [*home.glob("triton-*"), *said.cache.rglob("*.tmp")]
        assert not left
    return said
