"""Which torch the scenes run with."""

from __future__ import annotations

import pytest


@pytest.fixture
def release(zygote):
    """The major and minor version."""
    return tuple(int(part) for part in zygote.torch.split(".")[:2])


@pytest.fixture
def since(release):
    """Skips a test about what torch has only since a release."""

    def skip_before(*needed):
        if release < needed:
            pytest.skip(f"torch {'.'.join(map(str, needed))} has it first")

    return skip_before
