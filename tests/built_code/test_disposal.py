"""What is refused is moved away once, whoever does it, and no more often judged than it makes sense."""

from __future__ import annotations

import logging
import os

import pytest

from safecache.places.layout import CodeFile
from safecache.reporting.kinds import Reason
from safecache.reporting.report import Refusal
from safecache.store import gate

REFUSAL = Refusal(Reason.DAMAGED, "its digest is not the one that was sealed")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cache" / "abc.so"
    path.parent.mkdir()
    path.write_bytes(b"\x7fELF")
    return CodeFile(str(path), str(path.parent))


@pytest.mark.parametrize("judged", [1, 2, 3, 4])
def test_what_is_replaced_again_and_again_is_judged_three_times(file, monkeypatch, judged):
    verdicts = iter([REFUSAL] * (judged - 1) + [None])
    monkeypatch.setattr(gate, "_discard_refused", lambda *_: False)
    assert gate.accept_or_quarantine(file, lambda: next(verdicts)) is (judged < 4)
    assert len(list(verdicts)) == (1 if judged == 4 else 0)


@pytest.mark.parametrize("by_another", [False, True])
def test_report_says_who_has_moved_it_away(file, caplog, by_another):
    caplog.set_level(logging.WARNING, logger="safecache")
    refusal = REFUSAL._replace(found=os.lstat(file.path))
    if by_another:
        os.unlink(file.path)
    assert not gate.accept_or_quarantine(file, lambda: refusal)
    (said,) = caplog.messages
    assert ("another process has moved it away" in said) is by_another
    assert ("; moved to " in said) is not by_another
