"""A process with torch imported that forks one child for each scene: a fresh state for the price of a fork.

Reads one JSON request a line, {"scene", "arguments", "environment"} and what conftest.HOW names, and answers with one JSON
line.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import pkgutil
import signal
import struct
import sys
import tempfile
import traceback

# One thread: the children of a process that has run OpenMP threads hang in their first parallel region.
os.environ.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", TORCH_WARM_POOL="0")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

if sys.argv[1:] != ["alone"]:
    import safecache
    from harness import planted
    from safecache.reporting import events
    from safecache.settings import config
    from safecache.signing import keyring, provenance
import torch
import torch._inductor.compile_fx
import torch._inductor.standalone_compile
from scenes import model_scenes

from harness.capabilities import drop_file_capabilities

# Without safecache: as for whoever has no more than patched sources.
ALONE = sys.argv[1:] == ["alone"]


class Collector(logging.Handler):
    """Keeps what is warned: by safecache, and by torch's cache modules."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.ours, self.torchs = [], []

    def emit(self, record):
        (self.ours if record.name == "safecache" else self.torchs).append(record.getMessage())


def become(user, group):
    """Be another user, bound by modes in all but reading: or he could not import what root has installed for himself."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgroups([group])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    read_search = 2
    header = struct.pack("=Ii", 0x20080522, 0)
    if libc.capset(header, struct.pack("=6I", *[1 << read_search] * 3, 0, 0, 0)) == 0:
        libc.prctl(47, 2, read_search, 0, 0)  # PR_CAP_AMBIENT_RAISE: for the compilers that he starts


def set_up(request):
    keyring.renew()
    events._state.reset()
    config.reload()
    if request["stock"]:
        safecache.deactivate()
    elif config.current().disable:
        safecache.deactivate()
        safecache.activate()
    here = provenance.describe()
    provenance.describe = lambda: here | request["build"]


def run_scene(request):
    os.environ.update(request["environment"])
    if not ALONE:
        set_up(request)
    if request["unprivileged"]:
        drop_file_capabilities()
    if request["umask"] is not None:
        os.umask(request["umask"])
    if request["user"] is not None:
        become(*request["user"])
    tempfile.tempdir = None
    collector = Collector()
    for name in ("safecache", "torch._inductor.codecache", "torch._functorch._aot_autograd.autograd_cache"):
        logging.getLogger(name).addHandler(collector)
    answer = {"result": None, "error": None, "error_chain": []}
    # Its module is imported before, whose source may say what is planted.
    scene = pkgutil.resolve_name(request["scene"])
    noticed = planted.watch() if request["audit"] else []
    try:
        answer["result"] = scene(**request["arguments"])
    except BaseException as error:
        answer["error"] = type(error).__name__
        answer["traceback"] = traceback.format_exc()
        seen = error
        while seen is not None and len(answer["error_chain"]) < 10:
            answer["error_chain"].append([type(seen).__name__, str(seen)])
            seen = getattr(seen, "inner_exception", None) or seen.__cause__ or seen.__context__
    # A fork ends without what atexit does.
    sender = sys.modules.get("safecache.remote.sender")
    if sender is not None:
        answer["unsent"] = sender.flush()
    markers = sys.modules.get("safecache.crash_guard.markers")
    if markers is not None:
        markers._own.reset()
    answer |= {
        "seen": list(noticed),
        "warnings": collector.ours,
        "torch_warnings": collector.torchs,
        "stats": {} if ALONE else events.read_counters(),
    }
    assert not ALONE or "safecache" not in sys.modules
    return answer


def child(request, write_end):
    faulthandler.dump_traceback_later(request["timeout"], exit=True)
    signal.alarm(int(request["timeout"]) + 5)
    answer = run_scene(request)
    with os.fdopen(write_end, "w") as pipe:
        json.dump(answer, pipe, default=repr)
    sys.stderr.flush()
    os._exit(0)


def serve(requests, replies):
    model_scenes.warm_up()
    print(json.dumps({"ready": torch.__version__}), file=replies, flush=True)
    for line in requests:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            child(json.loads(line), write_end)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            answer = pipe.read()
        _, state = os.waitpid(pid, 0)
        print(answer or json.dumps({"died": state}), file=replies, flush=True)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever torch or a compiler prints must not end up among the replies
    serve(sys.stdin, replies)
