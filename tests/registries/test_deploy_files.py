"""The guide's Dockerfile and manifests, by their own commands on machines of two users: every lookup of a server hits.

A machine here is a directory, in place of a container's root. The second has another user, home, temporary directory and
cache, and of the farm's key the public part alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE
from faults.users import as_user, other_users_can_be

from safecache.testing import isolated

pytestmark = [
    pytest.mark.default_release,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not other_users_can_be(), reason="needs root, to become another user"),
]
pytest.importorskip("cryptography")
yaml = pytest.importorskip("yaml")

DEPLOY = SOURCE / "safecache" / "guide" / "deploy"
PROGRAM = """
import json
import safecache
import torch

# Products alone: there is no kernel to build a library of, which takes longer than all else.
torch.compile(lambda x: x @ x)(torch.ones(3, 3, requires_grad=True)).backward(torch.ones(3, 3))
with open("found.json", "w") as file:
    json.dump(safecache.stats(), file)
"""
# The paths of the files that lie on a machine here, below its directory.
PATHS = re.compile(r"(?<![\w/:])/(?=(opt|etc|farm|keys|cache|login|run)\b)")


class Machine:
    """A directory with all that a user has on it, and with the programs that the commands name."""

    def __init__(self, base, registry, user=0):
        self.base, self.registry, self.user = base, registry, user
        for name in ("bin", "home", "tmp", "opt/server"):
            (base / name).mkdir(parents=True)
        (base / "opt" / "server" / "serve.py").write_text(PROGRAM)
        python = f'exec {shlex.quote(sys.executable)} "$@"'
        # The registry of the tests has no TLS.
        plain = 'for word; do case $word in oci://*) set -- "$@" --plain-http;; esac; done'
        ours = f'{plain}; exec {shlex.quote(sys.executable)} -m safecache "$@"'
        for name, line in {"python": python, "safecache": ours}.items():
            (base / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (base / "bin" / name).chmod(0o755)
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith("SAFECACHE")}
        self.environment |= isolated(base) | {"PYTHONPATH": str(SOURCE), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment |= {"HOME": str(base / "home"), "TMPDIR": str(base / "tmp"), "USER": f"user{user}"}
        self.environment |= {"OMP_NUM_THREADS": "1", "PATH": f"{base}/bin:{os.environ['PATH']}"}
        self.environment |= {"DOCKER_CONFIG": os.environ["DOCKER_CONFIG"]}

    def here(self, text):
        """What a text of the files is on this machine."""
        return PATHS.sub(f"{self.base}/", text).replace("registry.example", self.registry)

    def do(self, command, variables=(), *, code=0, **settings):
        """Run a command of the files as this machine's user; what it prints."""
        if self.user:
            subprocess.run(["chown", "-R", f"{self.user}:{self.user}", self.base], check=True)
        given = {name: self.here(text) for name, text in dict(variables).items() if name != "DOCKER_CONFIG"}
        done = subprocess.run(
            [*(as_user(self.user) if self.user else []), *map(self.here, command)],
            env=self.environment | given | settings,
            cwd=self.base / "opt" / "server",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def found(self):
        return json.loads((self.base / "opt" / "server" / "found.json").read_text())


def commented(file):
    """The commands of safecache in the comment of a file."""
    return [shlex.split(line) for line in re.findall(r"^#   (safecache .*)$", (DEPLOY / file).read_text(), re.M)]


def stages():
    """The instructions of each stage of the Dockerfile: words and what follows."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = []
    for word, _, rest in (line.partition(" ") for line in lines):
        if word == "FROM":
            found.append([])
        elif found:
            found[-1].append((word, rest.strip()))
    return found


def environment(stage):
    return dict(pair.split("=", 1) for word, rest in stage if word == "ENV" for pair in shlex.split(rest))


def variables(container):
    return {each["name"]: each["value"] for each in container["env"]}


def assert_all_hit(found):
    assert (found["aot hit"], found["fx hit"]) == (1, 2) and "saved" not in found, found
    assert not any("miss" in name or "unknown" in name for name in found), found


def test_files_of_the_guide_from_the_farm_to_a_server(served, tmp_path):
    farm = Machine(tmp_path / "farm", served.host)
    work = farm.base / "opt" / "server"
    for command in commented("Dockerfile"):
        farm.do(command)
    public, secret = work / "farm.pub.json", work / "farm.json"

    warm, final = stages()
    (farm.base / "run" / "secrets").mkdir(parents=True)
    shutil.copy(secret, farm.base / "run" / "secrets" / "farm")
    (line,) = [re.sub(r"--\w+=\S+ ", "", rest) for word, rest in warm if word == "RUN"]
    assert "a fresh process finds everything" in farm.do(["sh", "-ec", line], environment(warm))

    node = Machine(tmp_path / "image", served.host, user=4711)
    (node.base / "etc").mkdir()
    for rest in [rest for word, rest in final if word == "COPY"]:
        for name in rest.replace("--from=warm ", "").split()[:-1]:
            shutil.copy(farm.base / name[1:] if name.startswith("/") else work / name, node.base / "opt" / "server")
    (line,) = [rest for word, rest in final if word == "RUN"]
    node.user = None  # an image is built by root
    node.do(["sh", "-ec", line], environment(final))
    node.user = 4711
    assert (node.base / "etc" / "safecache" / "keys").stat().st_mode & 0o055 == 0o055
    (command,) = [json.loads(rest) for word, rest in final if word == "CMD"]
    node.do(command, environment(final), SAFECACHE_STRICT="misses=1")
    assert_all_hit(node.found())

    job, deployment = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (farm.base / "farm").mkdir()
    shutil.copy(secret, farm.base / "farm" / "farm.json")
    assert "sha256:" in farm.do(container["command"], variables(container))

    pod = Machine(tmp_path / "pod", served.host, user=4712)
    for name in ("keys", "cache"):
        (pod.base / name).mkdir()
    (fetch,) = deployment["spec"]["template"]["spec"]["initContainers"]
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    (mount,) = [each for each in server["volumeMounts"] if each["mountPath"].startswith("/keys/")]
    shutil.copy(public, pod.here(mount["mountPath"].replace("KEY_ID", json.loads(public.read_text())["id"])))
    pod.do(fetch["command"], variables(fetch))
    told = json.loads(pod.do(server["startupProbe"]["exec"]["command"], variables(server)))
    assert told["enabled"] and told["hooks"]
    pod.do(server["command"], variables(server), SAFECACHE_STRICT="misses=1")
    assert_all_hit(pod.found())
    assert "can hit" in pod.do(["safecache", "doctor", "--for", "/cache/model.safecache"], variables(server))

    stranger = Machine(tmp_path / "stranger", served.host, user=4713)
    (stranger.base / "cache").mkdir()
    untrusting = variables(fetch)
    del untrusting["SAFECACHE_KEYRING"]
    stranger.do(fetch["command"], untrusting, code=1)
    assert not any((stranger.base / "cache").iterdir())


def test_values_of_the_chart_are_those_of_the_manifest():
    _, deployment = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    (model,) = yaml.safe_load((DEPLOY / "values.yaml").read_text())["servingEngineSpec"]["modelSpec"]
    (fetch,), (server,) = pod["initContainers"], pod["containers"]
    for name in ("name", "image", "command", "env"):
        assert model["initContainer"][name] == fetch[name]
    assert model["initContainer"]["extraVolumeMounts"] == fetch["volumeMounts"]
    assert (model["env"], model["extraVolumeMounts"]) == (server["env"], server["volumeMounts"])
    assert model["extraVolumes"] == pod["volumes"]


def test_manifests_are_those_of_the_schema():
    validator = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        validator.validate(document, validator.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint")
def test_dockerfile_has_no_warning():
    subprocess.run(["hadolint", DEPLOY / "Dockerfile"], check=True)
