"""Whether this user has a name, which torch's default cache directory is called after."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping

from safecache.doctor import finding
from safecache.doctor.finding import Finding

__all__ = ["check"]

_NAMED_BY = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as getpass.getuser() asks


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A uid without a passwd entry, as OpenShift and ``docker --user`` give."""
    user = os.getuid()
    try:
        yield finding.ok("user", f"uid {user} is {pwd.getpwuid(user).pw_name}.")
        return
    except KeyError:
        missing = f"uid {user} has no passwd entry"
    named = next((name for name in _NAMED_BY if environ.get(name)), None)
    if named is not None:
        yield finding.info("no-passwd-entry", f"{missing}; {named}={environ[named]} names it instead.")
        return
    evidence = (
        f"{missing}, and no variable names it: getpass.getuser() fails. torch 2.11 and 2.12 then fail to import, "
        f"unless safecache is active; later ones call their default cache directory torchinductor_uid_{user}."
    )
    yield finding.warning("no-passwd-entry", evidence, f"export LOGNAME=uid_{user}")
