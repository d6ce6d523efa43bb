"""torch._inductor.select_algorithm: the logs of what was tuned, for those who ask for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from safecache.hooks import filelock
from safecache.reporting import events
from safecache.reporting.kinds import Reason
from safecache.settings import config

__all__ = ["append_to_log"]

_REMEDY = "The compile goes on without; let the variable that names it name a file that can be written."


def append_to_log(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> None:
    """append_to_log: a log that cannot be written, or whose lock is not granted, is no error of the compile."""

    def append(filename: str, data: Any) -> None:
        try:
            with filelock.bounded():
                wrapped(filename, data)
        except OSError as error:
            held = isinstance(error, TimeoutError)
            limit = f"its lock was not granted within {config.current().lock_timeout:g} s"
            text = f"the log {os.path.abspath(filename)} was not written: {limit if held else error.strerror}."
            reason = Reason.LOCK_HELD if held else Reason.UNWRITABLE
            events.report(reason, text, cause=filename, remedy=_REMEDY, error=error)

    append(*args, **kwargs)
