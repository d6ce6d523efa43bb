"""A pool of compile workers gets our pickler, by which its side process imports safecache, wherever that can work."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("arguments", ["4", "4, None", "nprocs=4", "4, kind=None, quiesce=True", "4, pickler=None"])
def test_pool_without_a_pickler_of_its_own_gets_ours(fake, arguments):
    fake(
        f"""
        import safecache
        import_all()
        module = sys.modules["torch._inductor.compile_worker.subproc_pool"]
        class Pool(module.SubprocPool):
            pass
        for pool in module.SubprocPool({arguments}), Pool({arguments}):
            assert type(pool.pickler).__qualname__ == "WorkerPickler", pool.pickler
            assert type(pool.pickler).__module__ == "safecache.integrations.compile_workers"
            assert isinstance(pool.pickler, module.SubprocPickler)
        hooked = module.SubprocPool({arguments}).arguments
        safecache.deactivate()
        stock = module.SubprocPool({arguments})
        assert type(stock.pickler) is module.SubprocPickler and stock.arguments == hooked
        """
    )


@pytest.mark.parametrize("arguments", ["4, own", "4, pickler=own", "nprocs=4, pickler=own, quiesce=False"])
def test_pool_with_a_pickler_of_its_own_keeps_it(fake, arguments):
    fake(
        f"""
        import safecache
        import_all()
        module = sys.modules["torch._inductor.compile_worker.subproc_pool"]
        own = module.SubprocPickler()
        assert module.SubprocPool({arguments}).pickler is own
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
