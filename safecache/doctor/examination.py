"""All checks, in their order; none can prevent the others from being made."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from safecache.doctor import configuration, contents, directories, file_systems, finding, installation, remote
from safecache.doctor.finding import SEVERITIES, Finding
from safecache.settings import config

__all__ = ["CHECKS", "examine"]

# Seconds. A file server that is down never answers, and a process that waits for it cannot even be killed.
_DEADLINE = 60.0

Check = Callable[[Mapping[str, str]], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "variables": configuration.check_variables,
    "versions": installation.check_versions,
    "hooks": installation.check_hooks,
    "user": directories.check_user,
    "keys": configuration.check_keys,
    "access": directories.check_access,
    "file systems": file_systems.check_file_systems,
    "space": directories.check_space,
    "behaviour": file_systems.check_behaviour,
    "execution": directories.check_execution,
    "compilers": installation.check_compilers,
    "NVIDIA": installation.check_nvidia,
    "CPUs": installation.check_cpus,
    "bytecode": installation.check_bytecode,
    "remote caches of torch and Triton": configuration.check_remote_cache,
    "remote cache": remote.check_remote,
    "contents": contents.check_contents,
    "hits": contents.check_hits,
}


def examine(*, import_torch: bool) -> list[Finding]:
    """The findings of all checks, worst first, otherwise in the order of the checks. Changes nothing that lasts.

    Invalid settings count as unset. Without ``import_torch`` the hooks are not checked.
    """
    environ = config.child_environment()
    # In strict mode, problems would raise: here they are findings.
    config.reload(without={*config.problems(environ), "SAFECACHE_STRICT"})
    config.enforce()
    found = []
    with _silent():
        for name, check in CHECKS.items():
            if import_torch or check is not installation.check_hooks:
                found += _run(name, check, environ)
    return sorted(found, key=lambda each: -SEVERITIES.index(each.severity))


def _run(name: str, check: Check, environ: Mapping[str, str]) -> list[Finding]:
    """The findings of one check until it ends, fails or runs out of time."""
    found: list[Finding] = []

    def run() -> None:
        try:
            for each in check(environ):
                found.append(each)
        except Exception as error:
            evidence = f"The check of {name} failed: {type(error).__name__}: {error}."
            found.append(finding.warning("check-failed", evidence, "Please report it, with this line."))

    thread = threading.Thread(target=run, name=f"safecache-doctor-{name}", daemon=True)
    thread.start()
    limit = installation.TIMEOUT + _DEADLINE if check is installation.check_hooks else _DEADLINE
    thread.join(limit)
    if thread.is_alive():
        evidence = f"The check of {name} does not end within {limit:g} s, as where a file server does not answer."
        return [*found, finding.error("check-failed", evidence, "stat -f each directory; mount | grep nfs")]
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """For this block, turn off safecache's log: the findings say what would be logged."""
    logger = logging.getLogger("safecache")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
