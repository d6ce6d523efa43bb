"""An import of torch's modules ends as it would without us, and patched, whatever happens on the way."""

from __future__ import annotations

import shutil

import pytest

from .conftest import FAKE_TORCH

LATE_ACTIVATION = pytest.mark.parametrize("activated", ["before", "after"])


@pytest.mark.parametrize("error", ["ImportError", "ZeroDivisionError", "KeyboardInterrupt"])
@pytest.mark.parametrize("stage", ["middle", "end"])
def test_import_that_fails_fails_as_in_stock_and_is_patched_when_it_succeeds(fake, stage, error):
    fake(
        f"""
        import safecache, torch
        raised = {error}("not now")
        def fail(namespace):
            raise raised
        torch.events[CODECACHE, {stage!r}] = fail
        try:
            import_all()
        except BaseException as error:
            assert error is raised and error.__cause__ is None and error.__context__ is None
        else:
            raise AssertionError("the error was swallowed")
        assert CODECACHE not in sys.modules and all_are("not yet imported")
        torch.events.clear()
        import_all()
        assert all_are("active"), states()
        """
    )


def test_missing_module_is_missing_as_in_stock(fake):
    fake(
        """
        import torch._inductor
        torch._inductor.__path__.clear()
        def error_of_import():
            try:
                importlib.import_module(CODECACHE)
            except ImportError as error:
                return type(error), str(error), error.name, error.path
        stock = error_of_import()
        import safecache
        assert error_of_import() == stock != None
        assert importlib.util.find_spec(CODECACHE) is None
        """
    )


def test_finding_a_module_without_importing_it_imports_nothing(fake):
    fake(
        """
        import safecache
        assert importlib.util.find_spec(CODECACHE).origin.endswith("codecache.py")
        assert CODECACHE not in sys.modules and "wrapt" not in sys.modules
        """
    )


def test_reloaded_module_is_patched_and_its_own_objects_come_back(fake):
    fake(
        """
        import os
        import safecache
        import_all()
        old = sys.modules[CODECACHE].FxGraphCache
        for name in MODULES:
            importlib.reload(sys.modules[name])
        assert sys.modules[CODECACHE].FxGraphCache is not old
        assert all_are("active"), states()
        safecache.deactivate()
        assert all_are("inactive"), states()
        stock = snapshot()
        assert not any("wrapper" in type(value).__name__.lower() for value in stock.values())
        assert stock[CODECACHE, "pickle"] is __import__("pickle")
        safecache.activate()
        assert len(differences(stock, snapshot())) == len(states())
        safecache.deactivate()
        assert differences(stock, snapshot()) == []
        """
    )


def test_module_imported_anew_is_patched_and_its_own_objects_come_back(fake):
    fake(
        """
        import safecache
        import_all()
        for name in MODULES:
            del sys.modules[name]
        assert all_are("not yet imported"), states()
        import_all()
        assert all_are("active"), states()
        safecache.deactivate()
        stock = snapshot()
        assert not any("wrapper" in type(value).__name__.lower() for value in stock.values())
        """
    )


def test_module_is_still_the_one_python_would_import(fake):
    fake(
        """
        modules = import_all()
        stock = [(m.__file__, m.__spec__.origin, type(m.__loader__), m.__package__) for m in modules]
        for name in MODULES:
            del sys.modules[name]
        import safecache, inspect
        modules = import_all()
        assert [(m.__file__, m.__spec__.origin, type(m.__loader__), m.__package__) for m in modules] == stock
        assert all(m.__spec__.loader is m.__loader__ for m in modules)
        assert "class FxGraphCache" in inspect.getsource(sys.modules[CODECACHE])
        """
    )


@LATE_ACTIVATION
def test_torch_in_a_zip_file_is_patched(fake, tmp_path, activated):
    archive = shutil.make_archive(str(tmp_path / "zipped"), "zip", FAKE_TORCH)
    fake(
        f"""
        sys.path[:0] = [{archive!r}, {archive + "/apart"!r}]
        if {activated!r} == "before":
            import safecache
        assert all(module.__file__.startswith({archive!r}) for module in import_all())
        import safecache
        assert all_are("active"), states()
        safecache.deactivate()
        assert all_are("inactive"), states()
        """
    )


# How a loader can refuse an assignment to exec_module, as one in C or with slots does.
SLOTTED = """
class Loader:
    __slots__ = ("real",)
    def __init__(self, real):
        self.real = real
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        self.real.exec_module(module)
"""
CLASS = """
class Loader:
    reals = {}
    def __new__(cls, real):
        cls.reals[real.name] = real
        return cls
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        Loader.reals[module.__name__].exec_module(module)
"""
USING_LOADER = """
from importlib.machinery import PathFinder
class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name in MODULES:
            spec = PathFinder.find_spec(name, path, target)
            spec.loader = Loader(spec.loader)
            return spec
sys.meta_path.insert(0, Finder)
"""


def test_loader_that_takes_no_other_exec_module_does_not_fail_the_import(fake):
    fake(SLOTTED + USING_LOADER + "import safecache; import_all()", loud=True)


def test_loader_that_is_a_class_shared_by_all_modules_works(fake):
    fake(CLASS + USING_LOADER + "import safecache; import_all(); assert all_are('active'), states()")


def test_namespace_package_in_place_of_a_module_is_left_alone(fake, tmp_path):
    (tmp_path / "codecache").mkdir()
    fake(
        f"""
        import safecache
        import torch._inductor
        torch._inductor.__path__[:] = [{str(tmp_path)!r}]
        module = importlib.import_module(CODECACHE)
        assert list(module.__path__) == [{str(tmp_path / "codecache")!r}]
        assert "active" not in states().values(), states()
        """,
        loud=True,
    )


def test_spec_without_a_loader_is_left_alone(fake):
    fake(
        """
        from importlib.machinery import ModuleSpec
        class Finder:
            @staticmethod
            def find_spec(name, path, target=None):
                if name == CODECACHE:
                    spec = ModuleSpec(name, None, is_package=True)
                    spec.submodule_search_locations = []
                    return spec
        sys.meta_path.insert(0, Finder)
        import safecache
        assert not hasattr(importlib.import_module(CODECACHE), "FxGraphCache")
        assert "active" not in states().values(), states()
        """,
        loud=True,
    )
