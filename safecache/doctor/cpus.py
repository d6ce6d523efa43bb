"""Whether more processes would compile at once than the container may use CPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from safecache.doctor import finding
from safecache.doctor.finding import Finding

__all__ = ["check"]

_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
_GROUPS, _OWN_GROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"
_MOST = 32  # of ``decide_compile_threads`` in torch/_inductor/config.py


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A quota of CPU time that torch does not ask for: it counts the CPUs that a process may run on."""
    usable = len(os.sched_getaffinity(0))
    named = environ.get(_THREADS)
    try:
        threads = int(named) if named is not None else min(_MOST, usable)
    except ValueError:
        evidence = f"{_THREADS}={named} is no number: torch fails to import."
        yield finding.error("bad-compile-threads", evidence, f"export {_THREADS}={usable}")
        return
    quota = _quota()
    allowed = usable if quota is None else min(usable, max(1, math.ceil(quota)))
    chosen = f"{_THREADS}={named}" if named is not None else f"torch chooses {threads} compile threads"
    said = f"{chosen}; {usable} CPUs can be used"
    said += "" if quota is None else f", with time for {quota:g} of them by the quota of its cgroup"
    if threads > allowed:
        evidence = f"{said}. All are throttled together, and each compile process takes memory."
        yield finding.warning("too-many-compile-threads", evidence, f"export {_THREADS}={allowed}")
    else:
        yield finding.ok("cpus", f"{said}.")


def _quota() -> float | None:
    """How many CPUs' time the tightest of this process's cgroups allows; None without a limit."""
    quotas = []
    for hierarchy, group in _groups():
        while True:
            quotas += [*_limit(os.path.join(hierarchy, group.lstrip("/")))]
            if group in ("", "/"):
                break
            group = os.path.dirname(group)
    return min(quotas, default=None)


def _groups() -> Iterator[tuple[str, str]]:
    """Where the hierarchies are that limit CPU time, and this process's group there (cgroups(7)).

    In a container, often mounted so that the group itself is the top.
    """
    with suppress(OSError), open(_OWN_GROUPS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            number, controllers, group = line.rstrip("\n").split(":", 2)
            if number == "0":
                yield _GROUPS, group
            elif "cpu" in controllers.split(","):
                yield from ((os.path.join(_GROUPS, name), group) for name in ("cpu", controllers))


def _limit(directory: str) -> Iterator[float]:
    with suppress(OSError, ValueError), open(os.path.join(directory, "cpu.max"), encoding="ascii") as file:
        quota, period = map(int, file.read().split())  # ValueError: "max"
        yield quota / period
    with (
        suppress(OSError, ValueError),
        open(os.path.join(directory, "cpu.cfs_quota_us"), encoding="ascii") as quota_file,
        open(os.path.join(directory, "cpu.cfs_period_us"), encoding="ascii") as period_file,
    ):
        quota, period = int(quota_file.read()), int(period_file.read())
        if quota > 0:
            yield quota / period
