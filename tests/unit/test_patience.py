"""Errors that pass are waited for, others are not."""

from __future__ import annotations

import errno

import pytest

from safecache.patience import patiently


def failing(number, times):
    calls = []

    def action():
        calls.append(1)
        if len(calls) <= times:
            raise OSError(number, "no")
        return len(calls)

    return action, calls


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EBUSY, errno.ENOENT])
def test_error_that_passes_is_tried_again(number):
    action, _ = failing(number, 3)
    assert patiently(action) == 4


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EBUSY, errno.ENOENT])
def test_error_that_stays_is_raised_in_the_end(number):
    action, calls = failing(number, 99)
    with pytest.raises(OSError) as caught:
        patiently(action)
    assert caught.value.errno == number and len(calls) == 4


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_other_error_is_raised_at_once(number):
    action, calls = failing(number, 1)
    with pytest.raises(OSError):
        patiently(action)
    assert len(calls) == 1
