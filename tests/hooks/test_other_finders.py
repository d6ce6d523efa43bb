"""Others patch the same modules as they are imported: their patch and ours are both put on, in either order."""

from __future__ import annotations

import pytest

# How vLLM and others do it: each leaves its mark on the module, before or after its execution is extended by us.
MARK = """
import importlib.util
from importlib.machinery import PathFinder

marks = []

def extend(spec):
    execute = spec.loader.exec_module
    def exec_module(module):
        execute(module)
        assert hasattr(module, "FxGraphCache")
        marks.append(module.__name__)
        module.mark = "theirs"
    spec.loader.exec_module = exec_module
    return spec
"""
FINDERS = {
    "asks everybody, with a guard": """
class Finder:
    def __init__(self):
        self.busy = False
    def find_spec(self, name, path, target=None):
        if name != CODECACHE or self.busy:
            return None
        self.busy = True
        try:
            return extend(importlib.util.find_spec(name))
        finally:
            self.busy = False
""",
    "asks everybody, out of the way meanwhile": """
class Finder:
    def find_spec(self, name, path, target=None):
        if name != CODECACHE:
            return None
        position = sys.meta_path.index(self)
        sys.meta_path.remove(self)
        try:
            return extend(importlib.util.find_spec(name))
        finally:
            sys.meta_path.insert(position, self)
""",
    "asks everybody, and returns to the front": """
class Finder:
    def find_spec(self, name, path, target=None):
        if name != CODECACHE:
            return None
        sys.meta_path.remove(self)
        try:
            return extend(importlib.util.find_spec(name))
        finally:
            sys.meta_path.insert(0, self)
""",
    "asks everybody, once": """
class Finder:
    def find_spec(self, name, path, target=None):
        if name != CODECACHE:
            return None
        sys.meta_path.remove(self)
        return extend(importlib.util.find_spec(name))
""",
    "asks Python's": """
class Finder:
    def find_spec(self, name, path, target=None):
        return extend(PathFinder.find_spec(name, path, target)) if name == CODECACHE else None
""",
    "asks the others": """
class Finder:
    def find_spec(self, name, path, target=None):
        if name != CODECACHE:
            return None
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return extend(spec)
""",
}
ORDERS = {
    "theirs first": "import safecache; sys.meta_path.insert(0, Finder())",
    "ours first": "sys.meta_path.insert(0, Finder()); import safecache",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("finder", FINDERS)
def test_both_patches_are_put_on_once_and_theirs_alone_once_deactivated(fake, finder, order):
    fake(
        f"""{MARK}
{FINDERS[finder]}
for state in "active", "inactive":
    if state == "active":
        {ORDERS[order]}
    else:
        for name in MODULES:
            del sys.modules[name]
        sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, Finder)]
        safecache.deactivate()
        marks.clear()
        {ORDERS[order].replace("import safecache", "safecache.activate()")}; assert safecache.is_active()
        safecache.deactivate()
    import_all()
    assert all_are(state), states()
    assert marks == [CODECACHE] and sys.modules[CODECACHE].mark == "theirs", marks
"""
    )


@pytest.mark.parametrize("order", ORDERS)
def test_post_import_hook_of_wrapt_on_the_same_module_runs(fake, order):
    theirs = "wrapt.register_post_import_hook(lambda module: marks.append(module), CODECACHE)"
    ours = "import safecache"
    lines = [theirs, ours] if order == "theirs first" else [ours, theirs]
    fake(
        f"""
        import wrapt
        marks = []
        {lines[0]}
        {lines[1]}
        import_all()
        assert all_are("active"), states()
        assert marks == [sys.modules[CODECACHE]]
        """
    )


def test_finder_that_forbids_a_module_is_heeded(fake):
    fake(
        """
        import safecache
        class Finder:
            @staticmethod
            def find_spec(name, path, target=None):
                if name == CODECACHE:
                    raise ModuleNotFoundError("forbidden", name=name)
        sys.meta_path.insert(1, Finder)
        try:
            importlib.import_module(CODECACHE)
        except ModuleNotFoundError as error:
            assert error.msg == "forbidden"
        else:
            raise AssertionError("found after all")
        """
    )


def test_finder_that_imports_other_targets_while_it_searches_works(fake):
    fake(
        """
        class Finder:
            @staticmethod
            def find_spec(name, path, target=None):
                if name == CODECACHE:
                    for other in MODULES[2:]:
                        importlib.import_module(other)
        sys.meta_path.insert(0, Finder)
        import safecache
        import_all()
        assert all_are("active"), states()
        """
    )
