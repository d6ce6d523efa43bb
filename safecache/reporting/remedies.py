"""Suggest remedies for failed writes, one per errno."""

from __future__ import annotations

import errno
import os

__all__ = ["suggest_fix"]

_ELSEWHERE = "set {variable} to a directory that can be written"
_FREE = "free space there, such as with `safecache gc --max-bytes 10G`, or set {variable} to a directory with room"
_FIXES = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: f"the disk quota is used up: {_FREE}",
    errno.EACCES: "make the directory writable for uid {uid}, or " + _ELSEWHERE,
    errno.EPERM: "make the directory writable for uid {uid}, or " + _ELSEWHERE,
    errno.EROFS: "SAFECACHE_LOWER reads a read-only cache on purpose; for what is compiled, " + _ELSEWHERE,
    errno.EIO: "check the disk (dmesg), or set {variable} to a directory on another one",
    errno.ESTALE: "mount the network file system again, or " + _ELSEWHERE,
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max)",
}


def suggest_fix(error: OSError, variable: str = "TORCHINDUCTOR_CACHE_DIR") -> str:
    """The remedy for a failed write, as ``Help: ...``; ``variable``: the setting that moves the directory."""
    fix = _FIXES.get(error.errno or 0, _ELSEWHERE)
    return f"Help: {fix.format(variable=variable, uid=os.geteuid())}"
