"""Another user does random harm to a cache that all can write to: no compile fails, waits long, or touches what is outside.

For as many minutes as SAFECACHE_TEST_ATTACK_MINUTES says, beginning from the seed SAFECACHE_TEST_ATTACK_SEED.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SOURCE, needs_root
from scenes import model_scenes

MINUTES = float(os.environ.get("SAFECACHE_TEST_ATTACK_MINUTES", "0.2"))
SEED = int(os.environ.get("SAFECACHE_TEST_ATTACK_SEED", "7"))
# Seconds: the limits of waits, and what a compile, or a command, takes besides on a busy machine.
WAIT, WORK = 4, 60.0
COMMANDS = (
    *(["ls"], ["du"], ["stats"], ["verify"], ["audit"], ["doctor", "--json"], ["gc", "--max-bytes", "1G"]),
    *(["explain"], ["quarantine", "ls"], ["ls", "--crashed"], ["push"], ["pull"], ["du", "--remote"]),
    *(["gc", "--remote", "--max-age", "1h"], ["pack", "{cache}", "-o", "{base}/made.safecache"]),
    *(["unpack", "{base}/packs/pack.safecache", "{base}/unpacked"], ["preflight", "{base}/packs/pack.safecache"]),
)


class World:
    """Places that others can write to, and a home that they cannot."""

    def __init__(self, home) -> None:
        self.home, self.base = home, home.base
        for name in ("cache", "tmp", "remote", "lower", "packs"):
            (self.base / name).mkdir(exist_ok=True)
        own = self.base / "home" / ".config" / "autostart"
        own.mkdir(parents=True)
        (self.base / "home" / "id_ed25519").write_text("mine")
        os.utime(self.base / "home" / "id_ed25519", (0, 0))
        (self.base / "tmp" / "own").mkdir(mode=0o700)
        (self.base / "tmp" / "own" / "thesis").write_text("the only copy")
        assert home.run(model_scenes.compile_model).ok  # which makes the key, out of others' reach
        self.open()
        self.environment = {
            "TMPDIR": str(self.base / "tmp"),
            "SAFECACHE_REMOTE": f"file://{self.base}/remote",
            "SAFECACHE_LOWER": f"{self.base}/lower:{self.base}/packs/pack.safecache",
            "SAFECACHE_SINGLE_FLIGHT_WAIT": str(WAIT),
            "SAFECACHE_LOCK_TIMEOUT": str(WAIT),
        }

    def open(self) -> None:
        """All that is there, to all; the path to it, too."""
        for top in ("cache", "tmp", "remote", "lower", "packs"):
            for path in [self.base / top, *(self.base / top).rglob("*")]:
                is_own = path.name == "thesis" or (path / "thesis").is_file()
                if not path.is_symlink() and not is_own:
                    with contextlib.suppress(OSError):
                        path.chmod(0o777 if path.is_dir() else 0o666)
        for path in (self.base, *self.base.parents):
            if path != Path("/"):
                path.chmod(path.stat().st_mode | 0o011)

    def outside(self):
        """What lies in the home, and the thesis, wherever that is."""
        found = {}
        for path in sorted((self.base / "home").rglob("*")):
            content = path.read_bytes() if path.is_file() else b""
            found[str(path)] = hashlib.sha256(content).hexdigest()
        theses = [path.read_text() for path in (self.base / "tmp").glob("*/thesis") if not path.parent.is_symlink()]
        return found, theses

    def run(self, chance, strict):
        shared = {"SAFECACHE_SHARED": "1"} if chance.random() < 0.3 else {}
        began = time.monotonic()
        answer = self.home.run(model_scenes.compile_model, env=self.environment | shared, strict=strict, umask=0)
        return answer, time.monotonic() - began

    def command(self, words):
        places = {"base": self.base, "cache": self.base / "cache"}
        command = [sys.executable, "-m", "safecache", *(word.format(**places) for word in words)]
        environment = self.home.environment | self.environment | {"PYTHONPATH": str(SOURCE)}
        began = time.monotonic()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, errors="replace", cwd=self.base
        )
        return done, time.monotonic() - began


@contextlib.contextmanager
def attacking(world, seed, rounds):
    """It has done its harm, and holds its locks."""
    # In a process of its own, since this one's interpreter may lie where another user cannot go: it is open by then.
    code = "import sys; from faults import attacker; attacker.attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"
    environment = os.environ | {"PYTHONPATH": str(SOURCE / "tests")}
    command = [sys.executable, "-c", code, str(world.base), str(seed), str(rounds)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "done\n"
            yield
        finally:
            process.kill()


@needs_root
@pytest.mark.timeout(0)
def test_no_compile_fails_waits_long_or_touches_what_is_outside(home, monkeypatch):
    chance, world = random.Random(SEED), World(home)
    assert world.run(chance, False)[0].ok
    done, _ = world.command(["pack", "{cache}", "-o", "{base}/packs/pack.safecache"])
    assert done.returncode == 0, done
    before = world.outside()
    end, rounds = time.monotonic() + 60 * MINUTES, 0
    while not rounds or time.monotonic() < end:
        seed = chance.randrange(1 << 30)
        world.open()
        with attacking(world, seed, chance.choice([1, 3, 10, 40])):
            said = f"seed {SEED}, round {rounds}, attacker's seed {seed}"
            answer, seconds = world.run(chance, False)
            assert answer.ok, (said, answer)
            assert seconds < 4 * WAIT + WORK, (said, seconds, answer)
            words = chance.choice(COMMANDS)
            done, seconds = world.command(words)
            assert "Traceback" not in done.stderr and seconds < 4 * WAIT + 2 * WORK, (said, words, seconds, done)
        assert world.outside() == before, said
        rounds += 1
        if chance.random() < 0.2:  # begin anew: too much harm leaves nothing to be harmed
            shutil.rmtree(world.base / "cache", ignore_errors=True)
            (world.base / "cache").mkdir()
            world.open()
            assert world.run(chance, False)[0].ok
    print(f"{rounds} rounds of the seed {SEED}")
