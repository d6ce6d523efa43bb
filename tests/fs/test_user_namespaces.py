"""Where a user namespace does not map all users, those that it does not show as one: nobody's files, and not our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE, needs_root

from safecache.fs import ownership
from safecache.places import layout

OVERFLOW = 65534
STRANGER = 54321
ASK = """
import json, os, sys
from safecache.signing import key_files, trust; from safecache.fs import ownership, private_directory; from safecache.store import entry_files
from safecache.errors import KeyringError
from safecache.reporting import report
from safecache.reporting.kinds import Kind
path, user = sys.argv[1:]
if user:
    os.setuid(int(user))  # only now: what is imported may be out of a user's reach
said = {"uid": os.geteuid(), "owner": os.lstat(path).st_uid, "own": ownership.is_own_uid(os.lstat(path).st_uid)}
found = trust.examine(entry_files.read_unverified_entry(path), Kind.AOT_ENTRY, "key", path)
said["refused"] = found.evidence if isinstance(found, report.Refusal) else None
with private_directory.create_temporary() as directory:
    said["private"] = os.path.isdir(directory)
try:
    key_files.read(path, forbidden=0o077, any_secret=True)
    said["key"] = True
except KeyringError as error:
    said["key"] = str(error)
print(json.dumps(said))
"""


def can(*command):
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True).returncode == 0


NAMESPACES = {
    "none": ["unshare", "--user"],
    "this user": ["unshare", "--user", "--map-user", str(OVERFLOW)],
}
pytestmark = [needs_root, pytest.mark.skipif(not can("unshare", "--user"), reason="no user namespace can be made")]


@pytest.fixture
def secret(tmp_path_factory):
    """A file that could be an entry or a key, where every user can go."""
    directory = Path("/tmp") / f"safecache-test-{os.getpid()}-{tmp_path_factory.mktemp('x').name}"
    directory.mkdir(mode=0o755)
    path = directory / layout.name_entry(b"0" * 64)  # one that private mode takes
    path.write_bytes(b"0" * 64)
    path.chmod(0o444)
    yield path
    shutil.rmtree(directory)


def ask(command, path, user=""):
    environment = os.environ | {
        "SAFECACHE_TRUST": "private",
        "SAFECACHE_SHARED": "1",
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, sys.path)]),
    }
    done = subprocess.run(
        [*command, sys.executable, "-c", ASK, str(path), str(user)],
        env=environment,
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_file_of_a_user_who_is_not_mapped_is_not_our_own(secret, namespace):
    """The kernel shows it as of the very uid that this process has."""
    if not can(*NAMESPACES[namespace]):
        pytest.skip("unshare cannot do that here")
    os.chown(secret, STRANGER, -1)
    said = ask(NAMESPACES[namespace], secret)
    assert said["uid"] == said["owner"] == OVERFLOW, said
    assert not said["own"] and "may be anybody in this user namespace" in said["refused"], said
    assert "may be anybody in this user namespace" in said["key"], said
    assert said["private"], "what this process makes itself is needed to compile at all"


def test_file_of_a_user_of_that_number_is_its_own_where_all_are_mapped(secret):
    """nobody, in a container without a namespace of users."""
    os.chown(secret, OVERFLOW, -1)
    secret.chmod(0o400)
    said = ask([], secret, OVERFLOW)
    assert said["uid"] == said["owner"] == OVERFLOW and said["own"] and said["key"] is True, said
    assert said["refused"] is None, said
    os.chown(secret, STRANGER, -1)
    secret.chmod(0o444)
    assert not ask([], secret, OVERFLOW)["own"]


def test_own_files_of_another_number_are_our_own_in_a_namespace(secret):
    said = ask(["unshare", "--user", "--map-user", "1000"], secret)
    assert said["uid"] == said["owner"] == 1000 and said["own"] and said["refused"] is None, said


@pytest.mark.parametrize("missing", ["/proc/self/uid_map", "/proc/sys/kernel/overflowuid"])
def test_where_it_cannot_be_told_the_usual_number_is_anybodys(missing, monkeypatch):
    ownership._read_overflow_uid.cache_clear()

    def opened(path, *rest, **named):
        if path == missing:
            raise FileNotFoundError(path)
        return open(path, *rest, **named)

    monkeypatch.setattr(ownership, "open", opened, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: OVERFLOW)
    assert not ownership.is_own_uid(OVERFLOW) and "may be anybody" in ownership.name_owner(OVERFLOW)
    monkeypatch.undo()
    ownership._read_overflow_uid.cache_clear()
    assert ownership._read_overflow_uid() is None
