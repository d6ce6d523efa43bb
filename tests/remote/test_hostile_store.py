"""A store that an attacker owns: whatever he puts there, he can at most make them compile."""

from __future__ import annotations

import pickle
import shutil

import pytest
from conftest import WARM
from faults.damage import Marker
from scenes import model_scenes

from .test_two_hosts import same_keys

pytest.importorskip("zstandard")


@pytest.fixture(scope="module")
def filled(new_home, new_redis):
    """A home that has compiled, the server that it has sent that to, and the environment that leads there."""
    server, home = new_redis(), new_home()
    env = {"SAFECACHE_REMOTE": server.url}
    assert home.run(env=env).ok
    client = server.client()
    yield home, client, env, {name: client.get(name) for name in client.scan_iter()}
    shutil.rmtree(home.base, ignore_errors=True)


def rotated(contents):
    """Every object under the name of another."""
    names = sorted(contents)
    return {name: contents[names[number - 1]] for number, name in enumerate(names)}


# What the attacker makes of all objects; ``planted``: a pickle that would leave a mark.
ATTACKS = {
    "planted": lambda contents, planted: dict.fromkeys(contents, planted),
    "planted with a seal's end": lambda contents, planted: {
        name: planted + content[-62:] for name, content in contents.items()
    },
    "others' names": lambda contents, planted: rotated(contents),
    "cut": lambda contents, planted: {name: content[: len(content) // 2] for name, content in contents.items()},
    "flipped": lambda contents, planted: {
        name: content[:100] + bytes([content[100] ^ 1]) + content[101:] for name, content in contents.items()
    },
    "one byte": lambda contents, planted: dict.fromkeys(contents, b"\0"),
    "doubled": lambda contents, planted: {name: content * 2 for name, content in contents.items()},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_runs_and_what_is_bad_is_replaced(filled, new_home, tmp_path, attack):
    first, client, env, contents = filled
    mark = tmp_path / "ran"
    planted = pickle.dumps(Marker(mark)) + b"planted here"
    client.flushall()
    for name, content in ATTACKS[attack](contents, planted).items():
        client.set(name, content)
    victim = same_keys(first, new_home)
    answer = victim.run(env=env)
    assert answer.ok and answer.hits == (0, 0) and not mark.exists(), answer
    # One line for each kind of thing that was refused.
    assert answer.warnings and all("from the remote cache [" in line for line in answer.warnings), answer
    assert len(answer.warnings) <= 3, answer.warnings
    for path in victim.cache.rglob("*"):
        assert not path.is_file() or b"planted here" not in path.read_bytes(), path
    assert not victim.quarantined
    # He has compiled, and sent that: the next one hits again.
    healed = same_keys(first, new_home).run(env=env)
    assert healed.ok and healed.hits == WARM and not healed.warnings, healed


def test_strict_mode_says_so(filled, new_home):
    first, client, env, contents = filled
    client.flushall()
    for name in contents:
        client.set(name, b"planted")
    answer = same_keys(first, new_home).run(env=env, strict=True)
    assert "EntryRefusedError" in answer.errors and "from the remote cache" in str(answer.messages), answer


def test_object_that_is_too_large_is_not_read(filled, new_home):
    first, client, env, contents = filled
    client.flushall()
    for name, content in contents.items():
        client.set(name, content + b"x" * 2_000_000)
    answer = same_keys(first, new_home).run(env=env | {"SAFECACHE_REMOTE_MAX_BYTES": "1MB"})
    assert answer.ok and answer.hits == (0, 0), answer
    assert len(answer.warnings) == 1 and "raise max_bytes in" in answer.warnings[0], answer.warnings


def test_half_of_the_objects_gone(filled, new_home):
    first, client, env, contents = filled
    for half in (0, 1):
        client.flushall()
        for name in sorted(contents)[half::2]:
            client.set(name, contents[name])
        answer = same_keys(first, new_home).run(env=env)
        assert answer.ok and not answer.warnings, answer
    # Deletion is a miss, and what was compiled again is there again.
    assert same_keys(first, new_home).run(model_scenes.compile_model, env=env).hits == WARM
