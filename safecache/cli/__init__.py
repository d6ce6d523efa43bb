"""The command line: a module for each command, or for those that belong together, and main, which reads the words.

May import any room.
"""

from safecache.errors import SafecacheError

__all__ = ["EXIT_FINDINGS", "EXIT_USAGE", "UsageError"]

EXIT_FINDINGS = 1
EXIT_USAGE = 2


class UsageError(SafecacheError):
    """The arguments of a command do not go together."""
