"""What vLLM's and SGLang's plugin loaders start: nothing, unless a setting asks for it; and then in the whole process."""

from __future__ import annotations

import textwrap

import pytest
from conftest import python

from .conftest import FAKE_TORCH, Said

# What the loaders of the two do with what they find: vLLM logs what fails to load, SGLang also what fails when called.
LOADERS = {
    "vllm": """
    def load():
        found = []
        for plugin in metadata.entry_points(group="vllm.general_plugins"):
            try:
                found.append(plugin.load())
            except Exception:
                print("swallowed")
        for function in found:
            function()
    """,
    "sglang": """
    def load():
        for plugin in metadata.entry_points(group="sglang.srt.plugins"):
            try:
                plugin.load()()
            except Exception:
                print("swallowed")
    """,
}
BEFORE = """
from importlib import metadata
from probe import *
import_all()
before, finders = snapshot(), list(sys.meta_path)
"""
ACTIVE = """
safecache = sys.modules["safecache"]
assert safecache.is_active() and all_are("active"), states()
assert len(differences(before, snapshot())) == len(states())
"""


@pytest.fixture(params=LOADERS)
def server(request, installed, fake_environment):
    """Run code in an interpreter that has the fake torch imported, and load() of a server."""

    def run(code, **environment):
        loader = textwrap.dedent(LOADERS[request.param]) + f"LOADER = {LOADERS[request.param]!r}\n"
        start = f"import sys; sys.path.insert(0, {str(FAKE_TORCH)!r})\n{BEFORE}{loader}"
        return Said(python(start + textwrap.dedent(code), path=installed, env=fake_environment | environment))

    run.name = {"vllm": "vLLM", "sglang": "SGLang"}[request.param]
    return run


def ended_well(said):
    assert (said.returncode, said.errors, said.lines) == (0, "", []), said.errors


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="nothing-set"),
        pytest.param({"SAFECACHE": "", "SAFECACHE_STRICT": ""}, id="empty"),
        pytest.param({"_SAFECACHE_RUN": "20261123T000000-0", "NOT_SAFECACHE": "1"}, id="no-settings"),
    ],
)
def test_being_installed_imports_nothing_unless_a_setting_asks_for_it(server, environment):
    said = server(
        """
        load()
        assert differences(before, snapshot()) == [] and sys.meta_path == finders
        left = [name for name in sys.modules if name.startswith(("safecache", "wrapt"))]
        assert left == ["safecache_entry"], left
        """,
        **environment,
    )
    ended_well(said)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"SAFECACHE": "0", "SAFECACHE_STRICT": "1"}, id="switched-off"),
        pytest.param({"SAFECACHE": "off", "SAFECACHE_STRICT": "perhaps"}, id="switched-off-with-a-bad-setting"),
    ],
)
def test_switched_off_nothing_becomes_active(server, environment):
    said = server("load()\nassert differences(before, snapshot()) == [] and sys.meta_path == finders", **environment)
    ended_well(said)


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"SAFECACHE": "1"}, id="switch"),
        pytest.param({"SAFECACHE_STRICT": "1"}, id="strict"),
        pytest.param({"SAFECACHE_STRICT": "misses=1, 1"}, id="strict-and-no-misses"),
        pytest.param({"SAFECACHE_NAMESPACE": "prod/llm"}, id="namespace"),
        pytest.param({"SAFECACHE_TRUST": "private"}, id="trust"),
        pytest.param({"SAFECACHE_TRUST": "signed"}, id="default"),
        pytest.param({"SAFECACHE_OF_SOMEBODY_ELSE": "1"}, id="unknown-variable"),
    ],
)
def test_setting_that_asks_activates_in_modules_imported_before(server, environment):
    ended_well(server("load()" + ACTIVE, **environment))


def test_loading_again_changes_nothing(server):
    ended_well(
        server("load()\nonce = snapshot()\nload()\nassert differences(once, snapshot()) == []" + ACTIVE, SAFECACHE="1")
    )


def test_program_can_activate_after_the_loader_has_passed(server):
    """By an import of its own, which must not find the package as one that did nothing."""
    ended_well(server("load()\nload()\nimport safecache\nmine = safecache\nload()\nassert mine.is_active()" + ACTIVE))


def test_plugin_that_is_called_again_leaves_the_programs_own_import_alone(server):
    said = server(
        """
        (group,) = [group for group in ("vllm.general_plugins", "sglang.srt.plugins") if group in LOADER]
        (plugin,) = metadata.entry_points(group=group)
        function = plugin.load()
        function()
        import safecache
        function()
        assert sys.modules["safecache"] is safecache and safecache.is_active()
        """
    )
    ended_well(said)


def test_program_that_has_activated_stays_so(server):
    ended_well(server("import safecache\nload()\nassert sys.modules['safecache'] is safecache" + ACTIVE))


def test_program_that_has_switched_off_stays_so(server):
    said = server(
        """
        import safecache
        load()
        assert sys.modules["safecache"] is safecache and not safecache.is_active()
        assert differences(before, snapshot()) == []
        """,
        SAFECACHE="0",
    )
    ended_well(said)


@pytest.mark.parametrize(
    ("environment", "text", "thread"),
    [
        pytest.param({"SAFECACHE_STRICT": "no?"}, "SAFECACHE_STRICT='no?' is not allowed", False, id="bad-setting"),
        pytest.param({"SAFECACHE": "maybe"}, "SAFECACHE='maybe' is not allowed", True, id="bad-switch"),
        pytest.param(
            {"SAFECACHE_STRICT": "1", "FAKE_TORCH_SIGNATURE": "unknown"},
            "FxGraphCache._save_graph: unknown signature",
            True,
            id="strict-and-a-hook-stands-down",
        ),
        pytest.param(
            {"SAFECACHE_STRICT": "1", "FAKE_TORCH_VERSION": "9.9.0"},
            "unknown torch version: 9.9.0",
            False,
            id="strict-and-new-torch",
        ),
    ],
)
def test_what_strict_mode_cannot_have_stops_the_server(server, environment, text, thread):
    """Though both loaders swallow exceptions, and a thread that exits ends nothing but itself."""
    in_thread = "import threading\nrunner = threading.Thread(target=load)\nrunner.start()\nrunner.join()"
    said = server((in_thread if thread else "load()") + "\nprint('started')", **environment)
    assert (said.returncode, said.lines) == (78, []), said.errors
    (line,) = [line for line in said.warnings if "does not start" in line]
    assert line.startswith(f"safecache: {server.name} does not start: ") and text in line


def test_metrics_of_vllm_are_in_the_registry_that_it_serves_and_sglangs_are_left_to_it(server):
    """SGLang imports prometheus_client after it has decided on the mode of that, and after it has loaded its plugins."""
    pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")
    said = server(
        """
        load()
        if "prometheus_client" not in sys.modules:
            print("not imported")
        from prometheus_client import REGISTRY, generate_latest
        from safecache.reporting import events
        from safecache.reporting.kinds import Count
        events.count(Count.SAVED)
        print('safecache_events_total{event="saved"} 1.0' in generate_latest(REGISTRY).decode().splitlines())
        """,
        SAFECACHE_METRICS="1",
        PYTHONWARNINGS="default",
    )
    expected = {"vLLM": ["True"], "SGLang": ["not imported", "False"]}
    assert (said.returncode, said.lines, said.errors) == (0, expected[server.name], ""), said.errors


def test_server_starts_where_metrics_cannot_be_had(server):
    said = server(
        """
        import importlib.util
        importlib.util.find_spec = lambda name, package=None: None
        load()
        print("started")
        """,
        SAFECACHE_METRICS="1",
    )
    assert (said.returncode, said.lines, len(said.warnings)) == (0, ["started"], 1), said.errors
    assert "needs prometheus_client: pip install 'safecache[metrics]'" in said.warnings[0]


@pytest.mark.parametrize("missing", ["reporting.events", "settings.config"])
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "default"])
def test_installation_that_is_broken_stops_a_strict_server_alone(server, strict, missing):
    said = server(
        f"sys.modules['safecache.{missing}'] = None\nload()\nprint('started')",
        SAFECACHE="1",
        SAFECACHE_STRICT=str(int(strict)),
    )
    assert (said.returncode, said.lines) == ((78, []) if strict else (0, ["started"])), said.errors
    (line,) = said.errors.splitlines()
    assert line.startswith("safecache: ") and "ModuleNotFoundError: " in line


def test_installation_that_is_broken_does_not_stop_a_server_without_safecache(server):
    said = server(
        "sys.modules['safecache.settings.config'] = None\nload()\nprint('started')",
        SAFECACHE="0",
        SAFECACHE_STRICT="1",
    )
    assert (said.returncode, said.lines) == (0, ["started"]), said.errors


def test_entry_points_of_0_1_0_activate(server):
    """Which name _plugins, and are there until the project is installed anew."""
    said = server("from safecache import _plugins\n_plugins.vllm()\n_plugins.sglang()" + ACTIVE)
    ended_well(said)


def test_hook_that_stands_down_is_a_warning_in_default_mode(server):
    said = server("load()", SAFECACHE="1", FAKE_TORCH_SIGNATURE="unknown")
    assert said.returncode == 0 and len(said.warnings) == 1 and "is inactive [hook inactive]" in said.warnings[0], (
        said.errors
    )


def test_server_that_logs_at_info_says_once_that_it_is_active(server):
    said = server("import logging\nlogging.basicConfig(level=logging.INFO)\nload()", SAFECACHE="1")
    (line,) = said.errors.splitlines()
    assert f"is active in this process of {server.name}, with " in line and "[pid " in line
