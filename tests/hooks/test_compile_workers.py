"""A pool of compile workers gets our pickler, by which its side process imports safecache, wherever that can work."""

from __future__ import annotations

import pytest


def test_pool_without_a_pickler_of_its_own_gets_ours(fake):
    fake(
        """
        import safecache
        import_all()
        module = sys.modules["torch._inductor.compile_worker.subproc_pool"]
        class Pool(module.SubprocPool):
            pass
        ways = [
            *(lambda of: of(4), lambda of: of(4, None), lambda of: of(nprocs=4)),
            *(lambda of: of(4, kind=None, quiesce=True), lambda of: of(4, pickler=None)),
        ]
        for way in ways:
            for pool in way(module.SubprocPool), way(Pool):
                assert type(pool.pickler).__qualname__ == "WorkerPickler", pool.pickler
                assert type(pool.pickler).__module__ == "safecache.integrations.compile_workers"
                assert isinstance(pool.pickler, module.SubprocPickler)
        hooked = [way(module.SubprocPool).arguments for way in ways]
        safecache.deactivate()
        stock = [way(module.SubprocPool) for way in ways]
        assert all(type(pool.pickler) is module.SubprocPickler for pool in stock)
        assert [pool.arguments for pool in stock] == hooked
        """
    )


def test_pool_with_a_pickler_of_its_own_keeps_it(fake):
    fake(
        """
        import safecache
        import_all()
        module = sys.modules["torch._inductor.compile_worker.subproc_pool"]
        own = module.SubprocPickler()
        assert module.SubprocPool(4, own).pickler is own
        assert module.SubprocPool(4, pickler=own).pickler is own
        assert module.SubprocPool(nprocs=4, pickler=own, quiesce=False).pickler is own
        """
    )


SIDE_PROCESS_WITHOUT_US = {
    "another path": "os.environ['TORCH_CUSTOM_PYTHONPATH'] = '/nowhere'",
    "not on the path": "sys.path[:] = [e for e in sys.path if not os.path.isdir(os.path.join(e, 'safecache'))]",
}


@pytest.mark.parametrize("why", SIDE_PROCESS_WITHOUT_US)
def test_pool_whose_side_process_cannot_import_us_stays_stock(fake, why):
    """It would die of the import, and torch up to 2.13 then waits for it for ever."""
    fake(
        f"""
        import os
        import safecache
        import_all()
        module = sys.modules["torch._inductor.compile_worker.subproc_pool"]
        assert type(module.SubprocPool(1).pickler) is not module.SubprocPickler
        {SIDE_PROCESS_WITHOUT_US[why]}
        assert type(module.SubprocPool(1).pickler) is module.SubprocPickler
        """
    )
