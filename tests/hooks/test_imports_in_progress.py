"""Activation in the middle of an import of torch: by another thread, or by the module itself."""

from __future__ import annotations

import pytest

# A thread imports codecache, and stops in its middle until ``released``.
IMPORTING = """
import threading
import torch, torch._inductor

reached, released, outcome = threading.Event(), threading.Event(), []

def hold(namespace):
    reached.set()
    released.wait()

def work():
    try:
        outcome.append(importlib.import_module(CODECACHE))
    except BaseException as error:
        outcome.append(error)

def waits_in_activation(thread):
    # Or has ended.
    inner = frame = sys._current_frames().get(thread)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return inner is None or (frame is not inner and frame.f_code.co_filename.endswith("activation.py"))

def release_once_main_waits(main=threading.get_ident()):
    # Or once it has come back: whether it waits is not what is tested.
    while not returned.is_set() and not waits_in_activation(main):
        time.sleep(0.01)
    released.set()

returned = threading.Event()
torch.events[CODECACHE, "middle"] = hold
importer = threading.Thread(target=work)
importer.start()
reached.wait()
releaser = threading.Thread(target=release_once_main_waits)
"""


@pytest.mark.parametrize("how", ["import safecache", "safecache.activate()"])
def test_import_by_another_thread_is_patched_when_it_is_finished(fake, how):
    setup = "" if how == "import safecache" else "import safecache; safecache.deactivate()"
    fake(
        f"""{setup}
{IMPORTING}
assert not hasattr(sys.modules[CODECACHE], "FxGraphCache")
releaser.start()
{how}
returned.set()
importer.join()
releaser.join()
import_all()
await_all("active")
assert outcome == [sys.modules[CODECACHE]]
"""
    )


def test_import_by_another_thread_may_go_on_to_other_targets(fake):
    fake(
        f"""{IMPORTING}
torch.events[CODECACHE, "end"] = lambda namespace: import_all()
releaser.start()
import safecache
returned.set()
importer.join()
releaser.join()
await_all("active")
assert outcome == [sys.modules[CODECACHE]]
"""
    )


def test_import_by_another_thread_that_fails_fails_there_alone(fake):
    said = fake(
        f"""{IMPORTING}
def fail(namespace):
    hold(namespace)
    raise failure
failure = OSError("broken")
torch.events[CODECACHE, "end"] = fail
releaser.start()
import safecache
returned.set()
importer.join()
releaser.join()
assert outcome == [failure], outcome
torch.events.clear()
import_all()
await_all("active")
""",
        loud=True,
    )
    assert "Traceback" not in said.errors, said.errors


def test_import_that_fails_is_not_repeated_behind_its_back(fake):
    fake(
        """
        import torch, torch._inductor
        tries = []
        def fail(namespace):
            tries.append(1)
            import safecache
            raise OSError("broken")
        torch.events[CODECACHE, "middle"] = fail
        try:
            importlib.import_module(CODECACHE)
        except OSError:
            pass
        # The only sign of the repetition's end is that of its thread.
        import threading
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join()
        assert tries == [1], tries
        """,
        loud=True,
    )


@pytest.mark.parametrize("module", range(5))
def test_module_that_activates_in_its_middle_is_patched_when_it_is_finished(fake, module):
    fake(
        f"""
        import torch
        def activate(namespace):
            import safecache
            safecache.activate()
        torch.events[MODULES[{module}], "end"] = activate
        import_all()
        await_all("active")
        """
    )


def test_half_a_module_is_not_judged(fake):
    """Its FxGraphCache is yet to come: that is no reason to stand down."""
    said = fake(
        """
        import torch
        def activate(namespace):
            assert "FxGraphCache" not in namespace
            import safecache
        torch.events[CODECACHE, "middle"] = activate
        import_all()
        await_all("active")
        import safecache
        print(safecache.stats())
        """
    )
    assert said.lines == ["{}"]


def test_deactivating_before_the_import_is_finished_leaves_it_stock(fake):
    fake(
        """
        import torch
        def activate(namespace):
            import safecache
            safecache.deactivate()
        torch.events[CODECACHE, "middle"] = activate
        import_all()
        import threading
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join()
        assert all_are("inactive"), states()
        """
    )


def test_two_threads_in_imports_of_torch_do_not_stop_a_third_in_its_import_of_safecache(fake):
    fake(
        f"""{IMPORTING}
import faulthandler
faulthandler.dump_traceback_later(5, exit=True)

def activate():
    import safecache

activation = threading.Thread(target=activate)
activation.start()
while not waits_in_activation(activation.ident):
    time.sleep(0.01)
# As it is now, safecache itself is in the middle of its import, and waits for codecache.
other = threading.Thread(target=importlib.import_module, args=("torch.compiler._cache",))
other.start()
other.join(0.5)
released.set()
for thread in importer, activation, other:
    thread.join()
import_all()
await_all("active")
"""
    )


def test_exit_waits_for_the_thread_that_patches(fake):
    # At the end of the interpreter, a daemon thread that is loading an extension module can crash the process.
    fake(
        """
        import atexit, threading
        from importlib.machinery import PathFinder
        import torch._inductor
        entered = threading.Event()
        class Slow:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "wrapt":
                    entered.set()
                    time.sleep(0.3)
        class First:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == CODECACHE:
                    return PathFinder.find_spec(name, path, target)
        @atexit.register
        def no_thread_is_left():
            if [thread.name for thread in threading.enumerate()] != ["MainThread"]:
                os._exit(1)
        import os, safecache
        sys.meta_path[:0] = [First, Slow]
        importlib.import_module(CODECACHE)
        importlib.util.find_spec("json")
        assert entered.wait(5)
        """
    )
