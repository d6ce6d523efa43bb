"""The scan finds what runs bytes, under whatever name a module knows it."""

from __future__ import annotations

import textwrap

import pytest

from safecache.patching import sinks


def found(source):
    return {(sink.function, sink.what, sink.times) for sink in sinks.scan_source(textwrap.dedent(source), "a.py")}


@pytest.mark.parametrize(
    ("source", "function", "what"),
    [
        ("import pickle\ndef f(b): return pickle.loads(b)", "f", "pickle.loads"),
        ("import pickle as p\nclass C:\n  def f(self, b): return p.load(b)", "C.f", "pickle.load"),
        ("def f(b):\n  from pickle import loads as again\n  return again(b)", "f", "pickle.loads"),
        ("import pickle\nclass U(pickle.Unpickler): pass", "U", "pickle.Unpickler"),
        ("import pickle, functools\nlater = functools.partial(pickle.loads)", "<module>", "pickle.loads"),
        ("import pickle\n@wraps(pickle.loads)\ndef f(): pass", "<module>", "pickle.loads"),
        ("import pickle\ndef f(loads=pickle.loads): pass", "f", "pickle.loads"),
        ("async def f(s): exec(s)", "f", "exec"),
        ("def f(p): exec(compile(p, '', 'exec'))", "f", "compile"),
        (
            "from importlib import util\ndef f(p): util.spec_from_file_location('m', p)",
            "f",
            "importlib.util.spec_from_file_location",
        ),
        ("def f(spec, m): spec.loader.exec_module(m)", "f", "spec.loader.exec_module"),
        ("import sys\ndef f(p): sys.path.insert(0, p)", "f", "sys.path.insert"),
        ("from ctypes import cdll\ndef f(p): cdll.LoadLibrary(p)", "f", "ctypes.cdll.LoadLibrary"),
        ("import torch\ndef f(p): torch.ops.load_library(p)", "f", "torch.ops.load_library"),
        (
            "import torch\ndef f(p): torch._C._aoti.AOTIModelPackageLoader(p, 'm')",
            "f",
            "torch._C._aoti.AOTIModelPackageLoader",
        ),
        ("def f(self, p): self.C_impl._load_kernel(p)", "f", "self.C_impl._load_kernel"),
        ("import cutlass.cute as cute\ndef f(p): cute.runtime.load_module(p)", "f", "cutlass.cute.runtime.load_module"),
        ("import subprocess\ndef f(c): subprocess.check_call(c)", "f", "subprocess.check_call"),
        ("def f(): return 'cuModuleLoad(&m, path)'", "f", '"cuModuleLoad("'),
        ("def f(x): return f'{x} = pickle.loads(b)'", "f", '"pickle.loads("'),
        ("from ..runtime import cache_dir\ndef f(): return cache_dir()", "f", "..runtime.cache_dir"),
        ("import os\ndef f(): return os.environ['TRITON_CACHE_DIR']", "f", '"TRITON_CACHE_DIR"'),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_sink_is_found(source, function, what):
    assert (function, what, 1) in found(source)


@pytest.mark.parametrize(
    "source",
    [
        "import json\ndef f(t): return json.loads(t)",
        "def f(self): self.loads.writeline('x')",
        "import re\ndef f(p): return re.compile(p)",
        "def compile(source): pass\ndef f(s): compile(s)",
        "from ctypes import CDLL\ndef f(library: CDLL) -> CDLL: pass\nx: CDLL",
        '"""pickle.loads(what) is not called here."""',
        "def f(model): model.eval()",
    ],
)
def test_what_runs_nothing_is_not_found(source):
    assert found(source) == set()


def test_second_use_in_a_function_is_counted():
    assert found("import pickle\ndef f(b): return pickle.loads(pickle.loads(b))") == {("f", "pickle.loads", 2)}
