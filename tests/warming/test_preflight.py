"""What `preflight` says of a cache is what a process there comes to: green hits all, and each red difference misses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import textwrap
from unittest import mock

import pytest
from helpers.in_process import isolated

from safecache.cli.main import main
from safecache.doctor import comparison
from safecache.doctor.comparison import Baseline, Gpu
from safecache.explain import baked as environment
from safecache.reporting.kinds import Reason
from safecache.settings import config
from safecache.signing import keyring, provenance
from safecache.upkeep import packing
from warming.programs import COMPILED, EXHAUSTIVE, Home, run_in_fork

__all__ = ["isolated"]
pytestmark = [pytest.mark.default_release, pytest.mark.xdist_group("preflight")]
FORM = re.compile(r"[A-Za-z].+ (?:are|differs|is)[a-z ]* \[[a-zA-Z ]+\]: .+\. [A-Z].+\. Help: .+ \(see .+\)")
COUNTING = COMPILED + "    import json, safecache\n    print(json.dumps(safecache.stats()))\n"
# A setting of torch's that is in its keys.
NAME = "TORCHINDUCTOR_COMPREHENSIVE_PADDING"
# What only a test's own caches and keys have another of, and torch's keys have not.
OF_A_TEST = ("HOME", "XDG_CONFIG_HOME", "TORCHINDUCTOR_CACHE_DIR", "PYTEST_CURRENT_TEST", "SAFECACHE")
COLLECT = "import json, sys; from safecache.upkeep import packing; print(json.dumps(packing.collect([sys.argv[1]])))"
# It chooses two settings: one for all that it compiles, and one for a single function.
CHOOSING = """
    import torch
    import torch._inductor.config
    import safecache, json

    torch._inductor.config.epilogue_fusion = False

    def scaled(x):
        return torch.mm(x, x)

    with torch.no_grad():
        torch.compile(scaled, options={"max_fusion_size": 7})(torch.ones(3, 3))
    print(json.dumps(safecache.stats()))
    """


class Baked(Home):
    """With a cache that is filled, and the directory that holds it moved elsewhere, as by an image."""

    def __init__(self, directory, program=COUNTING, **settings):
        super().__init__(directory, program)
        del self.environment["TRITON_CACHE_DIR"]
        said = self.python("program.py", **self._activated(settings))
        assert said.returncode == 0, said.stderr

    def _activated(self, settings):
        return {"PYTHONPATH": os.pathsep.join([self.bootstrap, self.environment["PYTHONPATH"]]), **settings}

    @property
    def bootstrap(self):
        return os.path.join(os.path.dirname(os.path.dirname(packing.__file__)), "bootstrap")

    def say(self, *words, **settings):
        """In this process, but for what torch computes."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.dict(os.environ, {**self.environment, **settings}, clear=True):
            config.reload()
            keyring.renew()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = main([*words])
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def check(self, path=None, **settings):
        said = self.say("preflight", str(path or self.cache), "--json", **settings)
        assert said.returncode in (0, 1), said.stderr
        report = json.loads(said.stdout)
        assert report["misses"] == bool(said.returncode)
        for each in report["differences"]:
            page = f"safecache help errors#{each['reason'].lower().replace(' ', '-')}"
            assert FORM.fullmatch(each["text"]) and each["text"].endswith(f" Help: {each['remedy']} (see {page})"), each
        return report

    def misses(self, **settings):
        """Whether a real process misses any, or builds a library."""
        said = self.python("program.py", **self._activated(settings))
        assert said.returncode == 0, said.stderr
        return has_missed(json.loads(said.stdout.splitlines()[-1]))

    def misses_in_fork(self, zygote, **settings):
        """As misses(), of settings that torch has not read by then."""
        answer = zygote.run(run_in_fork, {**self.environment, **settings}, path=str(self.directory / "program.py"))
        assert answer.ok, answer
        return has_missed(answer.result)

    def copy(self, directory):
        """For what a process would change, with a variable that is in no key."""
        copy = object.__new__(Baked)
        vars(copy).update(vars(self))
        shutil.copytree(self.directory, directory)
        copy.directory, copy.cache = directory, directory / "caches" / "cache"
        own = {"TORCHINDUCTOR_CACHE_DIR": str(copy.cache), "XDG_CONFIG_HOME": str(directory / "caches" / "config")}
        copy.environment = {**self.environment, **own, "HOME": str(directory), "TORCH_LOGS": "+dynamo"}
        return copy


def has_missed(stats):
    return any(" miss" in name for name in stats) or "code sealed" in stats


@pytest.fixture(scope="module", autouse=True)
def computed_once():
    """What torch computes of an environment, it computes in a process of its own."""
    compute, known = environment.compute_environment, {}

    def once(targets):
        environment = frozenset(each for each in os.environ.items() if not each[0].startswith(OF_A_TEST))
        key = environment, tuple(targets)
        if key not in known:
            known[key] = compute(targets)
        return known[key]

    with mock.patch.object(environment, "compute_environment", once):
        yield


@pytest.fixture(scope="module")
def baked(tmp_path_factory):
    return Baked(tmp_path_factory.mktemp("baked"))


@pytest.fixture(scope="module")
def mixed(baked, tmp_path_factory):
    """A copy that a process with another setting has used since, and whether that process has missed any."""
    copy = baked.copy(tmp_path_factory.mktemp("mixed") / "copy")
    copy.missed = copy.misses(**{NAME: "0"})
    return copy


@pytest.fixture
def copied(baked, tmp_path):
    return baked.copy(tmp_path / "copy")


@pytest.fixture
def other(copied):
    """The variable that names another key."""
    path = copied.directory / "other.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return {"SAFECACHE_KEY_FILE": str(path)}


def told(report):
    return [(each["what"].partition(" (")[0], each["baked"], each["here"]) for each in report["differences"]]


def test_cache_from_elsewhere_with_its_key_is_green_and_hits(copied, zygote):
    """At another path, with variables that are in no key."""
    said = copied.say("preflight", str(copied.cache))
    assert said.returncode == 0 and "every entry can hit here" in said.stdout, said.stdout + said.stderr
    assert not copied.misses_in_fork(zygote)


def test_variable_of_a_setting_is_named_with_its_remedy_and_misses(copied, mixed):
    report = copied.check(**{NAME: "0"})
    assert report["misses"] and told(report) == [(NAME, "unset", "0")], report
    assert report["differences"][0]["remedy"] == f"unset {NAME}"
    assert mixed.missed


@EXHAUSTIVE
def test_setting_that_is_decided_otherwise_is_named_and_misses(copied):
    """By a variable that is not of torch's name, and by the machine."""
    report = copied.check(OMP_NUM_THREADS="2")
    assert told(report) == [("number of CPU threads", "1", "2")]
    assert "OMP_NUM_THREADS=1" in report["differences"][0]["remedy"]
    assert copied.misses(OMP_NUM_THREADS="2")
    compiler = shutil.which("g++")
    other = copied.directory / "g++-other"
    other.symlink_to(compiler)
    report = copied.check(CXX=str(other))
    # The other is of what has just been compiled.
    assert [what for what, *_ in told(report)] == ["inductor config cpp.cxx", "number of CPU threads of a part of it"]
    assert "name it without a path" in report["differences"][0]["remedy"]
    assert copied.misses(CXX=str(other))


@EXHAUSTIVE
def test_value_that_was_set_there_is_to_be_exported(tmp_path):
    home = Baked(tmp_path, **{NAME: "0"})
    report = home.check()
    assert told(report) == [(NAME, "0", "unset")]
    assert report["differences"][0]["remedy"] == f"export {NAME}=0"
    assert not home.check(**{NAME: "0"})["misses"]
    assert not home.misses(**{NAME: "0"}) and home.misses()


@EXHAUSTIVE
def test_what_the_program_chooses_itself_is_no_difference(tmp_path):
    home = Baked(tmp_path, CHOOSING)
    report = home.check()
    assert report["differences"] == [] and not home.misses()


def test_other_key_and_namespace_are_named_and_miss(copied, other, zygote):
    report = copied.check(SAFECACHE_NAMESPACE="production")
    assert told(report) == [("SAFECACHE_NAMESPACE", "default", "production")], report
    assert report["differences"][0]["remedy"] == "export SAFECACHE_NAMESPACE=default"
    report = copied.check(**other)
    assert [(each["what"], each["reason"]) for each in report["differences"]] == [("signing key", "unknown key")], (
        report
    )
    assert "safecache keys trust" in report["differences"][0]["remedy"]
    for changed in (other, {"SAFECACHE_NAMESPACE": "production"}):
        used = copied.copy(copied.directory.with_name(min(changed)))
        assert used.misses_in_fork(zygote, **changed)


@EXHAUSTIVE
def test_other_torch_is_named_alone(copied):
    """By the version that it says it has, as of a real process."""
    site = copied.directory / "site"
    site.mkdir()
    code = "import torch.version\ntorch.version.__version__ = torch.__version__ = '2.99.0'\n"
    shutil.copytree(os.path.join(copied.bootstrap), site / "bootstrap")
    (site / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(site), copied.environment["PYTHONPATH"]])
    report = json.loads(Home.say(copied, "preflight", str(copied.cache), "--json", PYTHONPATH=path).stdout)
    assert [(what, here) for what, _, here in told(report)] == [("torch", "2.99.0")], report


@EXHAUSTIVE
def test_cache_without_anything_and_one_without_records_are_told_apart(copied, tmp_path):
    (tmp_path / "empty").mkdir()
    said = copied.say("preflight", str(tmp_path / "empty"))
    assert said.returncode == 1 and "it has no compiled files" in said.stdout
    assert copied.say("preflight", str(tmp_path / "none")).returncode == 1
    shutil.rmtree(copied.cache / ".safecache" / "keys")
    report = copied.check()
    assert not report["misses"] and "is not recorded there" in report["differences"][0]["text"]


def test_damaged_seal_is_named(copied):
    entry = next((copied.cache / "aotautograd").glob("*/*"))
    entry.write_bytes(entry.read_bytes()[:-9])
    report = copied.check()
    assert report["misses"] and told(report)[0][:2] == ("seals of 1 file", "unsealed")


@EXHAUSTIVE
def test_unpacked_directory_is_looked_into(copied, tmp_path):
    whole = copied.check()
    shutil.move(copied.cache, tmp_path / "unpacked" / "inductor")
    assert copied.check(tmp_path / "unpacked") == whole and not whole["misses"] and whole["groups"]


@EXHAUSTIVE
def test_cuda_is_not_initialised_and_no_gpu_is_a_note(copied):
    """What is collected may be of kernels and of a GPU."""
    code = """
        import json, sys
        from safecache.doctor.comparison import Baseline
        from safecache.doctor import compare
        from safecache.upkeep import packing
        baked = packing.collect([sys.argv[1]])
        baked["builds"]["gpu"] = ["sm_90"]
        found = compare(Baseline(baked, {}, baked["groups"]))
        assert "torch" not in sys.modules
        print(json.dumps([[each.what, each.misses] for each in found]))
        """
    said = copied.python("-c", textwrap.dedent(code), str(copied.cache), SAFECACHE="0", PATH="/usr/bin:/bin")
    assert said.returncode == 0, said.stderr
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert json.loads(said.stdout.splitlines()[-1]) == [["GPU", False]]


def test_what_is_collected_is_the_same_each_time_and_names_nobody(copied):
    texts = {
        copied.python("-c", COLLECT, str(copied.cache), SAFECACHE="0", PYTHONHASHSEED=seed).stdout for seed in "12"
    }
    (text,) = texts
    assert os.uname().nodename not in json.dumps({k: v for k, v in json.loads(text).items() if k != "components"})
    assert len(text) < 100_000


@EXHAUSTIVE
def test_secret_in_the_environment_is_not_collected(tmp_path):
    home = Baked(tmp_path, TORCHINDUCTOR_REDIS_URL="redis://:hunter2@localhost", TORCH_AUTH_TOKEN="hunter2")
    said = home.python("-c", COLLECT, str(home.cache), SAFECACHE="0")
    assert said.returncode == 0 and "TORCH_AUTH_TOKEN" in said.stdout and "hunter2" not in said.stdout


def _parts(**more):
    keys = {"recorded": 1, "unsure": 0, "parts": {}, "environment": {}, "kernels": {}, "compilers": {}}
    builds = {name: [] for name in ("machine", "torch", "triton", "python", "gpu", "cpu")}
    return {"groups": 1, "signers": [], "namespaces": [], "refused": {}, "builds": builds | more, "components": keys}


def test_cpu_that_lacks_instructions_or_has_wider_ones_is_named():
    here = "avx avx2 sse x86_64"

    def of_cpus(there):
        return comparison.check_cpus(Baseline(_parts(cpu=[there]), {}, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "list_instructions", lambda: here)
        (lacking,) = of_cpus(f"avx512f {here}")
        assert lacking.text.startswith(
            'CPU differs [other CPU]: baked "with avx512f", here "without". Recompiling here. '
        )
        assert [each.misses for each in of_cpus("avx sse x86_64")] == [True]
        assert list(of_cpus(here)) == []
        patch.setattr(provenance, "list_instructions", lambda: f"{here} rdseed")
        assert list(of_cpus(here)) == []


def test_architecture_of_a_gpu_and_its_name_are_compared(monkeypatch):
    monkeypatch.setattr(Baseline, "gpus", [Gpu("NVIDIA H200", "sm_90", "580.1")])

    def found(check, device="", **builds):
        baked = _parts(**builds)
        baked["components"]["parts"]["device"] = {"1": device} if device else {}
        return list(check(Baseline(baked, {}, 1)))

    (difference,) = found(comparison.check_builds, gpu=["sm_80"])
    assert difference == ("GPU", "sm_80", "sm_90", difference.remedy, True, Reason.OTHER_GPU, "differs", "")
    assert found(comparison.check_builds, gpu=["sm_80,sm_90"]) == []
    assert [each.what for each in found(comparison.check_device, "NVIDIA H100 sm_90")] == ["GPU's name"]
    assert found(comparison.check_device, "NVIDIA H200 sm_90") == found(comparison.check_device, "NVIDIA H200") == []


@pytest.fixture
def pack(copied):
    path = copied.directory / "model.safecache"
    said = copied.say("pack", str(copied.cache), "-o", str(path))
    assert said.returncode == 0, said.stdout + said.stderr
    return path


def test_pack_is_judged_by_its_manifest_alone(copied, pack, zygote):
    shutil.rmtree(copied.cache)
    said = copied.say("preflight", str(pack))
    assert said.returncode == 0 and "every entry can hit here" in said.stdout, said.stdout + said.stderr
    assert told(copied.check(pack, **{NAME: "0"})) == [(NAME, "unset", "0")]
    assert not copied.misses_in_fork(zygote, SAFECACHE_LOWER=str(pack))


def test_pack_of_another_key_or_altered_says_nothing_but_that(copied, pack, other):
    said = copied.say("preflight", str(pack), **other)
    assert said.returncode == 1 and "SAFECACHE_KEY_FILE" in said.stdout, said.stdout
    assert said.stdout.startswith(f"misses: the pack {pack} is refused [unknown key]: sealed by key ")
    assert said.stdout.count("misses:") == 1
    content = bytearray(pack.read_bytes())
    content[40] ^= 1
    pack.write_bytes(content)
    report = copied.check(pack)
    assert report["misses"] and [what for what, *_ in told(report)] == [f"the pack {pack}"]


def test_packs_that_are_merged_keep_what_both_were_made_with(copied, pack, mixed):
    joined = copied.directory / "joined.safecache"
    said = copied.say("merge", str(pack), str(mixed.cache), "-o", str(joined))
    assert said.returncode == 0, said.stdout + said.stderr
    for here_too in ({}, {NAME: "0"}):
        said = copied.say("preflight", str(joined), "--json", **here_too)
        assert said.returncode == 0 and "of a part of it" in said.stdout, said.stdout
    merged = packing.join([_parts(gpu=["sm_80"]), _parts(gpu=["sm_90"])])
    assert merged["builds"]["gpu"] == ["sm_80", "sm_90"] and merged["groups"] == 2


@EXHAUSTIVE
def test_path_in_the_home_of_whoever_filled_it_is_not_collected(tmp_path):
    """Of the compiler, which is in keys: it differs, and is not shown."""
    compiler = tmp_path / "g++-own"
    compiler.symlink_to(shutil.which("g++"))
    home = Baked(tmp_path, CXX=str(compiler))
    said = home.python("-c", COLLECT, str(home.cache), SAFECACHE="0")
    assert said.returncode == 0 and "inductor config cpp.cxx" in said.stdout and str(tmp_path) not in said.stdout
    assert [(what, there) for what, there, _ in told(home.check())] == [("inductor config cpp.cxx", "(not shown)")]
