"""What fails in a feature, of whatever type, is one report and no error of a compile."""

from __future__ import annotations

import logging

import pytest

from safecache.errors import CacheReadError, EntryRefusedError
from safecache.reporting import events, report
from safecache.reporting.kinds import Reason

ERRORS = [RuntimeError("it broke"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "no"), OverflowError("2^80")]
ERRORS += [MemoryError(), RecursionError("too deep"), OSError(28, "No space left on device"), KeyError("size")]
EACH = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def fail(error):
    with report.contain_errors("the remote cache", "What it holds is compiled instead."):
        raise error


@EACH
def test_error_is_one_warning_in_default_mode(error, caplog):
    with caplog.at_level(logging.WARNING, "safecache"):
        fail(error)
        fail(error)
    (record,) = caplog.records
    message = record.getMessage()
    assert "the remote cache failed" in message and type(error).__name__ in message
    assert "What it holds is compiled instead." in message


@EACH
def test_error_is_raised_from_its_cause_in_strict_mode(error, settings):
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(CacheReadError) as caught:
        fail(error)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_passes(stop):
    with pytest.raises(stop):
        fail(stop())


def test_error_that_strict_mode_has_raised_passes_unchanged(settings):
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError) as caught:
        events.report(Reason.UNSEALED, "entry refused", why="no seal", cause="no seal", remedy="")
    with pytest.raises(EntryRefusedError) as passed:
        fail(caught.value)
    assert passed.value is caught.value
