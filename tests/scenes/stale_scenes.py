"""Small programs of several files, whose graphs are made with code and values that no cache key has.

Each consists of ``ops.py``, which stays as it is, of ``parts.py``, in which {n} is 1, and 2 once it is edited, and of
``data.json``, which holds that number, too.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

# An op whose result is as large as size() says, to its fake implementation as well.
SHAPED = """
{size}

import torch

@torch.library.custom_op("{name}::shaped", mutates_args=())
def shaped(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(4 * size())

@shaped.register_fake
def _(x):
    return x.new_empty(4 * size())

def multiply(x):
    return x * size()

def run(compiler):
    with torch.no_grad():
        return compiler(lambda x: shaped(x) * 2)(torch.ones(4)).sum().item()
"""
# How size() comes by its number.
SIZES = {
    "class_attribute": ("from .parts import Config\ndef size():\n    return Config.N", "class Config:\n    N = {n}"),
    "instance_attribute": (
        "from .parts import config\ndef size():\n    return config.n",
        "class Config:\n    def __init__(self):\n        self.n = {n}\n\nconfig = Config()",
    ),
    "bound_method": (
        "from .parts import size",
        "class Config:\n    def size(self):\n        return {n}\n\nsize = Config().size",
    ),
    "inherited_method": (
        "from .parts import Config\ndef size():\n    return Config().size()",
        "class Base:\n    def size(self):\n        return {n}\n\nclass Config(Base):\n    pass",
    ),
    "enum": (
        "from .parts import Size\ndef size():\n    return Size.N.value",
        "import enum\nclass Size(enum.Enum):\n    N = {n}",
    ),
    "dict": ("from .parts import table\ndef size():\n    return table['n']", "table = dict(n={n})"),
    "registry": (
        "from . import registry\nfrom .registry import FUNCTIONS\ndef size():\n    return FUNCTIONS['n']()",
        "from .registry import FUNCTIONS\nFUNCTIONS['n'] = lambda: {n}",
    ),
    "submodule": ("import {name}.parts\ndef size():\n    return {name}.parts.N", "N = {n}"),
    "local_import": ("def size():\n    from {name} import parts\n    return parts.N", "N = {n}"),
    "computed_name": ("from . import parts\ndef size():\n    return getattr(parts, 'n'.upper())", "N = {n}"),
    "partial": (
        "from .parts import size",
        "import functools\ndef given(*, n):\n    return n\n\nsize = functools.partial(given, n={n})",
    ),
    "lru_cache": ("from .parts import size", "import functools\n@functools.lru_cache\ndef size():\n    return {n}"),
    "callable_object": (
        "from .parts import size",
        "class Size:\n    def __call__(self):\n        return {n}\n\nsize = Size()",
    ),
    "nn_module": (
        "from .parts import size",
        "import torch\nclass Size(torch.nn.Module):\n    def forward(self):\n        return {n}\n\nsize = Size()",
    ),
    "inner_module": (
        "from .parts import outer\ndef size():\n    return outer.inner()",
        "import torch\nclass Size(torch.nn.Module):\n    def forward(self):\n        return {n}\n\n"
        "outer = torch.nn.Module()\nouter.inner = Size()",
    ),
    "method_of_a_global": (
        "from .parts import maker\ndef size():\n    return maker.size()",
        "N = {n}\nclass Maker:\n    def size(self):\n        return N\n\nmaker = Maker()",
    ),
    "property": (
        "from .parts import maker\ndef size():\n    return maker.size",
        "class Maker:\n    @property\n    def size(self):\n        return {n}\n\nmaker = Maker()",
    ),
    "slots": (
        "from .parts import config\ndef size():\n    return config.n",
        "class Config:\n    __slots__ = ('n',)\n\nconfig = Config()\nconfig.n = {n}",
    ),
    "closure_of_a_list": (
        "from .parts import size",
        "def made():\n    kept = [{n}]\n    return lambda: kept[0]\n\nsize = made()",
    ),
    "environment": ("import os\ndef size():\n    return int(os.environ.get('SHOP_N', '1'))", ""),
    "environment_at_import": (
        "from .parts import N\ndef size():\n    return N",
        "import os\nN = int(os.getenv('SHOP_N', '1'))",
    ),
    "far_helper": (
        "from .parts import f299 as size",
        "def f0():\n    return {n}\n" + "".join(f"def f{i}():\n    return f{i - 1}()\n" for i in range(1, 300)),
    ),
}
# What they have read, while they are imported, from a file of data: no source is edited.
READ = "import json, os\ndata = json.load(open(os.path.join(os.path.dirname(__file__), 'data.json')))\n"
SIZES |= {
    "namespace": (
        "from .parts import config\ndef size():\n    return config.n",
        f"{READ}import types\nconfig = types.SimpleNamespace(**data)",
    ),
    "arguments": (
        "from .parts import config\ndef size():\n    return config.n",
        f"{READ}import argparse\nconfig = argparse.Namespace(**data)",
    ),
    "user_dict": (
        "from .parts import config\ndef size():\n    return config['n']",
        f"{READ}import collections\nconfig = collections.UserDict(data)",
    ),
    "chain_of_maps": (
        "from .parts import config\ndef size():\n    return config['n']",
        f"{READ}import collections\nconfig = collections.ChainMap({{}}, data)",
    ),
    "context_variable": (
        "from .parts import config\ndef size():\n    return config.get()",
        f"{READ}import contextvars\nconfig = contextvars.ContextVar('config', default=data['n'])",
    ),
    "metaclass": (
        "from .parts import Config\ndef size():\n    return Config.N",
        f"{READ}class Meta(type):\n    N = data['n']\n\nclass Config(metaclass=Meta):\n    pass",
    ),
    "module_attribute": (
        "from .parts import module\ndef size():\n    return module.n",
        f"{READ}import torch\nmodule = torch.nn.Linear(1, 1)\nmodule.n = data['n']",
    ),
    "number": (
        "from .parts import N\ndef size():\n    return int(N)",
        f"{READ}import fractions\nN = fractions.Fraction(data['n'])",
    ),
    "range": ("from .parts import N\ndef size():\n    return len(N)", f"{READ}N = range(data['n'])"),
    "bytes": ("from .parts import N\ndef size():\n    return N[0]", f"{READ}N = bytearray([data['n']])"),
    "environment_in_lower_case": ("import os\ndef size():\n    return int(os.environ.get('shop_level', '1'))", ""),
    "environment_by_prefix": (
        "import os\ndef size(which='N'):\n    return int(os.environ.get(f'SHOP_{which}', '1'))",
        "",
    ),
}
GRADIENT = """
import torch
from .parts import Config

@torch.library.custom_op("{name}::graded", mutates_args=())
def graded(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

graded.register_fake(torch.empty_like)
graded.register_autograd(lambda ctx, grad: grad * Config.N)

def run(compiler):
    x = torch.ones(4, requires_grad=True)
    compiler(lambda x: graded(x).sin())(x).sum().backward()
    return round(x.grad.sum().item(), 3)
"""
SUBCLASS = """
import torch
from .parts import Scaled

def run(compiler):
    with torch.no_grad():
        return compiler(lambda x: x + 1)(Scaled(torch.ones(4))).sum().item()
"""
SCALED = """
import torch

class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Scaled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(each.inner if isinstance(each, Scaled) else each for each in args), **(kwargs or {{}})) * {n}
"""
# By a table of functions, which others add to.
SCALED_BY_TABLE = SCALED.replace("func(*(each", "cls.TABLE[func](*(each").replace("* {n}", "")
SCALED_BY_TABLE = SCALED_BY_TABLE.replace("    @staticmethod", "    TABLE = {{}}\n\n    @staticmethod", 1)
REGISTERED = """
import torch
from .registry import Scaled

Scaled.TABLE[torch.ops.aten.add.Tensor] = lambda x, y: (x + y) * {n}
"""
# What torch's own ops are compiled as: eager mode has none of it.
OF_TORCH = """
import torch
from . import parts

def run(compiler):
    if compiler is not torch.compile:
        return 8.0 * parts.N
    parts.replace()
    with torch.no_grad():
        return compiler(lambda x: torch.ops.aten.{op}(x))(torch.ones(4)).sum().item()
"""
DECOMPOSED = """
import torch
from torch._inductor import decomposition

N = {n}

def replace():
    decomposition.decompositions[torch.ops.aten.hardswish.default] = lambda x: x * (2 * N)
    decomposition.fast_random_decomps.cache_clear()  # as if nothing had been compiled before
"""
LOWERED = """
import torch
from torch._inductor import lowering

N = {n}

def replace():
    mul = lowering.lowerings[torch.ops.aten.mul.Tensor]
    lowering.lowerings[torch.ops.aten.sin.default] = lambda x: mul(x, 2 * N)
"""
DISPATCHED = """
import torch

N = {n}
library = torch.library.Library("aten", "IMPL")

def replace():
    library.impl("hardsigmoid", lambda x: x * (3 * N) - x * N, "AutogradCPU")
"""
AUTOCAST = """
import torch
from .parts import kind

@torch.library.custom_op("{name}::rounded", mutates_args=())
def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

rounded.register_fake(torch.empty_like)
rounded.register_autocast("cpu", kind)

def run(compiler):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return compiler(lambda x: rounded(x).float() * 3)(torch.full((4,), 1 / 3)).sum().item()
"""
PATTERN = """
import torch
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern

N = {n}

def replace():
    @register_graph_pattern(CallFunction(torch.ops.aten.cosh.default, Arg()), pass_dict=post_grad.pass_patterns[1])
    def _(match, x):
        with match.graph.inserting_before(match.output_node()):
            new = match.graph.call_function(torch.ops.aten.mul.Tensor, (x, 2 * N))
            new.meta.update(match.output_node().meta)
        match.output_node().replace_all_uses_with(new)
        match.erase_nodes()
"""
PROGRAMS = {
    **{name: (SHAPED.replace("{size}", ops), parts) for name, (ops, parts) in SIZES.items()},
    "gradient": (GRADIENT, "class Config:\n    N = {n}"),
    "subclass": (SUBCLASS, SCALED),
    "subclass_with_a_table": (
        SUBCLASS.replace(".parts", ".registry").replace("import torch", "import torch\nfrom . import parts", 1),
        REGISTERED,
    ),
    "decomposition": (OF_TORCH.replace("{op}", "hardswish"), DECOMPOSED),
    "lowering": (OF_TORCH.replace("{op}", "sin"), LOWERED),
    "dispatched": (OF_TORCH.replace("{op}", "hardsigmoid"), DISPATCHED),
    "pattern": (OF_TORCH.replace("{op}", "cosh"), PATTERN),
    "autocast": (AUTOCAST, "import torch\nkind = (torch.bfloat16, torch.float16)[{n} - 1]"),
}
SUPPORT = {"registry": "FUNCTIONS = {}\n", "subclass_with_a_table": SCALED_BY_TABLE}


def write(place: Path, edition: int, above: dict[str, str] | None = None) -> None:
    """All programs, as packages below ``place``; ``above``: what stands in a module over the rest, such as a comment."""
    for name, (ops, parts) in PROGRAMS.items():
        package = place / f"shop_{name}"
        package.mkdir(parents=True, exist_ok=True)
        # Python takes an edit of the same length in the same second for none.
        shutil.rmtree(package / "__pycache__", ignore_errors=True)
        init = "from . import parts\n" if name == "registry" else ""
        texts = {"__init__": init, "ops": ops, "parts": parts, "unrelated": ""}
        if name in SUPPORT:
            texts["registry"] = SUPPORT[name]
        for module, text in texts.items():
            filled = (above or {}).get(module, "") + text.replace("{name}", package.name).replace(
                "{n}", str(edition + 1)
            ).replace("{{}}", "{}")
            (package / f"{module}.py").write_text(filled + "\n")
        (package / "data.json").write_text(json.dumps({"n": edition + 1}))


def run_all(place):
    """What each gives, compiled and in eager mode, and what torch has hit for it; of one that fails, its error."""
    import torch
    from torch._dynamo.utils import counters

    sys.path.insert(0, place)
    os.environ.setdefault("SHOP_N", "1")
    found = {}
    for name in PROGRAMS:
        torch._dynamo.reset()
        counters.clear()
        try:
            importlib.import_module(f"shop_{name}.unrelated")
            module = importlib.import_module(f"shop_{name}.ops")
            compiled = module.run(torch.compile)
            hits = counters["aot_autograd"]["autograd_cache_hit"]
            found[name] = {"compiled": compiled, "eager": module.run(lambda function: function), "hits": hits}
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return found


def save_ahead(place, path, name="class_attribute"):
    """A function that multiplies by size(), compiled ahead of time with its guards dropped."""
    import torch

    from scenes.model_scenes import offering_aot_compile

    sys.path.insert(0, place)
    module = importlib.import_module(f"shop_{name}.ops")
    options = {"guard_filter_fn": lambda guards: [False for _ in guards]}
    with offering_aot_compile(), torch.no_grad():
        compiled = torch.compile(module.multiply, fullgraph=True, options=options)
        compiled.aot_compile(((torch.ones(4),), {})).save_compiled_function(path)


def load_ahead(place, path, name="class_attribute"):
    """What it gives, and what the function gives now."""
    import torch

    sys.path.insert(0, place)
    module = importlib.import_module(f"shop_{name}.ops")
    with open(path, "rb") as file, torch.no_grad():
        loaded = torch.compiler.load_compiled_function(file)
        return loaded(torch.ones(4)).sum().item(), module.multiply(torch.ones(4)).sum().item()


IN_CPP = """
#include <ATen/ATen.h>
#include <torch/library.h>

static at::Tensor sized(const at::Tensor& x) { return at::ones({4 * SHOP_N}, x.options()); }
static at::Tensor sized_meta(const at::Tensor& x) { return at::empty({4 * SHOP_N}, x.options()); }

TORCH_LIBRARY(shop_in_cpp, m) { m.def("sized(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(shop_in_cpp, CPU, m) { m.impl("sized", sized); }
TORCH_LIBRARY_IMPL(shop_in_cpp, Meta, m) { m.impl("sized", sized_meta); }
"""


def build_library(place, edition):
    """A library with an op in C++, and its fake implementation."""
    import subprocess

    import torch

    path = os.path.join(place, "libshop.so")
    top = os.path.join(os.path.dirname(torch.__file__))
    Path(place, "operators_of_the_shop.cpp").write_text(IN_CPP)
    include = [f"-I{top}/include", f"-I{top}/include/torch/csrc/api/include"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", abi, f"-DSHOP_N={edition + 1}", *include]
    command += ["operators_of_the_shop.cpp", "-o", path, f"-L{top}/lib", "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True, cwd=place)


def run_library(place):
    """What a graph with that op gives, compiled and in eager mode, and what torch has hit for it."""
    import torch
    from torch._dynamo.utils import counters

    torch.ops.load_library(os.path.join(place, "libshop.so"))

    def function(x):
        return torch.ops.shop_in_cpp.sized(x) * 2

    with torch.no_grad():
        compiled = torch.compile(function)(torch.ones(4)).sum().item()
        eager = function(torch.ones(4)).sum().item()
    return {"compiled": compiled, "eager": eager, "hits": counters["aot_autograd"]["autograd_cache_hit"]}
