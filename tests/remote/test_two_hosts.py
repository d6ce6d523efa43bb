"""Two hosts with caches of their own and one remote: what the first has compiled, the second hits."""

from __future__ import annotations

import http.server
import shutil
import threading
from functools import partial

import pytest
from conftest import WARM

from .conftest import make_bucket

pytest.importorskip("zstandard")


def same_keys(home, new_home):
    """Another host: another home, with the keys of the first."""
    other = new_home()
    shutil.copytree(home.keys, other.keys)
    return other


def test_second_host_hits_all_that_the_first_has_compiled(home, new_home, redis_server):
    env = {"SAFECACHE_REMOTE": redis_server.url}
    cold = home.run(env=env)
    assert cold.ok and cold.hits == (0, 0) and not cold.warnings, cold
    assert cold.stats["sent to remote"] >= 3, cold
    other = same_keys(home, new_home)
    warm = other.run(env=env)
    assert warm.ok and warm.hits == WARM and not warm.warnings, warm
    assert "saved" not in warm.stats and "sent to remote" not in warm.stats, warm
    # It has all of it, verified, for the time without the remote.
    alone = other.run()
    assert alone.ok and alone.hits == WARM and not alone.warnings, alone


def test_host_without_the_key_compiles_and_says_why(home, new_home, redis_server):
    env = {"SAFECACHE_REMOTE": redis_server.url}
    assert home.run(env=env).ok
    stranger = new_home()
    answer = stranger.run(env=env)
    assert answer.ok and answer.hits == (0, 0), answer
    assert any("unknown key" in line and "remote cache" in line for line in answer.warnings), answer
    assert not stranger.quarantined
    strict = new_home().run(env=env, strict=True)
    assert "EntryRefusedError" in strict.errors, strict


def test_object_store_that_speaks_s3(home, new_home, s3):
    make_bucket("kernels", s3)
    env = s3 | {"SAFECACHE_REMOTE": "s3://kernels/of/ours"}
    cold = home.run(env=env)
    assert cold.ok and not cold.warnings and cold.stats["sent to remote"] >= 3, cold
    other = same_keys(home, new_home)
    warm = other.run(env=env)
    assert warm.ok and warm.hits == WARM and not warm.warnings, warm


def test_directory_and_web_server(home, new_home, tmp_path):
    pytest.importorskip("obstore")
    cold = home.run(env={"SAFECACHE_REMOTE": f"file://{tmp_path}"})
    assert cold.ok and not cold.warnings and cold.stats["sent to remote"] >= 3, cold
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for url in (f"file://{tmp_path}", f"http://127.0.0.1:{server.server_port}"):
            warm = same_keys(home, new_home).run(env={"SAFECACHE_REMOTE": url})
            assert warm.ok and warm.hits == WARM and not warm.warnings, (url, warm)
    finally:
        server.shutdown()
        server.server_close()


def test_server_that_may_only_read(home, new_home, redis_server):
    env = {"SAFECACHE_REMOTE": redis_server.url}
    answer = home.run(env=env | {"SAFECACHE_REMOTE_READ_ONLY": "1"})
    assert answer.ok and not answer.warnings and "sent to remote" not in answer.stats, answer
    assert not redis_server.client().dbsize()
    client = redis_server.client()
    client.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@read", "+@connection"])
    try:
        refused = new_home().run(env={"SAFECACHE_REMOTE": redis_server.url.replace("//", "//reader:secret@")})
    finally:
        client.acl_deluser("reader")
    assert refused.ok, refused
    assert len(refused.warnings) == 1 and "read_only=1" in refused.warnings[0], refused.warnings
    assert "secret" not in str(refused.warnings)
    assert refused.stats["remote miss"] > 1, "it is read all the same"


def test_password_from_a_file(home, new_redis, tmp_path):
    server = new_redis("--requirepass", "hunter2")
    (tmp_path / "password").write_text("hunter2\n")
    env = {"SAFECACHE_REMOTE": server.url, "SAFECACHE_REMOTE_PASSWORD_FILE": str(tmp_path / "password")}
    answer = home.run(env=env)
    assert answer.ok and not answer.warnings and answer.stats["sent to remote"] >= 3, answer
