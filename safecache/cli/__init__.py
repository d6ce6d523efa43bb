"""The command line: a module for each command, or for those that belong together, and main, which reads the words.

May import any room.
"""

__all__ = ["EXIT_FINDINGS", "EXIT_USAGE"]

EXIT_FINDINGS = 1
EXIT_USAGE = 2
