"""The command line: one module for each command or group of commands; main dispatches.

May import any package.
"""

from safecache.errors import SafecacheError

__all__ = ["EXIT_FINDINGS", "EXIT_USAGE", "NotRunError", "UsageError"]

EXIT_FINDINGS = 1
EXIT_USAGE = 2


class UsageError(SafecacheError):
    """The arguments of a command do not go together."""

    exit_code = EXIT_USAGE


class NotRunError(SafecacheError):
    """A program is not found, or cannot be run. ``exit_code``: as a shell has it."""

    def __init__(self, program: str, error: OSError) -> None:
        is_missing = isinstance(error, FileNotFoundError)
        super().__init__(f"{program}: {'not found' if is_missing else error.strerror}")
        self.exit_code = 127 if is_missing else 126
