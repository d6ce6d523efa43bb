"""A home as it once was, for test after test: what is costly to make is made once."""

from __future__ import annotations

import shutil


class Kept:
    """What a home holds by now, and holds again at the same path after ``again``."""

    def __init__(self, home) -> None:
        self.home = home
        self._copy = home.base.with_name(f"{home.base.name}-kept")
        shutil.copytree(home.base, self._copy, symlinks=True)

    def again(self):
        shutil.rmtree(self.home.base)
        shutil.copytree(self._copy, self.home.base, symlinks=True)
        return self.home
