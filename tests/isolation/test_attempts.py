"""Compiles that are done at the same time: all of them, as many at once as may be, and nothing is left of those dropped."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from safecache.isolation import client, compiling, encoding
from safecache.isolation.client import Limits, Outcome, ServiceUnavailable
from safecache.isolation.compiling import UnusableError

LIMITS = Limits(1.0, 10**9)


def request(key):
    return SimpleNamespace(key=key, limits=LIMITS)


class Service:
    """In place of the service: does what ``ends`` says of a job, and notes what runs at once."""

    def __init__(self, size):
        self.size = size
        self.ends = {}
        self.directories, self.running, self.most = [], set(), 0
        self.gate = threading.Barrier(size)

    def run(self, job, directory, *, timeout, memory):
        assert (timeout, memory) == LIMITS
        self.directories.append(directory)
        self.running.add(job)
        self.most = max(self.most, len(self.running))
        try:
            return self.ends.get(job, self.end)(job)
        finally:
            self.running.discard(job)

    def end(self, job):
        return Outcome({"job": job}, None, "", 0.1)

    def meet(self, job):
        self.gate.wait(10)
        return self.end(job)


@pytest.fixture
def service(monkeypatch):
    service = Service(3)
    monkeypatch.setattr(client, "get_service", lambda: service)
    monkeypatch.setattr(compiling, "_encode_job", lambda request: request.key)
    return service


def together(*keys):
    first, *others = map(request, keys)
    return compiling.run_together(first, others)


def test_all_are_done_and_the_directory_of_each_lasts_until_it_is_closed(service):
    first, others = together(*"abcdefg")
    assert first.outcome.reply == {"job": "a"} and others.keys() == set("bcdefg")
    for attempt in (first, *others.values()):
        assert os.path.isdir(attempt.directory)
        attempt.close()
    assert not any(map(os.path.exists, service.directories)) and len(set(service.directories)) == 7


def test_as_many_run_at_once_as_the_service_does(service):
    service.ends = dict.fromkeys("abc", service.meet)
    _, others = together(*"abc")
    assert others.keys() == {"b", "c"} and service.most == 3


@pytest.mark.parametrize("error", [ServiceUnavailable("gone"), UnusableError("full")], ids=["service", "place"])
def test_one_that_fails_is_missing_and_the_first_is_the_callers_error(service, error):
    def fail(job):
        raise error

    service.ends = {"b": fail}
    first, others = together(*"abc")
    assert first.outcome.reply == {"job": "a"} and others.keys() == {"c"}
    service.ends = {"a": fail}
    with pytest.raises(type(error)):
        together(*"abc")
    assert not any(os.path.exists(directory) for directory in service.directories[3:])


def test_what_cannot_travel_is_missing_and_the_first_is_the_callers_error(service, monkeypatch):
    def job(request):
        if request.key == "b":
            raise encoding.CannotTravel("it is a lambda")
        return request.key

    monkeypatch.setattr(compiling, "_encode_job", job)
    assert together(*"abc")[1].keys() == {"c"}
    with pytest.raises(encoding.CannotTravel):
        together(*"bac")


def test_interrupt_begins_no_more_and_keeps_nothing(service, monkeypatch):
    begun, cancelled, cancel = threading.Event(), threading.Event(), compiling._Batch.cancel
    helpers = []

    def interrupt(job):
        if threading.current_thread() is threading.main_thread():
            begun.wait(10)
            raise KeyboardInterrupt
        helpers.append(threading.current_thread())
        begun.set()
        cancelled.wait(10)
        return service.end(job)

    def cancel_and_say(self):
        cancel(self)
        cancelled.set()

    def keep(job, limits):
        kept.append(run(job, limits))
        return kept[-1]

    monkeypatch.setattr(compiling._Batch, "cancel", cancel_and_say)
    # Its directory must not only go with the last reference to an attempt.
    run, kept = compiling._run_job, []
    monkeypatch.setattr(compiling, "_run_job", keep)

    service.size = 2
    service.ends = dict.fromkeys("abcdefgh", interrupt)
    with pytest.raises(KeyboardInterrupt):
        together(*"abcdefgh")
    for helper in helpers:
        helper.join(10)
    assert len(service.directories) == 2 and not any(map(os.path.exists, service.directories))
    assert len(helpers) == len(kept) == 1


def test_place_that_cannot_be_had_is_named(service, monkeypatch):
    def made():
        raise PermissionError("no directory out of the reach of others")

    monkeypatch.setattr(compiling.private_directory, "create_temporary", made)
    with pytest.raises(UnusableError, match="out of the reach"):
        compiling.run(request("a"))


def test_without_further_threads_this_one_does_all(service, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert together(*"abc")[1].keys() == {"b", "c"} and service.most == 1
