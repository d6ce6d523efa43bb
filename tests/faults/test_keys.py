"""Real compiles under a farm's key: a server with the public part hits, saves nothing, and obeys a revocation."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import SOURCE, WARM
from helpers.key_cases import PRIVATE, PUBLIC, revoked

from safecache.signing import key_directory, key_files


@pytest.fixture
def farm(home):
    """A home whose cache was compiled with the private key; the settings of a farm and of a server."""
    for name, key in (("farm", PRIVATE), ("server", PUBLIC)):
        key_files.save(str(home.base / name), key)
        (home.base / name).chmod(0o644 if key is PUBLIC else 0o600)
    home.farm, home.server = ({"SAFECACHE_KEY_FILE": str(home.base / name)} for name in ("farm", "server"))
    answer = home.run(env=home.farm)
    assert answer.ok and answer.stats == {"sealed": 3, "saved": 3}, answer
    return home


def test_server_with_the_public_part_hits_what_the_farm_has_compiled(farm):
    answer = farm.run(env=farm.server, strict=True)
    assert answer.ok and answer.hits == WARM and answer.stats == {"verified": 3}, answer


def test_server_with_the_public_part_compiles_what_is_missing_and_saves_nothing(home):
    key_files.save(str(home.base / "server"), PUBLIC)
    answer = home.run(env={"SAFECACHE_KEY_FILE": str(home.base / "server")})
    assert answer.ok and answer.hits == (0, 0) and home.aot_entries == home.fx_entries == [], answer
    assert answer.stats == {"no key": 3} and len(answer.warnings) == 1, answer
    assert "only the public part" in answer.warnings[0]


def trust(home, *options):
    command = [sys.executable, "-m", "safecache", "keys", "trust", str(home.base / "server"), *options]
    subprocess.run(command, env=home.environment | {"PYTHONPATH": str(SOURCE)}, check=True)


def test_server_that_trusts_the_farm_hits_and_seals_with_its_own_key(farm):
    refused = farm.run(strict=True)
    assert "EntryRefusedError" in refused.errors and refused.stats["unknown key"] == 1, refused
    trust(farm, "--namespace", "prod")
    refused = farm.run(strict=True)
    assert "EntryRefusedError" in refused.errors and refused.stats["key not allowed"] == 1, refused
    trust(farm, "--namespace", "prod", "default")
    answer = farm.run()
    assert answer.ok and answer.hits == WARM and answer.warnings == [], answer


def entries_in_quarantine(home):
    """Compiled code of the same name has to make room."""
    return [path for path in home.quarantined if ".so." not in path.name]


def test_entries_of_a_revoked_farm_are_compiled_anew(farm):
    key_directory.add(str(farm.keys / "keys"), revoked(PUBLIC))
    answer = farm.run()
    assert answer.ok and answer.hits == (0, 0) and answer.stats["revoked key"] >= 1, answer
    about_entries = [text for text in answer.warnings if " entry " in text]
    assert "safecache verify" in about_entries[0] and PUBLIC.id.hex() in about_entries[0], answer
    assert entries_in_quarantine(farm) == [] and farm.run().hits == WARM


def test_entries_of_another_namespace_are_compiled_anew_and_left(farm):
    before = farm.aot_entries
    prod = farm.farm | {"SAFECACHE_NAMESPACE": "prod"}
    answer = farm.run(env=prod)
    assert answer.ok and answer.hits == (0, 0) and answer.stats["other namespace"] >= 1, answer
    assert entries_in_quarantine(farm) == [] and set(before) < set(farm.aot_entries)
    assert farm.run(env=prod).hits == WARM and farm.run(env=farm.farm).hits == WARM
