"""A server is killed long after its last hit: what it has hit is in its journal by then, and in `safecache stats`."""

from __future__ import annotations

import json
import os
import signal

import pytest
from conftest import python
from scenes import trial_scenes

from faults import compiling

pytestmark = pytest.mark.default_release


def test_hits_of_a_process_that_is_killed_are_told(home):
    assert home.run(trial_scenes.infer).ok
    server = home.run(
        compiling.be_killed_once_hits_are_told, root=str(home.cache), env={"_SAFECACHE_RUN": "the-server"}
    )
    assert server.died is not None and os.WTERMSIG(server.died) == signal.SIGKILL, server
    done = python(
        "from safecache.cli.main import main; raise SystemExit(main())",
        arguments=("stats", "--json"),
        env=home.environment,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["run"], told["layers"]["aot"]["hit"], told["layers"]["aot"]["miss"]) == ("the-server", 1, 0), told
