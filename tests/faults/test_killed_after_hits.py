"""A server is killed long after its last hit: what it has hit is in its journal by then, and in `safecache stats`."""

from __future__ import annotations

import json
import time

import pytest
from conftest import python
from helpers.together import INFERENCE, Together

pytestmark = pytest.mark.default_release


def stats(home):
    done = python(
        "from safecache.cli.main import main; raise SystemExit(main())",
        arguments=("stats", "--json"),
        env=home.environment,
    )
    return json.loads(done.stdout) if done.stdout else {"layers": {}}


@pytest.mark.timeout(240)
def test_hits_of_a_process_that_is_killed_are_told(home):
    with Together(home, 1, INFERENCE) as cold:
        cold.begin()
        cold.answers()
    with Together(home, 1, f"{INFERENCE}\ninput()", _SAFECACHE_RUN="the-server") as server:
        server.begin()
        while not any('"aot hit"' in path.read_text() for path in home.cache.glob(".safecache/journal/*")):
            time.sleep(0.05)
    assert server.processes[0].returncode == -9
    told = stats(home)
    assert (told["run"], told["layers"]["aot"]["hit"], told["layers"]["aot"]["miss"]) == ("the-server", 1, 0), told
