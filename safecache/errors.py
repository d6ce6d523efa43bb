"""Every error safecache raises.

    SafecacheError
    ├── ConfigError            a setting has a value that is not allowed
    ├── KeyringError           a key is missing, unreadable, or its file is open to others
    ├── RegistryError          a registry of container images cannot be used, or what it has is refused
    ├── EntryRefusedError      an entry failed verification; raised in strict mode, and by a load that cannot recompile
    │   └── RefusedArtifactError   what did is an artifact that the program has named; in default mode too
    ├── CacheReadError         an entry, its directory or the remote cache could not be read (strict mode)
    ├── UnpicklableEntryError  an entry could not be prepared or pickled (strict mode)
    ├── CacheWriteError        an entry, or its directory, could not be written (strict mode)
    ├── ExecutionError         code cannot be loaded from where it lies, or from SAFECACHE_EXEC_DIR (strict mode)
    ├── MissError              a cache has nothing that can be used, and SAFECACHE_STRICT=misses=1 is set
    ├── LauncherError          a launcher from an entry cannot load its kernel, raised by its first call
    ├── VerifierError          what verifies is not on, and strict mode does not go on without it; raised by activate()
    │                          and by the import of the module that was to be verified
    ├── PackRefusedError       a pack was not made by whom this process trusts, or is not as it was made
    └── TritonCompileCrash     Triton's compiler died of a kernel, in a process of its own

In default mode EntryRefusedError, CacheReadError, UnpicklableEntryError, CacheWriteError and ExecutionError do not
reach a compile: each becomes one warning and a recompile.
Each takes a single message by position, so that all of them survive the pickling of a worker's result.
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
    "printable",
]


def printable(text: str) -> str:
    """``text`` with an escape for whatever a terminal would obey, or takes for the end of a line or another direction.

    A control character could forge a line of a log, and one that reverses the direction of writing, what it says.
    Applied again it changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class SafecacheError(Exception):
    """The base of all of them. An Exception, so that a server that catches those falls back to a compile.

    As text it is one line that a log or a terminal can take, whatever the names of files in it.
    ``is_strict``: SAFECACHE_STRICT has made it of what is none otherwise, so nobody may swallow it.
    """

    is_strict = False

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(SafecacheError, ValueError):
    """Names the variable, its value and what is allowed. A ValueError, as a bad argument is."""


class KeyringError(SafecacheError):
    """Names the key file and what is wrong with it."""


class RegistryError(SafecacheError):
    """Names the registry, what was asked for and why it is refused; no password, token or signed URL."""


class EntryRefusedError(SafecacheError):
    """Names the entry, the check it failed and the remedy."""


class RefusedArtifactError(EntryRefusedError, RuntimeError):
    """As EntryRefusedError. A RuntimeError, as what torch raises for such an artifact if its checksum is wrong.

    Not raised by what torch calls inside an ``except RuntimeError`` that reads the same bytes as an older format.
    """


class CacheReadError(SafecacheError):
    """Names what could not be read. Not an OSError: torch swallows those on its way to a silent miss."""


class UnpicklableEntryError(SafecacheError):
    """Names the path to the object, its type and where that is defined. Not a PicklingError: torch swallows those."""


class CacheWriteError(SafecacheError):
    """Names the path and the file system's reason. Not an OSError: torch swallows those from a cache write."""


class ExecutionError(SafecacheError):
    """Names the directory and why no code is loaded from there. What the loader itself raises keeps its own type."""


class MissError(SafecacheError):
    """Names the cache, what was looked up, why it was missed and the key."""


class LauncherError(SafecacheError, RuntimeError):
    """Names the kernel, what is wrong with its file or its device, and the remedy. A RuntimeError, as a launch's is."""


class VerifierError(SafecacheError):
    """Names the hook that is not on, or what is wrong with the keys, and the remedy. Raised in strict mode alone."""


class PackRefusedError(SafecacheError):
    """Names the pack and why it is not used; ``reason``: that, as the value of a Reason."""

    reason = ""


class TritonCompileCrash(SafecacheError, RuntimeError):
    """Triton's compiler, or ptxas, crashed, hung or took too much memory, and this process lives.

    What is raised is of a subclass that is Triton's PTXASError and OutOfResources too: so all that tunes kernels takes
    it for a configuration that is not possible.

    ``how``: "signal", "exit", "timeout", "memory", or "recovered" where MLIR has caught the signal. ``signal``: its
    number, if there is one. ``stage``: what was being made, "source", "ttir", "ttgir", "llir", "ptx" or "cubin".
    ``config``: what tells this compile of the kernel from others. ``report``: the directory with what is known of it.
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
