"""A directory that breaks in the middle of a compile, or is mended between two, and processes from their very start."""

from __future__ import annotations

import errno
import json
import os

import pytest
from conftest import SOURCE, WARM, needs_root, python
from scenes import model_scenes

pytestmark = pytest.mark.default_release

# Others are those of the real directories of test_directories.py, and of test_few_descriptors.py.
ERRNOS = [errno.EIO, errno.EDQUOT, errno.ESTALE]


@pytest.mark.parametrize("error", ERRNOS, ids=errno.errorcode.get)
def test_write_that_fails_is_made_elsewhere(home, error):
    answer = home.run(model_scenes.compile_where_writes_fail, error=error)
    assert answer.ok and answer.result["refused"], answer
    assert len(answer.warnings) == 1 and os.strerror(error) in answer.warnings[0], answer
    strict = home.run(model_scenes.compile_where_writes_fail, error=error, strict=True)
    assert "CacheWriteError" in strict.errors, strict
    assert home.run().ok and home.run().hits == WARM


def test_cache_that_is_removed_again_and_again_while_it_is_filled(home):
    # Past caching_compiler.py, which is faster than the removals are to be.
    answer = home.run(
        model_scenes.compile_while_cache_vanishes, env={"PATH": os.environ["PATH"].partition(os.pathsep)[2]}
    )
    assert answer.ok and len(answer.warnings) <= 2, answer
    assert home.run().ok and home.run().hits == WARM


def test_directory_is_used_again_once_it_can_be(home):
    answer = home.run(model_scenes.compile_until_mended, cache=str(home.cache))
    assert answer.ok and len(answer.warnings) == 1, answer
    first, soon, later = answer.result["kept"]
    assert first == soon != str(home.cache) and later == str(home.cache), answer
    assert home.run().hits == WARM, "what was compiled by then is there for others"


def test_deactivating_undoes_it(home):
    home.cache.write_text("in the way")
    during, after, marked = home.run(model_scenes.deactivate_in_the_middle).result
    assert during != after == str(home.cache) and not marked


COMPILE = f"""
import sys
sys.path.insert(0, {str(SOURCE / "tests")!r})
import json, logging, os
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("safecache").addHandler(handler)
if sys.argv[1:] == ["late"]:
    good, bad = os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ.pop("BAD")
    import torch._inductor.compile_fx, torch._dynamo
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = bad
import safecache
from scenes import model_scenes
result = model_scenes.compile_model()
child = [sys.executable, "-c", "import safecache.tiers.fallback, os; print(*safecache.tiers.fallback.iter_lower_paths(os.environ['TORCHINDUCTOR_CACHE_DIR'] + '/x', os.environ['TORCHINDUCTOR_CACHE_DIR']))"]
import subprocess
said = subprocess.run(child, capture_output=True, text=True, check=True).stdout
print(json.dumps(dict(result=result, warnings=warnings, where=os.environ["TORCHINDUCTOR_CACHE_DIR"], child=said)))
"""


def compile_in_new_process(home, session_directory, *arguments, **environment):
    """With the precompiled headers of the session, if ``environment`` does not say otherwise."""
    own = {"XDG_CONFIG_HOME": str(session_directory / "config"), "TMPDIR": str(session_directory)}
    own |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = python(COMPILE, env=home.environment | own | environment, arguments=arguments, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("when", ["first", "late"])
def test_directory_that_cannot_be_made_when_torch_is_imported(home, session_directory, zygote, when):
    """Stock torch fails to import torch._dynamo there."""
    before = set(session_directory.glob("safecache-*"))
    bad = "/proc/self/nowhere/cache"
    environment = {"TORCHINDUCTOR_CACHE_DIR": bad} if when == "first" else {"BAD": bad}
    said = compile_in_new_process(home, session_directory, *(["late"] if when == "late" else []), **environment)
    assert len(said["warnings"]) == 1 and bad in said["warnings"][0], said
    assert os.path.basename(said["where"]).startswith("safecache-") and f"'{bad}/x'" in said["child"], said
    assert not os.path.exists(said["where"]) and set(session_directory.glob("safecache-*")) <= before


@needs_root
def test_place_of_the_precompiled_headers_that_cannot_be_used(home, session_directory, zygote):
    temporary = home.base / "tmp"
    temporary.mkdir()
    (temporary / "torchinductor_root").write_text("in the way")
    (temporary / "torchinductor_uid_0").write_text("in the way")
    said = compile_in_new_process(home, session_directory, TMPDIR=str(temporary), USER="root", LOGNAME="root")
    assert len(said["warnings"]) == 1 and "precompiled" in said["warnings"][0], said
    assert said["where"] == str(home.cache) and not list(temporary.glob("safecache-*")), said
