"""Every error safecache raises.

    SafecacheError
    ├── ConfigError            a setting has a value that is not allowed.
    ├── KeyringError           a key is missing, unreadable, or its file is open to others.
    ├── RegistryError          a registry of container images cannot be used, or its image is refused.
    ├── EntryRefusedError      an entry failed verification; raised in strict mode, and by a load that cannot recompile.
    │   └── RefusedArtifactError   the refused entry is an artifact that the program has named; in default mode too.
    ├── CacheReadError         an entry, its directory or the remote cache could not be read (strict mode).
    ├── UnpicklableEntryError  an entry could not be prepared or pickled (strict mode).
    ├── CacheWriteError        an entry, or its directory, could not be written (strict mode).
    ├── ExecutionError         code cannot be loaded from its directory, or from SAFECACHE_EXEC_DIR (strict mode).
    ├── MissError              a cache has no usable entry, and SAFECACHE_STRICT=misses=1 is set.
    ├── LauncherError          a launcher from an entry cannot load its kernel; raised by its first call.
    ├── VerifierError          a verifying hook is inactive (strict mode); raised by activate(), and by the import of
    │                          the module that the hook is for.
    ├── PackRefusedError       a pack is not sealed by a trusted key, or was changed since.
    └── TritonCompileCrash     Triton's compiler died in a process of its own.

In default mode EntryRefusedError, CacheReadError, UnpicklableEntryError, CacheWriteError and ExecutionError do not
reach a compile: each becomes one warning and a recompile. Each class takes a single message by position, so every error
survives the pickling of a compile worker's result.
"""

from __future__ import annotations

__all__ = [
    "CacheReadError",
    "CacheWriteError",
    "ConfigError",
    "EntryRefusedError",
    "ExecutionError",
    "KeyringError",
    "LauncherError",
    "MissError",
    "PackRefusedError",
    "RefusedArtifactError",
    "RegistryError",
    "SafecacheError",
    "TritonCompileCrash",
    "UnpicklableEntryError",
    "VerifierError",
    "make_printable",
]


def make_printable(text: str) -> str:
    """Return ``text`` with escapes for control characters, line ends and marks that change the direction of writing.

    Without them a file name could forge a line of a log, or show as another name. Idempotent.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class SafecacheError(Exception):
    """Base class of safecache's errors. An Exception, so a server that catches Exception falls back to a compile.

    str() is one line that is safe to print, whatever file names it contains. ``is_strict``: raised only because of
    SAFECACHE_STRICT, so it must reach the caller even where torch or vLLM catches exceptions.
    """

    is_strict = False

    def __str__(self) -> str:
        return make_printable(super().__str__())


class ConfigError(SafecacheError, ValueError):
    """Bad value of a setting. The message names the variable, its value and what is allowed. Also a ValueError."""


class KeyringError(SafecacheError):
    """Key that cannot be used. The message names the key file and what is wrong with it."""


class RegistryError(SafecacheError):
    """Failure of an image registry. The message names it, request and cause; no password, token or signed URL."""


class EntryRefusedError(SafecacheError):
    """Entry that failed verification. The message names the entry, the failed check and the remedy."""


class RefusedArtifactError(EntryRefusedError, RuntimeError):
    """Refused artifact that the program itself has named. Also a RuntimeError, as torch raises for a wrong checksum.

    The message is that of EntryRefusedError. Not raised inside torch's ``except RuntimeError`` blocks that read the
    same bytes as an older format.
    """


class CacheReadError(SafecacheError):
    """Failure to read, in strict mode. The message names the file. Not an OSError, which torch takes for a miss."""


class UnpicklableEntryError(SafecacheError):
    """Entry that does not pickle. The message names the object. Not a PicklingError, which torch swallows."""


class CacheWriteError(SafecacheError):
    """Failure to write, in strict mode. The message names path and cause. Not an OSError, which torch swallows here."""


class ExecutionError(SafecacheError):
    """Directory from which no code may be loaded, and why. Errors of the loader itself keep their own type."""


class MissError(SafecacheError):
    """Miss that SAFECACHE_STRICT=misses=1 forbids. The message names the cache, the graph or kernel, reason and key."""


class LauncherError(SafecacheError, RuntimeError):
    """Kernel that a cached launcher cannot load. The message names kernel, cause and remedy. Also a RuntimeError."""


class VerifierError(SafecacheError):
    """Inactive verifying hook, in strict mode only. The message names the hook, why it is inactive, and the remedy."""


class PackRefusedError(SafecacheError):
    """Pack that is not used. The message names ``pack``, ``why`` and ``remedy``; ``reason``: the value of a Reason."""

    reason = why = remedy = pack = ""


class TritonCompileCrash(SafecacheError, RuntimeError):
    """Crash, hang or out-of-memory of Triton's compiler or ptxas in a separate process; this process lives.

    If Triton is installed, the raised subclass is also Triton's PTXASError and OutOfResources. Autotuners therefore
    skip the configuration.

    ``how``: "signal", "exit", "timeout", "memory", or "recovered" where MLIR has caught the signal. ``signal``: its
    number, or None. ``stage``: what was being made, "source", "ttir", "ttgir", "llir", "ptx" or "cubin". ``config``:
    what tells this compile of the ``kernel`` from its others. ``report``: the directory of the crash report, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        how: str = "",
        signal: int | None = None,
        stage: str = "",
        kernel: str = "",
        config: dict[str, object] | None = None,
        report: str | None = None,
    ) -> None:
        super().__init__(message)
        self.how, self.signal, self.stage = how, signal, stage
        self.kernel, self.config, self.report = kernel, config or {}, report

    def __str__(self) -> str:
        # Those of Triton's classes put words of their own before it.
        return str(self.args[0])
