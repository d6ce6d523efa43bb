"""Processes that compile at the same time, on one host or on several: forks of one, as each import of torch takes seconds."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import traceback
import types

__all__ = ["Crowd", "forked"]

# Seconds after which a process says where it stands, and ends: before the zygote's limit.
_LIMIT = 110


class Crowd:
    """Has some prepare, and begin when all have; and what each has come to."""

    def __init__(self, home, number, run, prepare="", homes=(), **environment) -> None:
        """``homes``: of the hosts of each, if not all are on that of ``home``."""
        environments = [
            each.environment | environment | {"RANK": str(rank)} for rank, each in enumerate(homes or [home] * number)
        ]
        answer = home.run(forked, environments=environments, prepare=prepare, run=run)
        assert answer.ok, answer
        self.said, self.statuses, self.pids = ([each[n] for each in answer.result] for n in range(3))

    def answers(self, died=()):
        """Of all but those that ended with a status in ``died``."""
        assert all(status in (0, *died) for status in self.statuses), (self.statuses, self.said)
        answers = [each for each, status in zip(self.said, self.statuses, strict=True) if not status]
        assert not any("traceback" in each for each in answers), answers
        return answers


def forked(environments, prepare, run):
    """The scene: of each process what it says, if it ended by itself, its status and its id."""
    begin, to_begin = os.pipe()
    running = [_start(environment, prepare, run, begin, to_begin) for environment in environments]
    for _, ready, _ in running:
        os.read(ready, 1)  # or its end
    os.close(to_begin)
    return [(_read(answer), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pid) for pid, _, answer in running]


def _start(environment, prepare, run, begin, to_begin):
    """Its id; what says that it is ready, and what it answers through."""
    ready, to_ready = os.pipe()
    answer, to_answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(_LIMIT)
        try:
            os.close(to_begin)
            said = _compile(environment, prepare, run, lambda: (os.close(to_ready), os.read(begin, 1)))
        except BaseException:
            said = {"traceback": traceback.format_exc()}
        os.write(to_answer, json.dumps(said).encode())
        os._exit(0)
    os.close(to_ready)
    os.close(to_answer)
    return pid, ready, answer


def _read(answer):
    with open(answer) as file:
        return json.loads(file.read() or "null")


def _compile(environment, prepare, run, await_others):
    import torch
    from torch._dynamo.utils import counters

    import safecache
    from safecache.settings import config
    from safecache.signing import keyring

    os.environ.update(environment)
    keyring.renew()
    config.reload()
    program = types.ModuleType("program")
    sys.modules["program"] = program
    handler, warnings = logging.Handler(logging.WARNING), []
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("safecache").addHandler(handler)
    names = vars(program)
    names.update(os=os, signal=signal, sys=sys, torch=torch, counters=counters, warnings=warnings, safecache=safecache)
    exec(prepare, names)
    torch.manual_seed(0)
    program.model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Softmax(-1))
    program.x = torch.randn(4, 16)
    await_others()
    exec(run, names)
    found = dict(counters["inductor"]) | dict(counters["aot_autograd"])
    return {"y": program.y.double().sum().item(), "found": found, "warnings": warnings, "stats": safecache.stats()}
