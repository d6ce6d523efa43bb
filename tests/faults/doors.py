"""The files that torch unpickles as a whole, outside of the two entry caches: how each is saved, loaded and found."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from scenes import artifact_scenes

# Torch 2.15 writes this, and a byte for the version, before the pickle of a function.
MAGIC = b"PT2AOT"


class Door(NamedTuple):
    """One file that torch unpickles: the scenes ``save_<name>`` and ``load_<name>``, and where it then lies."""

    name: str
    file: str
    misses: bool
    noun: str

    def scene(self, verb: str):
        return getattr(artifact_scenes, f"{verb}_{self.name}")

    def path(self, home) -> str:
        path = home.base / "artifact"
        if self.name == "memo":
            path.mkdir(exist_ok=True)
        return str(path)

    def find(self, home) -> Path:
        (found,) = [path for path in home.base.glob(self.file) if path.suffix != ".lock"]
        return found

    def save(self, home, **how):
        answer = home.run(self.scene("save"), path=self.path(home), **how)
        assert answer.ok and answer.warnings == [], answer
        return self.find(home)

    def load(self, home, **how):
        return home.run(self.scene("load"), path=self.path(home), **how)

    def plant(self, home, hostile: bytes) -> None:
        """Put ``hostile`` where the artifact was, as somebody would who knows its format."""
        path = self.find(home)
        content = path.read_bytes()
        header = len(MAGIC) + 1 if content.startswith(MAGIC) else 4 if self.name == "memo" else 0
        path.write_bytes(content[:header] + hostile)


DOORS = [
    Door("function", "artifact", False, "ahead-of-time compiled function"),
    Door("model", "artifact", False, "ahead-of-time compiled model"),
    Door("bundled", "artifact", False, "ahead-of-time compiled graph"),
    Door("graph_module", "artifact", False, "ahead-of-time compiled graph"),
    Door("precompile", "cache/dynamo/*/entry", True, "precompile entry"),
    Door("profile", "cache/dynamo/code_state_*", True, "profile of dynamic shapes"),
    Door("memo", "artifact/*/cache/sub/*", True, "memoized result"),
]
FUNCTION, _, GRAPH, _, PRECOMPILE, PROFILE, _ = DOORS
EACH_DOOR = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


def assert_refused(door, answer, strict, where=""):
    """A miss or an error that is a RuntimeError too, and one warning that names the artifact in default mode."""
    raised = "EntryRefusedError" if door.misses else "RefusedArtifactError"
    if strict:
        assert raised in answer.errors and answer.warnings == [], answer
        return
    if door.misses:
        assert answer.ok and answer.result is False, answer
    else:
        assert answer.errors[0] == raised and door.noun in answer.messages[0], answer
    assert len(answer.warnings) == 1 and door.noun in answer.warnings[0] and where in answer.warnings[0], answer
