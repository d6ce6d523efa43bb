"""Each line that a promise hangs on is named in the source, and is among those that tests/mutations.py breaks."""

from __future__ import annotations

import mutations

PACKAGE = mutations.SOURCE / "safecache"


def test_each_invariant_is_a_line_that_a_mutation_breaks():
    named = {path for path in PACKAGE.rglob("*.py") if "# INVARIANT: " in path.read_text(encoding="utf-8")}
    modules = [str(path.relative_to(PACKAGE).with_suffix("")) for path in named]
    assert len(modules) >= 5 and set(modules) <= mutations.TESTS.keys()
    for module in modules:
        assert mutations.invariants(module) <= {mutant.line for mutant in mutations.mutants(module)}, module
