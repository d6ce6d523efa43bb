"""Find what keeps caches from working on this machine: one module for each heading of the report.

And all checks in their order: of this machine, none of which can prevent the others, and of a cache from elsewhere. May
import the packages up to isolation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, NamedTuple

from safecache.doctor import comparison, configuration, contents, directories, finding, installation
from safecache.doctor.comparison import Baseline
from safecache.doctor.finding import SEVERITIES, Difference, Finding
from safecache.settings import config

__all__ = ["CHECKS", "Check", "Needs", "compare", "examine_machine"]


# Seconds. A file server that is down never answers, and a process that waits for it cannot even be killed.
_DEADLINE = 60.0


class Needs(Enum):
    """Input of a check: an environment, for TORCH one where torch may be imported; or a Baseline.

    STATED: a Baseline that states what it was made with; KEYS: one that was made with this torch.
    """

    ENVIRONMENT, TORCH, BASELINE, STATED, KEYS = range(5)


class Check(NamedTuple):
    """``find``: yields what it finds of what the check needs."""

    find: Callable[[Any], Iterator[Any]]
    needs: Needs = Needs.ENVIRONMENT


CHECKS: dict[str, Check] = {
    "variables": Check(configuration.check_variables),
    "names of variables": Check(configuration.check_names),
    "switches of caches": Check(configuration.check_switches),
    "combinations of settings": Check(configuration.check_combinations),
    "versions": Check(installation.check_versions),
    "hooks": Check(installation.check_hooks, Needs.TORCH),
    "user": Check(directories.check_user),
    "keys": Check(configuration.check_keys),
    "expiry of keys": Check(configuration.check_expiry),
    "place of the key": Check(configuration.check_key_place),
    "temporary directory": Check(directories.check_temporary_directory),
    "access": Check(directories.check_access),
    "sharing": Check(directories.check_sharing),
    "file systems": Check(directories.check_file_systems),
    "local tier": Check(directories.check_local_level),
    "space": Check(directories.check_space),
    "behaviour": Check(directories.check_behaviour),
    "execution": Check(directories.check_execution),
    "AOTInductor packages": Check(directories.check_packages),
    "compilers": Check(installation.check_compilers),
    "NVIDIA": Check(installation.check_nvidia),
    "CPUs": Check(installation.check_cpus),
    "bytecode": Check(installation.check_bytecode),
    "remote caches of torch and Triton": Check(configuration.check_remote_cache),
    "remote cache": Check(contents.check_remote),
    "contents": Check(contents.check_contents),
    "hits": Check(contents.check_hits),
    "seals of a baseline": Check(comparison.check_seals, Needs.STATED),
    "builds of a baseline": Check(comparison.check_builds, Needs.STATED),
    "CPUs of a baseline": Check(comparison.check_cpus, Needs.STATED),
    "servers of a baseline": Check(comparison.check_servers, Needs.STATED),
    "parts of keys": Check(comparison.check_parts, Needs.KEYS),
    "variables of vLLM": Check(comparison.check_vllm, Needs.KEYS),
    "keys of kernels": Check(comparison.check_kernels, Needs.KEYS),
    "GPU in keys": Check(comparison.check_device, Needs.KEYS),
    "records of a baseline": Check(comparison.check_records, Needs.BASELINE),
}


def examine_machine(*, import_torch: bool) -> list[Finding]:
    """Check this machine and return the findings, worst first, then in the order of the checks.

    Changes nothing that lasts, but reloads this process's settings: invalid ones and strict mode count as unset.
    Without ``import_torch`` the hooks are not checked.
    """
    environ = config.copy_environment()
    # In strict mode, problems would raise: here they are findings.
    config.reload(without={*config.find_problems(environ), "SAFECACHE_STRICT"})
    config.enforce()
    found = []
    with _silence_log():
        for name, check in CHECKS.items():
            if check.needs is Needs.ENVIRONMENT or (import_torch and check.needs is Needs.TORCH):
                found += _run_check(name, check, environ)
    return sorted(found, key=lambda each: -SEVERITIES.index(each.severity))


def compare(baseline: Baseline) -> list[Difference]:
    """Return how this environment differs from ``baseline``, causes of misses first.

    Raises SafecacheError if torch cannot be imported.
    """
    needs = {Needs.BASELINE}
    if baseline.baked and baseline.groups:
        needs |= {Needs.STATED, Needs.KEYS} if baseline.is_of_this_torch else {Needs.STATED}
    found = [each for check in CHECKS.values() if check.needs in needs for each in check.find(baseline)]
    return sorted(found, key=lambda each: -SEVERITIES.index(each.severity))


def _run_check(name: str, check: Check, environ: Mapping[str, str]) -> list[Finding]:
    """The findings of one check until it ends, fails or runs out of time."""
    found: list[Finding] = []

    def run() -> None:
        try:
            for each in check.find(environ):
                found.append(each)
        except Exception as error:
            why = f"{type(error).__name__}: {error}. The other checks ran"
            remedy = "safecache doctor --json > doctor.json  # and report it to safecache with that file"
            found.append(finding.warning("check-failed", f"the check of {name} failed", why, remedy))

    thread = threading.Thread(target=run, name=f"safecache-doctor-{name}", daemon=True)
    thread.start()
    limit = installation.TIMEOUT + _DEADLINE if check.needs is Needs.TORCH else _DEADLINE
    thread.join(limit)
    if thread.is_alive():
        why = f"no result within {limit:g} s, as where a file server does not answer. Compiles may hang there too"
        remedy = "timeout 5 stat -f DIR  # for each cache and mount: the one that does not answer"
        return [*found, finding.error("check-failed", f"the check of {name} does not end", why, remedy)]
    return found


@contextmanager
def _silence_log() -> Iterator[None]:
    """Turn off safecache's log within the block: the findings report what would be logged."""
    logger = logging.getLogger("safecache")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
