"""Code that leaves a file where it ran, and whether it did."""

from __future__ import annotations

from harness.planted import MARKER

INCLUDES = "#include <cstdio>\n#include <cstdlib>\n"
CONSTRUCTOR = f"""
__attribute__((constructor)) static void leave_marker() {{
    const char* path = getenv("{MARKER}");
    if (path) fclose(fopen(path, "w"));
}}
"""
PYTHON = f"import os; open(os.environ[{MARKER!r}], 'w').close()\n"


def files(home, pattern):
    """The files of generated or built code in the cache of such a name."""
    found = sorted(path for path in home.cache.glob(f"??/{pattern}") if ".safecache" not in path.parts)
    assert found, pattern
    return found


class Attack:
    """Plants into a cache, runs the model there, and tells whether what was planted ran."""

    def __init__(self, home):
        self.home = home
        self.marker = home.base / "ran"

    def run(self, **kwargs):
        self.marker.unlink(missing_ok=True)
        return self.home.run(env={MARKER: str(self.marker)}, **kwargs)

    @property
    def ran(self):
        return self.marker.exists()

    def files(self, pattern):
        return files(self.home, pattern)
