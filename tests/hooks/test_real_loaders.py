"""The plugin loaders of vLLM and SGLang themselves start safecache, or stop the server.

They come from a wheel, which is too large to fetch for a test: SAFECACHE_TEST_VLLM and SAFECACHE_TEST_SGLANG each name a
directory with an unpacked one. test_server_plugins.py has loaders that do as these do.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import python

# The loader alone, without what the server imports at its start, which needs a GPU or a hundred packages.
LOAD = {
    "vllm": "alone('vllm', 'vllm.utils')\nfrom vllm.plugins import load_general_plugins as load",
    "sglang": "alone('sglang', 'sglang.srt')\nfrom sglang.srt.plugins import load_plugins as load",
    # For models that make images.
    "sglang-diffusion": """
above = "sglang.multimodal_gen", "sglang.multimodal_gen.runtime", "sglang.multimodal_gen.runtime.platforms"
alone('sglang', 'sglang.srt', *above)
platforms = sys.modules[above[-1]]
platforms.PLATFORM_PLUGINS_GROUP, platforms.get_selected_platform_dist = "sglang.multimodal_gen.platforms", lambda: None
from sglang.multimodal_gen.runtime.platforms.plugins import load_plugins as load
""",
}
START = """
import sys, types
def alone(*names):
    for name in names:
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [wheel + "/" + name.replace(".", "/")]
import logging
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from probe import *
import_all()
before, finders = snapshot(), list(sys.meta_path)
"""


@pytest.fixture(params=LOAD)
def server(request, installed, fake_environment):
    """Run code where load() is the server's own."""
    variable = f"SAFECACHE_TEST_{request.param.partition('-')[0].upper()}"
    wheel = os.environ.get(variable)
    if not wheel:
        pytest.skip(f"{variable} names no directory with an unpacked wheel")

    def run(code, **environment):
        path = f"import sys; sys.path.insert(0, {str(Path(__file__).parent / 'fake_torch')!r}); wheel = {wheel!r}\n"
        return python(
            path + START + LOAD[request.param] + "\n" + code, path=installed, env=fake_environment | environment
        )

    return run


def test_loader_finds_the_plugin_which_does_nothing_unasked(server):
    done = server("load()\nassert 'safecache' not in sys.modules and finders == sys.meta_path\nprint('served')")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("served\n"), done.stderr


def test_loader_activates_what_is_asked_for(server):
    done = server(
        "load()\nassert all_are('active') and differences(before, snapshot())\nprint('served')", SAFECACHE="1"
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("served\n"), done.stderr
    assert "is active in this process of " in done.stdout


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"SAFECACHE_STRICT": "perhaps"}, id="bad-setting"),
        pytest.param({"SAFECACHE_STRICT": "1", "FAKE_TORCH_SIGNATURE": "unknown"}, id="strict-and-a-hook-stands-down"),
    ],
)
def test_loader_does_not_keep_the_server_from_stopping(server, environment):
    done = server("try: load()\nexcept Exception: print('swallowed')\nprint('served')", **environment)
    assert done.returncode == 78 and "does not start: " in done.stderr, done.stderr
    assert "served" not in done.stdout and "swallowed" not in done.stdout
