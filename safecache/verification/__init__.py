"""Whether what was hit is what is compiled now: graphs compiled again in processes of their own, and compared"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from safecache.settings import config

__all__ = ["check_hits"]


def check_hits(*call: Any) -> AbstractContextManager[None]:
    """Around a call of compile_fx with these arguments: what it hits may be compiled again."""
    if not config.current().verify:
        return nullcontext()
    from safecache.verification import sampling

    return sampling.sampling(*call)
