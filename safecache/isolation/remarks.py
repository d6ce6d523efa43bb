"""What a compile says besides its result: it is to be seen where the compile was asked for."""

from __future__ import annotations

import builtins
import contextlib
import io
import sys
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["heard", "repeat"]

# In characters: more than the PTX that Triton prints where ptxas fails.
_MOST = 1 << 20
# As of a module that all kernels were in: a filter that lets a warning pass once does so here, too.
_shown: dict[Any, Any] = {}


@contextlib.contextmanager
def heard() -> Iterator[dict[str, Any]]:
    """Collect them, instead of showing them: {} where there is nothing. JSON-able at the end."""
    remarks: dict[str, Any] = {}
    output = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(output):
        warnings.simplefilter("always")
        yield remarks
    if output.getvalue():
        remarks["output"] = output.getvalue()[:_MOST]
    if caught:
        remarks["warnings"] = [[w.category.__name__, str(w.message), w.filename, w.lineno] for w in caught]


def repeat(remarks: dict[str, Any]) -> None:
    """Show what ``heard`` has collected. Raises what a filter turns into an error, as without a worker."""
    sys.stdout.write(remarks.get("output", ""))
    for category, message, file, line in remarks.get("warnings", ()):
        found = getattr(builtins, category, None)
        kind = found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
        warnings.warn_explicit(message, kind, file, line, registry=_shown)
