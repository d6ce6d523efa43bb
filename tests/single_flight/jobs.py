"""Jobs of two ranks, in each of MODES, and what they come to in each state of their caches.

Over gloo in test_ranks.py, and over NCCL in ../gpu/test_ranks.py. What a rank does is in ranks.py.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import SOURCE, needs_root
from faults import small_disks

from safecache import testing
from safecache.places import layout
from safecache.reporting.kinds import Count, Kind, Reason

# Data parallel, sharded (FSDP2), tensor parallel, and stages of a pipeline.
MODES = [pytest.param(mode, marks=pytest.mark.xdist_group(f"job {mode}")) for mode in ("ddp", "fsdp", "tp", "pp")]
# The group's own, in seconds. A rank waits for other processes for half of it between two collectives: _SHARE in
# safecache/integrations/compile_scopes.py.
LIMIT = 120
# Takes leases on all those keys, as a process that compiles them, and freezes.
FREEZES = """
import os, signal, sys, time
from safecache import single_flight
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
leases = [single_flight.open_lease(Ref(Kind.FX_ENTRY, key, sys.argv[1])) for key in sys.argv[2:]]
assert leases and all(lease.try_to_hold() for lease in leases)
for lease in leases:
    lease.sign(time.time())
os.kill(os.getpid(), signal.SIGSTOP)
"""


class Job:
    """A job that has trained once, from an empty cache.

    ``run``: starts ranks with these environments, and returns what train() does in those that are not killed.
    """

    def __init__(self, base, run) -> None:
        self.base, self.run, self.numbers, self.cold = base, run, itertools.count(), None
        self.warm = self.new_path()
        self.cold = self.start(self.warm)

    def new_path(self) -> Path:
        """Return the path of something that is not there yet."""
        return self.base / f"made{next(self.numbers)}"

    def copy_cache(self, path=None) -> Path:
        """Return a cache with what the first run has left."""
        return Path(shutil.copytree(self.warm, path or self.new_path(), symlinks=True))

    def start(self, *caches, in_vain=False, dies="", **settings):
        """Train with one cache for both ranks, or one for each, and compare the losses with those of eager and before.

        ``in_vain``: whether each rank is to give up a wait. None waits longer in vain than the group lets it.
        """
        common = settings | {"MEET": str(self.new_path()), "LIMIT": str(LIMIT)}
        environments = [
            common | {"RANK": str(rank), "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": f"{cache}/triton"}
            for rank, cache in enumerate((caches * 2)[:2])
        ]
        ranks = self.run(environments, str(dies))
        for rank in ranks:
            assert (Count.WAITED_IN_VAIN.value in rank["stats"]) == in_vain, rank
            assert rank["in vain"] <= LIMIT / 2, rank
        if dies:
            return None
        for rank, before in zip(ranks, self.cold or ranks, strict=True):
            assert rank["compiled"] == pytest.approx(rank["eager"], rel=1e-3), rank
            assert rank["compiled"] == pytest.approx(before["compiled"]), (rank, before)
        assert any(rank["compiled"] and rank["compiled"][-1] < 0.9 * rank["compiled"][0] for rank in ranks), ranks
        return ranks


def is_warm(rank):
    """Whether it has compiled nothing, and hit."""
    saved, verified = (rank["stats"].get(each.value, 0) for each in (Count.SAVED, Count.VERIFIED))
    return rank["missed"] == 0 == saved < verified


def check_cold(job):
    assert any(rank["missed"] and rank["stats"][Count.SAVED.value] for rank in job.cold), job.cold


def check_warm(job):
    ranks = job.start(job.copy_cache())
    assert all(map(is_warm, ranks)), ranks


def check_rank_1_cold(job):
    first, second = job.start(job.copy_cache(), job.new_path())
    assert is_warm(first) and second["missed"] and second["stats"][Count.SAVED.value], (first, second)


def check_damaged(job):
    cache = job.copy_cache()
    for entry in testing.entries(cache):
        testing.damage(entry, "flipped")
    ranks = job.start(cache)
    assert any(rank["missed"] and rank["stats"].get(Reason.DAMAGED.value) for rank in ranks), ranks


def check_read_only(job):
    """A warm cache, as in an image, hits like one that can be written."""
    with small_disks.mounted(job.new_path(), "size=64m") as disk:
        cache = job.copy_cache(disk / "cache")
        small_disks.read_only(disk)
        ranks = job.start(cache)
    assert all(map(is_warm, ranks)), ranks


def check_full_disk(job):
    """Nothing can be saved there, nor a lease be signed: each rank goes on in a directory of its own."""
    with small_disks.mounted(job.new_path(), "size=1m") as disk:
        small_disks.fill(disk)
        ranks = job.start(disk)
        assert testing.entries(disk) == []
    assert all(rank["missed"] for rank in ranks), ranks


def check_killed(job):
    """One rank is killed amid its compile, with its leases; the second start after that finds all that the first saved."""
    cache, dies = job.new_path(), job.new_path()
    job.start(cache, dies=dies)
    assert dies.exists()
    job.start(cache)
    ranks = job.start(cache)
    assert all(map(is_warm, ranks)), ranks


def check_frozen(job):
    """Another process holds the lease of each graph, and is frozen: each rank gives it up once."""
    cache, keys = job.copy_cache(), set()
    for entry in layout.walk(str(cache)):
        keys |= {entry.cache_key} if entry.kind is Kind.FX_ENTRY else set()
        os.unlink(entry.path)
    with freeze_holder(job.base, cache, *keys):
        ranks = job.start(cache, in_vain=True)
    assert all(rank["missed"] and rank["in vain"] for rank in ranks), ranks


@contextmanager
def freeze_holder(base, *arguments):
    """Have another process run FREEZES, and stand still."""
    environment = os.environ | testing.isolated(base) | {"PYTHONPATH": str(SOURCE)}
    with subprocess.Popen([sys.executable, "-c", FREEZES, *map(str, arguments)], env=environment) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
            yield
        finally:
            process.kill()


in_each_state = pytest.mark.parametrize(
    "check",
    [
        pytest.param(check_cold, id="cold"),
        pytest.param(check_warm, id="warm"),
        pytest.param(check_rank_1_cold, id="rank 1 cold"),
        pytest.param(check_damaged, id="damaged"),
        pytest.param(check_read_only, id="read-only", marks=needs_root),
        pytest.param(check_full_disk, id="full disk", marks=needs_root),
        pytest.param(check_killed, id="killed"),
        pytest.param(check_frozen, id="frozen"),
    ],
)
