"""Remotes that fail in every way: no compile fails, and after the first failure nobody waits again."""

from __future__ import annotations

import http.server
import threading

import pytest
from conftest import WARM
from scenes import model_scenes

from .conftest import each_way
from .liars import HOW, Liar, failing_as
from .test_two_hosts import same_keys

pytest.importorskip("zstandard")


class _Busy(http.server.BaseHTTPRequestHandler):
    """A web server that answers with an error."""

    def do_GET(self):
        self.server.asked += 1
        self.send_error(503)

    def log_message(self, *args):
        pass


@pytest.fixture
def failing(request):
    """A remote that fails as the test's parameter says, with its URL and how often it was asked."""
    if request.param == "busy":
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Busy)
        server.asked, server.url = 0, f"http://127.0.0.1:{server.server_port}"
        server.close = server.server_close
        threading.Thread(target=server.serve_forever, daemon=True).start()
    elif request.param == "nowhere":
        server = Liar("silent")
        server.url = "redis://no-such-host.invalid:6379/0"
    else:
        server = failing_as(request.param)
    yield server
    if request.param == "busy":
        server.shutdown()
    server.close()


# Seconds, so that the run is short; what is waited for is counted in requests.
QUICK = {"SAFECACHE_REMOTE_TIMEOUT": "0.3", "SAFECACHE_REMOTE_FLUSH": "1"}


@each_way([*HOW, "nowhere", "busy"])
def test_compile_goes_on(home, failing, strict):
    answer = home.run(env={"SAFECACHE_REMOTE": failing.url} | QUICK, strict=strict)
    assert answer.ok and answer.hits == (0, 0), answer
    ours = [line for line in answer.warnings if "remote cache" in line]
    assert 1 <= len(ours) <= 2, answer.warnings  # reading and writing fail for themselves
    assert all("safecache doctor" in line for line in ours), ours
    # One request of the compile, one of the sender in the background, and what each takes to connect.
    assert failing.asked <= 4, failing.asked


@pytest.mark.parametrize("failing", ["silent"], indirect=True)
def test_warm_start_needs_no_remote(warm, failing):
    answer = warm.run(env={"SAFECACHE_REMOTE": failing.url} | QUICK)
    assert answer.ok and answer.hits == WARM, answer
    assert not failing.asked and not answer.warnings, answer


def test_missing_library_is_named_with_the_line_that_installs_it(home):
    answer = home.run(
        model_scenes.compile_without, modules=["redis"], env={"SAFECACHE_REMOTE": "redis://127.0.0.1:1/0"}
    )
    assert answer.ok, answer
    assert len(answer.warnings) == 1 and "pip install 'safecache[redis]'" in answer.warnings[0], answer.warnings


def test_full_and_read_only_servers_are_read(home, new_home, new_redis):
    server = new_redis()
    env = {"SAFECACHE_REMOTE": server.url}
    assert home.run(env=env).ok
    server.client().config_set("maxmemory", "1mb")
    full = same_keys(home, new_home).run(env=env)
    assert full.ok and full.hits == WARM and not full.warnings, full
    server.client().config_set("maxmemory", "0")
    replica = new_redis("--replicaof", f"127.0.0.1 {server.port}")
    while not replica.client().dbsize():
        pass
    read = same_keys(home, new_home).run(env={"SAFECACHE_REMOTE": replica.url})
    assert read.ok and read.hits == WARM and not read.warnings, read
    cold = new_home().run(env={"SAFECACHE_REMOTE": replica.url, "SAFECACHE_NAMESPACE": "another"})
    assert cold.ok and len(cold.warnings) == 1 and "cannot be written" in cold.warnings[0], cold
