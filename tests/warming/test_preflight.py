"""What `preflight` says of a cache is what a process there comes to: green hits all, and each red difference misses."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from safecache.signing import provenance
from safecache.upkeep import preflight
from warming.programs import COMPILED, EXHAUSTIVE, Home

pytestmark = pytest.mark.default_release
COUNTING = COMPILED + "    import json, safecache\n    print(json.dumps(safecache.stats()))\n"
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
        return os.path.join(os.path.dirname(os.path.dirname(preflight.__file__)), "bootstrap")

    def check(self, *words, **settings):
        said = self.say("preflight", str(self.cache), "--json", *words, **settings)
        assert said.returncode in (0, 1), said.stderr
        report = json.loads(said.stdout)
        assert report["misses"] == bool(said.returncode)
        return report

    def misses(self, **settings):
        """Whether a real process misses any, or builds a library."""
        said = self.python("program.py", **self._activated(settings))
        assert said.returncode == 0, said.stderr
        stats = json.loads(said.stdout.splitlines()[-1])
        return any(" miss" in name for name in stats) or "code sealed" in stats


@pytest.fixture(scope="module")
def baked(tmp_path_factory):
    return Baked(tmp_path_factory.mktemp("baked"))


@pytest.fixture
def copied(baked, tmp_path):
    """A copy, for what a process would change."""
    copy = object.__new__(Baked)
    vars(copy).update(vars(baked))
    shutil.copytree(baked.directory, tmp_path / "copy")
    copy.directory = tmp_path / "copy"
    copy.cache = copy.directory / "caches" / "cache"
    own = {"TORCHINDUCTOR_CACHE_DIR": str(copy.cache), "XDG_CONFIG_HOME": str(copy.directory / "caches" / "config")}
    copy.environment = {**baked.environment, **own, "HOME": str(copy.directory)}
    return copy


def told(report):
    return [(each["what"].partition(" (")[0], each["baked"], each["here"]) for each in report["differences"]]


def test_cache_from_elsewhere_with_its_key_is_green_and_hits(copied):
    """At another path, with variables that are in no key."""
    said = copied.say("preflight", str(copied.cache), TORCH_LOGS="+dynamo")
    assert said.returncode == 0 and "every entry can hit here" in said.stdout, said.stdout + said.stderr
    assert not copied.misses()


@pytest.mark.parametrize(
    "name, value",
    [
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
        pytest.param("TORCHINDUCTOR_FREEZING", "1", marks=EXHAUSTIVE),
        pytest.param("TORCHINDUCTOR_COMPREHENSIVE_PADDING", "0", marks=EXHAUSTIVE),
    ],
)
def test_variable_of_a_setting_is_named_with_its_remedy_and_misses(copied, name, value):
    report = copied.check(**{name: value})
    assert report["misses"] and told(report) == [(name, "unset", value)], report
    assert report["differences"][0]["remedy"] == f"unset {name}"
    assert copied.misses(**{name: value})


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
    home = Baked(tmp_path, TORCHINDUCTOR_COMPREHENSIVE_PADDING="0")
    report = home.check()
    assert told(report) == [("TORCHINDUCTOR_COMPREHENSIVE_PADDING", "0", "unset")]
    assert report["differences"][0]["remedy"] == "export TORCHINDUCTOR_COMPREHENSIVE_PADDING=0"
    assert not home.check(TORCHINDUCTOR_COMPREHENSIVE_PADDING="0")["misses"]
    assert not home.misses(TORCHINDUCTOR_COMPREHENSIVE_PADDING="0") and home.misses()


@EXHAUSTIVE
def test_what_the_program_chooses_itself_is_no_difference(tmp_path):
    home = Baked(tmp_path, CHOOSING)
    report = home.check()
    assert report["differences"] == [] and not home.misses()


def test_other_key_and_namespace_are_named_and_miss(copied):
    report = copied.check(SAFECACHE_NAMESPACE="production")
    assert told(report) == [("SAFECACHE_NAMESPACE", "default", "production")], report
    assert report["differences"][0]["remedy"] == "export SAFECACHE_NAMESPACE=default"
    other = copied.directory / "other.key"
    other.write_bytes(os.urandom(32))
    other.chmod(0o600)
    report = copied.check(SAFECACHE_KEY_FILE=str(other))
    assert [what for what, *_ in told(report)] == ["signing key [unknown key]"], report
    assert "safecache keys trust" in report["differences"][0]["remedy"]
    assert copied.misses(SAFECACHE_KEY_FILE=str(other))


@EXHAUSTIVE
def test_other_namespace_misses(copied):
    assert copied.misses(SAFECACHE_NAMESPACE="production")


@EXHAUSTIVE
def test_other_torch_is_named_alone(copied):
    """By the version that it says it has, as of a real process."""
    site = copied.directory / "site"
    site.mkdir()
    code = "import torch.version\ntorch.version.__version__ = torch.__version__ = '2.99.0'\n"
    shutil.copytree(os.path.join(copied.bootstrap), site / "bootstrap")
    (site / "sitecustomize.py").write_text(code)
    report = copied.check(PYTHONPATH=os.pathsep.join([str(site), copied.environment["PYTHONPATH"]]))
    assert [(what, here) for what, _, here in told(report)] == [("torch", "2.99.0")], report


@EXHAUSTIVE
def test_cache_without_anything_and_one_without_records_are_told_apart(copied, tmp_path):
    (tmp_path / "empty").mkdir()
    said = copied.say("preflight", str(tmp_path / "empty"))
    assert said.returncode == 1 and "nothing that is compiled lies there" in said.stdout
    assert copied.say("preflight", str(tmp_path / "none")).returncode == 1
    shutil.rmtree(copied.cache / ".safecache" / "keys")
    report = copied.check()
    assert not report["misses"] and "is not recorded there" in report["differences"][0]["text"]


def test_damaged_seal_is_named(copied):
    entry = next((copied.cache / "aotautograd").glob("*/*"))
    entry.write_bytes(entry.read_bytes()[:-9])
    report = copied.check()
    assert report["misses"] and told(report)[0][:2] == ("seals of 1 files", "unsealed")


@EXHAUSTIVE
def test_unpacked_directory_is_looked_into(copied, tmp_path):
    shutil.move(copied.cache, tmp_path / "unpacked" / "inductor")
    said = copied.say("preflight", str(tmp_path / "unpacked"), "--json")
    assert said.returncode == 0 and json.loads(said.stdout)["groups"] > 3


@EXHAUSTIVE
def test_cuda_is_not_initialised_and_no_gpu_is_a_note(copied):
    """What is collected may be of kernels and of a GPU."""
    code = """
        import json, sys
        from safecache.upkeep import preflight
        baked = preflight.collected([sys.argv[1]])
        baked["builds"]["gpu"] = ["sm_90"]
        found = preflight.differences(baked)
        assert "torch" not in sys.modules
        print(json.dumps([[each.what, each.misses] for each in found]))
        """
    import textwrap

    said = copied.python("-c", textwrap.dedent(code), str(copied.cache), SAFECACHE="0", PATH="/usr/bin:/bin")
    assert said.returncode == 0, said.stderr
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert json.loads(said.stdout.splitlines()[-1]) == [["GPU", False]]


def test_what_is_collected_is_the_same_each_time_and_names_nobody(copied):
    code = "import json, sys; from safecache.upkeep import preflight; print(json.dumps(preflight.collected([sys.argv[1]])))"
    texts = {copied.python("-c", code, str(copied.cache), SAFECACHE="0", PYTHONHASHSEED=seed).stdout for seed in "12"}
    (text,) = texts
    assert os.uname().nodename not in json.dumps({k: v for k, v in json.loads(text).items() if k != "components"})
    assert len(text) < 100_000


@EXHAUSTIVE
def test_secret_in_the_environment_is_not_collected(tmp_path):
    home = Baked(tmp_path, TORCHINDUCTOR_REDIS_URL="redis://:hunter2@localhost", TORCH_AUTH_TOKEN="hunter2")
    code = "import json, sys; from safecache.upkeep import preflight; print(json.dumps(preflight.collected([sys.argv[1]])))"
    said = home.python("-c", code, str(home.cache), SAFECACHE="0")
    assert said.returncode == 0 and "TORCH_AUTH_TOKEN" in said.stdout and "hunter2" not in said.stdout


def _parts(**more):
    keys = {"recorded": 1, "unsure": 0, "parts": {}, "environment": {}, "kernels": {}, "compilers": {}}
    builds = {name: [] for name in ("machine", "torch", "triton", "python", "gpu", "cpu")}
    return {"groups": 1, "signers": [], "namespaces": [], "refused": {}, "builds": builds | more, "components": keys}


def test_cpu_that_lacks_instructions_or_has_wider_ones_is_named():
    here = "avx avx2 sse x86_64"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(provenance, "instructions", lambda: here)
        assert [str(each) for each in preflight._of_cpus([f"avx512f {here}"])] == [
            'CPU differs: baked "with avx512f", here "without"'
        ]
        assert [each.misses for each in preflight._of_cpus(["avx sse x86_64"])] == [True]
        assert list(preflight._of_cpus([here])) == []
        patch.setattr(provenance, "instructions", lambda: f"{here} rdseed")
        assert list(preflight._of_cpus([here])) == []


def test_architecture_of_a_gpu_and_its_name_are_compared(monkeypatch):
    gpus = [preflight._Gpu("NVIDIA H200", "sm_90", "580.1")]
    builds = _parts(gpu=["sm_80"])["builds"]
    (found,) = preflight._of_builds(builds, gpus)
    assert (found.what, found.baked, found.here, found.misses) == ("GPU", "sm_80", "sm_90", True)
    assert list(preflight._of_builds(_parts(gpu=["sm_80,sm_90"])["builds"], gpus)) == []
    keys = {"parts": {"device": {"1": "NVIDIA H100 sm_90"}}}
    assert [each.what for each in preflight._of_device(keys, gpus)] == ["GPU's name"]
    assert list(preflight._of_device({"parts": {"device": {"1": "NVIDIA H200 sm_90"}}}, gpus)) == []
    assert list(preflight._of_device({"parts": {"device": {"1": "NVIDIA H200"}}}, gpus)) == []


@pytest.fixture
def pack(copied):
    path = copied.directory / "model.safecache"
    said = copied.say("pack", str(copied.cache), "-o", str(path))
    assert said.returncode == 0, said.stdout + said.stderr
    return path


def test_pack_is_judged_by_its_manifest_alone(copied, pack):
    shutil.rmtree(copied.cache)
    said = copied.say("preflight", str(pack))
    assert said.returncode == 0 and "every entry can hit here" in said.stdout, said.stdout + said.stderr
    assert not copied.misses(SAFECACHE_LOWER=str(pack))
    shutil.rmtree(copied.cache)
    said = copied.say("preflight", str(pack), "--json", TORCHINDUCTOR_MAX_AUTOTUNE="1")
    assert said.returncode == 1 and told(json.loads(said.stdout)) == [("TORCHINDUCTOR_MAX_AUTOTUNE", "unset", "1")]
    assert copied.misses(SAFECACHE_LOWER=str(pack), TORCHINDUCTOR_MAX_AUTOTUNE="1")


def test_pack_of_another_key_or_altered_says_nothing_but_that(copied, pack):
    other = copied.directory / "other.key"
    other.write_bytes(os.urandom(32))
    other.chmod(0o600)
    said = copied.say("preflight", str(pack), SAFECACHE_KEY_FILE=str(other))
    assert said.returncode == 1 and "is not used" in said.stdout and "SAFECACHE_KEY_FILE" in said.stdout, said.stdout
    assert said.stdout.count("misses:") == 1
    content = bytearray(pack.read_bytes())
    content[40] ^= 1
    pack.write_bytes(content)
    said = copied.say("preflight", str(pack), "--json")
    assert said.returncode == 1 and [what for what, *_ in told(json.loads(said.stdout))] == ["the pack"]


def test_packs_that_are_merged_keep_what_both_were_made_with(copied, pack):
    joined = copied.directory / "joined.safecache"
    assert (
        copied.python("program.py", **copied._activated({"TORCHINDUCTOR_COMPREHENSIVE_PADDING": "0"})).returncode == 0
    )
    said = copied.say("merge", str(pack), str(copied.cache), "-o", str(joined))
    assert said.returncode == 0, said.stdout + said.stderr
    for value in ("0", "1"):
        said = copied.say("preflight", str(joined), "--json", TORCHINDUCTOR_COMPREHENSIVE_PADDING=value)
        assert said.returncode == 0 and "of a part of it" in said.stdout, said.stdout
    merged = preflight.joined([_parts(gpu=["sm_80"]), _parts(gpu=["sm_90"])])
    assert merged["builds"]["gpu"] == ["sm_80", "sm_90"] and merged["groups"] == 2


@EXHAUSTIVE
def test_path_in_the_home_of_whoever_filled_it_is_not_collected(tmp_path):
    """Of the compiler, which is in keys: it differs, and is not shown."""
    compiler = tmp_path / "g++-own"
    compiler.symlink_to(shutil.which("g++"))
    home = Baked(tmp_path, CXX=str(compiler))
    code = "import json, sys; from safecache.upkeep import preflight; print(json.dumps(preflight.collected([sys.argv[1]])))"
    said = home.python("-c", code, str(home.cache), SAFECACHE="0")
    assert said.returncode == 0 and "inductor config cpp.cxx" in said.stdout and str(tmp_path) not in said.stdout
    assert [(what, there) for what, there, _ in told(home.check())] == [("inductor config cpp.cxx", "(not shown)")]
