"""From the build of an image to a cluster, by commands alone: warm, pack, push; pull, preflight, and every lookup a hit.

The second machine has another user, home, temporary directory and cache, and of the farm's key the public part alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE
from faults.users import as_user, other_users_can_be

from safecache.testing import isolated

pytestmark = pytest.mark.default_release
pytest.importorskip("cryptography")

PROGRAM = """
import json
import safecache
import torch

# Products alone: there is no kernel to build a library of, which takes longer than all else.
torch.compile(lambda x: x @ x)(torch.ones(3, 3, requires_grad=True)).backward(torch.ones(3, 3))
with open("found.json", "w") as file:
    json.dump(safecache.stats(), file)
"""


class Machine:
    """A directory with all that a user has on it."""

    def __init__(self, base, user=0):
        self.base, self.user = base, user
        for name in ("work", "home", "tmp"):
            (base / name).mkdir(parents=True)
        (base / "work" / "serve.py").write_text(PROGRAM)
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith("SAFECACHE")}
        self.environment |= isolated(base) | {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment |= {"HOME": str(base / "home"), "TMPDIR": str(base / "tmp"), "USER": f"user{user}"}
        self.environment |= {"DOCKER_CONFIG": os.environ["DOCKER_CONFIG"], "OMP_NUM_THREADS": "1"}

    def do(self, *words, code=0, **settings):
        """Run a program as this machine's user; what it prints."""
        prefix = as_user(self.user) if self.user else []
        if self.user:
            subprocess.run(["chown", "-R", f"{self.user}:{self.user}", self.base], check=True)
        done = subprocess.run(
            [*prefix, sys.executable, *map(str, words)],
            env=self.environment | settings,
            cwd=self.base / "work",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def say(self, *words, **how):
        return self.do("-m", "safecache", *words, **how)

    def serve(self, **settings):
        self.do("serve.py", **settings)
        return json.loads((self.base / "work" / "found.json").read_text())


@pytest.mark.skipif(not other_users_can_be(), reason="needs root, to become another user")
@pytest.mark.timeout(600)
def test_from_the_build_of_an_image_to_a_cluster(served, tmp_path):
    farm = Machine(tmp_path / "farm")
    farm.say("keygen", "--ed25519", "--public", "farm.pub", "--out", "farm.key")
    farm.environment["SAFECACHE_KEY_FILE"] = str(farm.base / "work" / "farm.key")
    warmed = json.loads(farm.say("warm", "--json", "--", sys.executable, "serve.py"))
    assert warmed["all_hit"] and warmed["processes"][0]["compiled"], warmed
    image = f"oci://{served.host}/team/model:v1"
    pushed = json.loads(farm.say("push", image, "--plain-http", "--json"))
    assert pushed["groups"] >= 3 and pushed["bytes"] > 1000 and not pushed["problems"], pushed

    node = Machine(tmp_path / "node", user=4711)
    shutil.copy(farm.base / "work" / "farm.pub", node.base)
    node.say("trust", node.base / "farm.pub")
    pack = node.base / "model.safecache"
    node.say("pull", f"oci://{pushed['reference']}", "-o", pack, "--plain-http")
    assert "can hit" in node.say("preflight", pack)
    found = node.serve(SAFECACHE_LOWER=str(pack), SAFECACHE_MUST_HIT="1")
    assert (found["aot hit"], found["fx hit"]) == (1, 2) and "saved" not in found, found
    assert not any("miss" in name or "unknown" in name for name in found), found

    stranger = Machine(tmp_path / "stranger", user=4712)
    stranger.say("pull", image, "--plain-http", "-o", stranger.base / "model.safecache", code=1)
    assert not (stranger.base / "model.safecache").exists()
