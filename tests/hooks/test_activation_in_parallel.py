"""Threads, forks and spawned processes: activation is safe in the first, and arrives in the others."""

from __future__ import annotations

import textwrap

import pytest
from conftest import python

from .conftest import FAKE_TORCH

# From 3.12 on, Python warns of a fork while there are other threads. Of a filter only the start of the text counts.
FORK_WITH_THREADS = {"PYTHONWARNINGS": "error,ignore:This process (pid=:DeprecationWarning"}


def test_import_in_another_thread_finds_its_module_while_this_one_deactivates(fake):
    fake(
        """
        import threading
        from importlib.machinery import PathFinder
        import safecache
        class Finder:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "colorsys":
                    thread = threading.Thread(target=safecache.deactivate)
                    thread.start()
                    thread.join()
        # The import system goes on with the entry after this one.
        sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder)
        assert "colorsys" not in sys.modules
        import colorsys
        assert not safecache.is_active()
        """
    )


def test_threads_that_activate_deactivate_and_import_end_consistent(fake):
    fake(
        """
        import random, threading
        sys.setswitchinterval(1e-5)
        import safecache
        start, failed = threading.Barrier(20), []
        def work(number):
            dice = random.Random(number)
            start.wait()
            try:
                for _ in range(30):
                    action = dice.choice(["activate", "deactivate", "import", "status"])
                    if action == "import":
                        importlib.import_module(dice.choice(MODULES))
                    else:
                        getattr(safecache, action)()
            except BaseException as error:
                failed.append(repr(error))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not failed, failed
        import_all()
        safecache.deactivate()
        before = snapshot()
        assert all_are("inactive"), states()
        assert not any("FunctionWrapper" in type(value).__name__ for value in before.values())
        safecache.activate()
        assert all_are("active"), states()
        assert sum(type(finder).__module__ == "safecache.patching.activation" for finder in sys.meta_path) == 1
        safecache.deactivate()
        assert differences(before, snapshot()) == []
        """
    )


def test_threads_that_activate_wrap_once(fake):
    fake(
        """
        import threading
        sys.setswitchinterval(1e-5)
        import_all()
        before = snapshot()
        start = threading.Barrier(20)
        def work():
            start.wait()
            import safecache
            safecache.activate()
        threads = [threading.Thread(target=work) for _ in range(20)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import safecache
        assert all_are("active"), states()
        safecache.deactivate()
        assert differences(before, snapshot()) == []
        """
    )


@pytest.mark.parametrize("imported", ["before", "after"])
def test_forked_child_is_active_and_can_deactivate(fake, imported):
    fake(
        f"""
        import os
        import safecache
        imported = {imported!r}
        if imported == "before":
            import_all()
        child = os.fork()
        if not child:
            code = 1
            try:
                if imported == "after":
                    import_all()
                good = safecache.is_active() and all_are("active")
                safecache.deactivate()
                code = 0 if good and all_are("inactive") and not safecache.is_active() else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        import_all()
        assert all_are("active"), states()
        """
    )


def test_fork_while_another_thread_holds_the_lock_does_not_hang_the_child(fake):
    fake(
        """
        import os, signal, threading
        import safecache
        from safecache.patching import activation
        held, done = threading.Event(), threading.Event()
        def hold():
            with activation._hooks.lock:
                held.set()
                done.wait()
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            code = 1
            try:
                import_all()
                safecache.activate()
                code = 0 if all_are("active") else 2
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        done.set()
        holder.join()
        assert os.waitstatus_to_exitcode(status) == 0, status
        import_all()
        assert all_are("active"), states()
        """,
        **FORK_WITH_THREADS,
    )


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_child_of_multiprocessing_is_active(tmp_path, fake_environment, method):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import sys

            import safecache

            def work(queue):
                import probe
                probe.import_all()
                queue.put((safecache.is_active(), sorted(set(probe.states().values()))))

            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[1])
                queue = context.SimpleQueue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                print(queue.get())
                child.join()
                print(child.exitcode)
            """
        )
    )
    # Run as a script, so that a spawned child can import the main module from its file.
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {str(program)!r}, {method!r}]))"
    done = python(code, path=FAKE_TORCH, env=fake_environment)
    assert done.stdout.splitlines() == ["(True, ['active'])", "0"], done.stderr


def test_spawned_child_of_a_main_module_without_safecache_is_stock(fake):
    """Nothing is left in the environment that would activate a child by itself."""
    fake(
        """
        import subprocess
        import safecache
        assert not {name for name in __import__("os").environ if "SAFECACHE" in name} - {"_SAFECACHE_RUN"}
        ask = "import sys, torch._inductor.codecache; sys.exit('safecache' in sys.modules)"
        assert subprocess.call([sys.executable, "-c", ask]) == 0
        """
    )
