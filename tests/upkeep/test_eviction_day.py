"""A day of a busy cache, by a clock of its own: limits are met after every sweep, and what is in use survives."""

from __future__ import annotations

import os
import random

from helpers.caches import HOUR, NOW, Cache, at_each_rename, key

from safecache.fs import stamps
from safecache.reporting.kinds import Kind
from safecache.upkeep import eviction, inventory
from safecache.upkeep.eviction import Limits

STEP = 2400.0
MODELS = 6
LIMITS = Limits(size=1_600_000, files=800, age=8 * HOUR)


class Job:
    """A cache that models are compiled into, and looked up in, as time goes by."""

    def __init__(self, root, seed):
        self.cache = Cache(root)
        self.random = random.Random(seed)

    def publish(self, name):
        """As torch does: what an entry refers to comes before it."""
        size = self.random.randrange(500, 20_000)
        files = [*self.cache.code(name, 0, size), *self.cache.kernel(name, 0, size=size)]
        files += [self.cache.fx(f"{name} {part}", 0, size) for part in ("fw", "bw")]
        return [*files, self.cache.aot(name, 0, [f"{name} fw", f"{name} bw"], size)]

    def hit(self, files):
        """Each file that is read is stamped, but not anew in a while."""
        for path in files:
            if path.suffix != ".lock" and self.cache.now - path.stat().st_mtime >= stamps.INTERVAL:
                self.cache.use(path, 0)

    def check(self):
        """No entry leads nowhere, no code is without its record, no record without its file, and nothing lies about."""
        found = inventory.take_inventory(str(self.cache.root))
        kinds = {kind: {group.name for group in found.groups if group.kind is kind} for kind in Kind}
        assert not kinds[Kind.RECORD] and not kinds[Kind.TEMPORARY] and not kinds[Kind.LOCK]
        assert {key("f", f"{name} {part}") for name in self.names(kinds) for part in ("fw", "bw")} <= kinds[
            Kind.FX_ENTRY
        ]
        whole = {Kind.NATIVE_CODE: (2, 1), Kind.KERNEL: (3, 3)}
        for group in found.groups:
            assert (len(group.files), len(group.records)) == whole.get(group.kind, (1, 0)), group

    def names(self, kinds):
        return [name for name in self.published if key("a", name) in kinds[Kind.AOT_ENTRY]]

    published: tuple[str, ...] = ()


def test_day_of_eviction_keeps_the_limits_and_the_working_set(tmp_path, monkeypatch):
    job = Job(tmp_path / "cache", seed=1)
    working = {f"model {n}": job.publish(f"model {n}") for n in range(MODELS)}
    job.published = tuple(working)
    saved, removed = [], 0

    def used_meanwhile(source, rename):
        """Now and then somebody reads what is just being moved away."""
        files = [source] if os.path.isfile(source) else [os.path.join(source, name) for name in os.listdir(source)]
        if ".safecache" not in source and job.random.random() < 0.05 and files:
            os.utime(files[0], (job.cache.now,) * 2)
            saved.append(source)
        rename()

    at_each_rename(monkeypatch, used_meanwhile)
    monkeypatch.setattr(eviction, "list_mapped_files", dict)
    for step in range(int(24 * HOUR / STEP)):
        job.cache.now = NOW + step * STEP
        # Each model of the working set is used every four hours, at a time of its own.
        for number, files in enumerate(working.values()):
            if step % 6 == number % 6:
                job.hit(files)
        job.published += tuple(f"{step} {n}" for n in range(2))
        for name in job.published[-2:]:
            job.publish(name)
        done = eviction.sweep(str(job.cache.root), LIMITS, now=job.cache.now)
        removed += len(done.removed)
        assert done.size <= LIMITS.size and done.files <= LIMITS.files, step
        assert (done.size, done.files) == (job.cache.size(), len(job.cache.files()))
        if step % 6 == 0:
            job.check()
        assert all(path.exists() for files in working.values() for path in files if path.suffix != ".lock"), step
    assert removed > 200 and len(saved) > 5
