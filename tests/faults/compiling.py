"""Scenes of processes that compile at once, and of one that is killed."""

from __future__ import annotations

import glob
import json
import logging
import os
import signal
import time
import traceback


def compile_all_at_once(processes):
    """Kernels, a module of Triton's and a model, in so many forks: what each has warned of and counted."""
    begin, to_begin = os.pipe()
    answers = []
    for _ in range(processes):
        answer, to_answer = os.pipe()
        if not os.fork():
            os.close(to_begin)
            os.read(begin, 1)  # until nobody has the other end any more
            os.write(to_answer, json.dumps(_compile_all()).encode())
            os._exit(0)
        os.close(to_answer)
        answers.append(os.fdopen(answer))
    os.close(to_begin)
    said = [json.loads(answer.read()) for answer in answers]
    for answer in answers:
        answer.close()
        os.wait()
    return said


def _compile_all():
    from scenes import kernel_scenes, model_scenes

    import safecache

    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("safecache").addHandler(handler)
    try:
        for _ in range(3):
            kernel_scenes.compile_kernel()
        kernel_scenes.build_module()
        model_scenes.compile_model()
    except BaseException:
        return {"error": traceback.format_exc(), "warnings": warnings, "stats": safecache.stats()}
    return {"error": "", "warnings": warnings, "stats": safecache.stats()}


def be_killed_once_hits_are_told(root):
    from scenes import trial_scenes

    trial_scenes.infer()
    while not any('"aot hit"' in _read(path) for path in glob.glob(f"{root}/.safecache/journal/*")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def _read(path):
    with open(path) as file:
        return file.read()
