"""What is worth a line reaches a person, whatever a server does with its logging, and says which process it is from."""

from __future__ import annotations

import logging
import os
import sys
from types import SimpleNamespace

import pytest
from conftest import python

from safecache.reporting import events
from safecache.reporting.kinds import Reason

REPORT = "from safecache.reporting import events, kinds; events.report(kinds.Reason.DAMAGED, 'it is damaged')"
# As the two servers do: vLLM configures the loggers below its own name, SGLang the root.
CONFIGURED = {
    "not-at-all": "",
    "its-own-logger-alone": """
import logging.config
handler = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "level": "INFO"}
logger = {"handlers": ["server"], "level": "INFO", "propagate": False}
logging.config.dictConfig(
    {"version": 1, "disable_existing_loggers": False, "handlers": {"server": handler}, "loggers": {"server": logger}}
)
""",
    "the-root": "import logging; logging.basicConfig(level=logging.INFO, format='[%(asctime)s] %(message)s', force=True)",
}


@pytest.mark.parametrize("before", [True, False], ids=["configured-before", "configured-after"])
@pytest.mark.parametrize("configure", CONFIGURED.values(), ids=CONFIGURED)
def test_warning_is_seen_once_in_every_server(configure, before):
    code = f"{configure}\nimport safecache\n{REPORT}" if before else f"import safecache\n{configure}\n{REPORT}"
    done = python(code + f"\n{REPORT}")
    (line,) = done.stderr.splitlines()
    assert "safecache: it is damaged [damaged]" in line and done.stdout == ""


@pytest.fixture
def lines(caplog):
    """Report something; the lines that follow, at a level."""

    def report(level=logging.WARNING, times=1):
        caplog.set_level(level, logger="safecache")
        for _ in range(times):
            events.report(Reason.DAMAGED, "it is damaged")
        return [record.getMessage() for record in caplog.records]

    return report


def test_line_ends_with_the_process(lines, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    (line,) = lines()
    assert line.endswith(f" [pid {os.getpid()}]")


@pytest.mark.parametrize("variable", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_line_has_the_rank_that_the_launcher_set(lines, monkeypatch, variable):
    monkeypatch.setenv(variable, "3")
    (line,) = lines()
    assert line.endswith(f" [rank 3, pid {os.getpid()}]")


def test_rank_of_torch_comes_before_that_of_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    distributed = SimpleNamespace(is_initialized=lambda: True, get_rank=lambda: 5)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert events.find_rank() == "5"
    distributed.is_initialized = lambda: False
    assert events.find_rank() == "3"


@pytest.mark.parametrize("half", [{}, {"is_initialized": bool}], ids=["empty", "without-ranks"])
def test_torch_that_is_being_imported_has_no_rank(monkeypatch, half):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(**half))
    assert events.make_label() == f"[pid {os.getpid()}]"


def test_repeated_report_is_a_line_for_those_who_ask(lines):
    assert len(lines(logging.INFO, times=3)) == 1
    assert len(lines(logging.DEBUG, times=3)) == 4


def test_silent_reason_is_a_line_for_those_who_ask(caplog):
    caplog.set_level(logging.DEBUG, logger="safecache")
    events.report(Reason.OUTDATED, "an upgrade")
    assert [(record.levelno, "an upgrade [outdated]" in record.getMessage()) for record in caplog.records] == [
        (logging.DEBUG, True)
    ]
