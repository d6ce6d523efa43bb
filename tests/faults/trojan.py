"""Code that leaves a file where it ran, and whether it did."""

from __future__ import annotations

CONSTRUCTOR = """
__attribute__((constructor)) static void leave_marker() {
    const char* path = getenv("TROJAN_MARKER");
    if (path) fclose(fopen(path, "w"));
}
"""
PYTHON = "import os; open(os.environ['TROJAN_MARKER'], 'w').close()\n"


class Attack:
    """Plants into a cache, runs the model there, and tells whether what was planted ran."""

    def __init__(self, home):
        self.home = home
        self.marker = home.base / "ran"

    def run(self, **kwargs):
        self.marker.unlink(missing_ok=True)
        return self.home.run(env={"TROJAN_MARKER": str(self.marker)}, **kwargs)

    @property
    def ran(self):
        return self.marker.exists()

    def files(self, pattern):
        found = sorted(path for path in self.home.cache.glob(f"??/{pattern}") if ".safecache" not in path.parts)
        assert found, pattern
        return found
