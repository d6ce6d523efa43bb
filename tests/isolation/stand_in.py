"""Jobs for the workers of the tests, in place of compiles."""

from __future__ import annotations

import ctypes
import os
import time


def run(job, directory):
    return JOBS[job["what"]](job, directory)


def _abort(job, directory):
    ctypes.CDLL(None).abort()


def _segfault(job, directory):
    ctypes.string_at(0)


def _hang(job, directory):
    while True:
        time.sleep(60)


def _bomb(job, directory):
    held = []
    while True:
        held.append(bytearray(16 << 20))


JOBS = {
    "echo": lambda job, directory: {"echo": job.get("value"), "pid": os.getpid(), "directory": directory},
    "abort": _abort,
    "segfault": _segfault,
    "hang": _hang,
    "bomb": _bomb,
}
