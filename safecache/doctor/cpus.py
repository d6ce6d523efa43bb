"""Whether more processes would compile at once than the container may use CPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping

from safecache.doctor import finding
from safecache.doctor.finding import Finding
from safecache.isolation import cpus

__all__ = ["check"]

_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
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
    quota = cpus.quota()
    allowed = usable if quota is None else min(usable, max(1, math.ceil(quota)))
    chosen = f"{_THREADS}={named}" if named is not None else f"torch chooses {threads} compile threads"
    said = f"{chosen}; {usable} CPUs can be used"
    said += "" if quota is None else f", with time for {quota:g} of them by the quota of its cgroup"
    if threads > allowed:
        evidence = f"{said}. All are throttled together, and each compile process takes memory."
        yield finding.warning("too-many-compile-threads", evidence, f"export {_THREADS}={allowed}")
    else:
        yield finding.ok("cpus", f"{said}.")
