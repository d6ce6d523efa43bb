"""What goes wrong inside a worker: an object that does not pickle, a kill in the middle, a disk without room."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys

from scenes import model_scenes

_stack = contextlib.ExitStack()
_kill_at = ""
# Of those that a cold start of the decoder publishes: late enough for entries to be there, and before the last of them.
_PUBLISHED = 4


def begin(name: str, root: str) -> None:
    """From now on, in this process."""
    {"unpicklable": _refer_to_launchers, "launcher": _keep_launchers, "no room": _refuse_writes}.get(
        name, _kill_in_the_middle
    )(name, root)


def reached(point: str, temporary: str) -> None:
    """The worker is about to publish its model file."""
    if _kill_at == point:
        os.truncate(temporary, os.path.getsize(temporary) // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def _refer_to_launchers(name: str, root: str) -> None:
    """A function that was made by exec in each entry, and nothing to make it anew from."""
    _stack.enter_context(model_scenes.injected("launcher", "aot"))


def _keep_launchers(name: str, root: str) -> None:
    """As torch's release candidate left them: a launcher, as a key, is behind in what is saved."""
    from unittest import mock

    import launcher_cases
    from torch._inductor import output_code

    autotuner, graph = launcher_cases.CachingAutotuner, output_code.CompiledFxGraph
    for patch in (
        mock.patch.object(autotuner, "prepare_for_pickle", launcher_cases.prepare_as_in_the_release_candidate),
        mock.patch.object(graph, "prepare_for_serialization", launcher_cases.prepare_graph),
    ):
        _stack.enter_context(patch)


def _refuse_writes(name: str, root: str) -> None:
    """As on a full disk, where none can be mounted."""
    model_scenes.refuse_writes(root, errno.ENOSPC)


def _kill_in_the_middle(name: str, root: str) -> None:
    """SIGKILL: "compile", where some entries are published and another is being written; "save", likewise its model."""
    global _kill_at
    _kill_at, published = name.removeprefix("killed in "), 0

    def kill(event, arguments):
        nonlocal published
        if _kill_at == "compile" and event == "os.rename" and model_scenes.made(event, arguments).startswith(root):
            published += 1
            if published == _PUBLISHED:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
