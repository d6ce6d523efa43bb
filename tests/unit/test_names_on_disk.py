"""Names that lie on disk, in entries and patched sources of an earlier safecache, still lead to what they meant."""

from __future__ import annotations

import pytest
from conftest import python

# As pickles and sources have them that 0.1.0 has written.
NAMES = {
    "safecache.launchers revive": "safecache.launchers revive",
    "safecache.kernel_recipe Recipe": "safecache.launchers.kernel_recipe Recipe",
    "safecache.errors TritonCompileCrash": "safecache.errors TritonCompileCrash",
    "safecache.patched hook": "safecache_entry hook",
}


@pytest.mark.parametrize("written", NAMES)
def test_name_that_was_written_by_an_earlier_safecache_is_found(written):
    code = f"""
import pickle
module, name = {written!r}.split()
found = pickle.loads(f"c{{module}}\\n{{name}}\\n.".encode())
print(found.__module__, found.__qualname__)
"""
    done = python(code, env={"SAFECACHE": "0"})
    assert done.stdout == f"{NAMES[written]}\n", done.stderr
