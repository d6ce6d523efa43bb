"""What others rely on stays as it was: names on disk, bytes of a record, what follows from each reason, the hooks.

WRITE_GOLDEN=1 writes the files anew, for a difference that is meant.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import python
from hooks import real_scenes

from safecache.places.layout import CodeFile
from safecache.reporting import events, report
from safecache.reporting.kinds import Kind, Reason
from safecache.signing.keyring import Key
from safecache.store import manifests

GOLDEN = Path(__file__).parent / "golden"
# Cache keys and digests, times, process ids, and names that torch gives its directories by a digest.
RANDOM = re.compile(r"[a-z2-7]{20,}|[0-9a-f]{12,}|\d{8}T\d{6}-\d+|^[0-9a-z]{2}$")


def compare(name, lines):
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text("".join(f"{line}\n" for line in lines))
    assert lines == path.read_text().splitlines()


def test_what_follows_from_each_reason():
    lines = []
    for reason in Reason:
        mild, strict = (events.decide_action(reason, strict=strict) for strict in (False, True))
        error = strict.error.__name__ if strict.error else "no error"
        moved = "quarantined" if mild.quarantine else "left"
        lines.append(f"{reason.value}: {moved}, {'one warning' if mild.warn else 'silent'}, {error} in strict mode")
    compare("reasons", lines)


def test_remedy_of_each_failed_write():
    compare("remedies", [f"{os.strerror(number)}: {fix}" for number, fix in report._FIXES.items()])


def test_records_of_kinds():
    compare("kinds", [f"{kind.value}: {kind.proof} {kind.tiers} {kind.upkeep}" for kind in Kind])


def test_bytes_of_records():
    """A seal's are in tests/signing/test_seal.py."""
    key, lines = Key.derive(b"a key file of 32 bytes or more..."), []
    for kind in Kind:
        content = manifests.seal_record(
            CodeFile("/cache/ab/name.json", "/cache", kind), {"sha256": "00"}, key, {"torch": "2.15"}
        )
        lines.append(
            f"{kind.value}: {manifests.record_name(CodeFile('/cache/ab/name.json', '/cache', kind))}: {content.hex()}"
        )
    compare("records", lines)


@pytest.mark.default_release
def test_names_on_disk(warm_template):
    cache = warm_template.base / "cache"
    paths = (path.relative_to(cache) for path in cache.rglob("*") if path.is_file())
    compare("names", sorted({"/".join(RANDOM.sub("*", part) for part in path.parts) for path in paths}))


@pytest.mark.default_release
def test_hooks_of_the_newest_release(home):
    """As ``safecache status --json`` lists them."""
    _, report = home.run(real_scenes.status).result
    compare("hooks", sorted(f"{each['name']}: {each['state']}" for each in report["hooks"]))


def test_table_of_hooks():
    """As ``safecache status --table`` prints it."""
    done = python("from safecache.cli.main import main; main(['status', '--table'])")
    assert done.returncode == 0, done.stderr
    compare("table", done.stdout.splitlines())
