"""The remote does what every tier has to do, with each of its engines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping

import pytest
from helpers.stored import away, instead

from safecache.remote import client, parcels, sender, stores, tier
from safecache.remote.stores import Terms
from safecache.settings import config
from safecache.testing import failing
from safecache.testing.tiers import Held, TierTests
from safecache.upkeep import copies
from safecache.upkeep.copies import Remote

from .conftest import make_bucket
from .liars import HOW, failing_as


class Stored(MutableMapping):
    """What a store has under our names."""

    def __init__(self, url):
        self.store = stores.make_store(url, Terms(20, 20, 1 << 30))

    def __getitem__(self, name):
        return self.store.read_unverified([name])[name]

    def __setitem__(self, name, content):
        self.store.write(name, content) if content else self.store.remove(name)

    def __delitem__(self, name):
        self.store.remove(name)

    def __iter__(self):
        return iter(sorted(each.name for each in self.store.list_names(stores.make_prefix())))

    def __len__(self):
        return sum(1 for _ in self)


class RemoteTests(TierTests):
    """``url``: a fixture. ``ways``: of failing."""

    @pytest.fixture
    def held(self, url, ways, monkeypatch):
        pytest.importorskip("zstandard")
        monkeypatch.setenv("SAFECACHE_REMOTE", url)
        config.reload()

        def fill(refs):
            for ref in refs:
                tier.keep(ref)
            assert sender.flush(60) == 0

        def source():
            return Remote(client.get_background())

        def forget(ref):
            """As the command gc does."""
            remote, name = client.get_background(), parcels.name_object(ref.kind, ref.key)
            going = [each for each in copies.list_remote(remote) if each.stored.name.endswith(name)]
            return bool(going) and not copies.remove_held(remote, going)

        return Held(tier, Stored(url), fill=fill, failures=ways, source=source, forget=forget)


class TestRedis(RemoteTests):
    @pytest.fixture
    def url(self, redis_server):
        return redis_server.url

    @pytest.fixture
    def ways(self, monkeypatch):
        @contextlib.contextmanager
        def failing(how):
            server = failing_as(how)
            with monkeypatch.context() as patch:
                patch.setenv("SAFECACHE_REMOTE", server.url)
                patch.setenv("SAFECACHE_REMOTE_TIMEOUT", "0.3")
                config.reload()
                yield
            server.close()
            config.reload()

        return {how: lambda how=how: failing(how) for how in HOW}


class TestFiles(RemoteTests):
    @pytest.fixture
    def url(self, tmp_path):
        (tmp_path / "remote").mkdir()
        return f"file://{tmp_path}/remote"

    @pytest.fixture
    def ways(self, tmp_path):
        remote = tmp_path / "remote"
        found = {"away": lambda: away(remote), "fifo": lambda: instead(remote, os.mkfifo)}
        found["file"] = lambda: instead(remote, lambda path: path.write_bytes(b""))
        found["full"] = lambda: failing("write", "ENOSPC", remote)
        found["read-only"] = lambda: failing("rename", "EROFS", remote)
        found["unreadable"] = lambda: failing("pread", "EIO", remote)
        return found


class TestObjectStore(RemoteTests):
    @pytest.fixture
    def url(self, s3, monkeypatch, tmp_path):
        for name, value in s3.items():
            monkeypatch.setenv(name, value)
        bucket = f"b{abs(hash(str(tmp_path)))}"
        make_bucket(bucket, s3)
        return f"s3://{bucket}/x"

    @pytest.fixture
    def ways(self, monkeypatch):
        @contextlib.contextmanager
        def refused():
            with monkeypatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
                yield

        return {"refused": refused}
