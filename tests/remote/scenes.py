"""Scenes of the remote's tests: see scenes/model_scenes.py."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path


def compile_on_hosts(environments):
    """What compile_model says on hosts with these environments, which all begin at the same time."""
    import __main__ as zygote

    request = {"scene": "scenes.model_scenes:compile_model", "arguments": {}, "stock": False}
    request |= {"build": {}, "unprivileged": False, "user": None, "umask": None, "audit": False}
    answers = []
    for environment in environments:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            signal.alarm(100)
            with os.fdopen(write_end, "w") as pipe:
                json.dump(zygote.run_scene(request | {"environment": environment}), pipe, default=repr)
            os._exit(0)
        os.close(write_end)
        answers.append(os.fdopen(read_end))
    return [json.loads(answer.read()) for answer in answers]


def ask():
    """Look an entry up in the remote."""
    from safecache.places.refs import Ref
    from safecache.remote import tier
    from safecache.reporting.kinds import Kind

    next(tier.find_candidates(Ref(Kind.FX_ENTRY, "fkey", "/nowhere")), None)


def hand_out_jobs(before, after):
    """Write what a compile worker is sent, before this process has asked the remote and after."""
    import torch._inductor.compile_worker.subproc_pool  # noqa: F401

    from safecache.integrations.compile_workers import WorkerPickler

    Path(before).write_bytes(WorkerPickler().dumps(len))
    ask()
    Path(after).write_bytes(WorkerPickler().dumps(len))


def take_job(job):
    """Be a compile worker that is sent this, and asks the remote."""
    import pickle

    import torch._inductor.compile_worker.subproc_pool  # noqa: F401

    assert pickle.loads(Path(job).read_bytes()) is len
    ask()
