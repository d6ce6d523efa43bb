"""Metrics for Prometheus: of all processes of a run, in both modes of prometheus_client, and at no cost without it."""

from __future__ import annotations

import subprocess

import pytest
from conftest import needs_root, python

pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")

COUNT = "from safecache.reporting import events; from safecache.reporting.kinds import Count, Reason; "
SHOW = """
def show(registry):
    from prometheus_client import generate_latest
    for line in sorted(generate_latest(registry).decode().splitlines()):
        if line.startswith("safecache_"):
            print(line)
"""


@pytest.fixture
def places(tmp_path):
    """Where a run keeps its temporary files."""
    (tmp_path / "tmp").mkdir()
    # prometheus_client leaves its files open until the end, which CPython 3.14 tells.
    warnings = "error,ignore:unclosed file:ResourceWarning"
    return {"TMPDIR": str(tmp_path / "tmp"), "SAFECACHE_METRICS": "1", "PYTHONWARNINGS": warnings}


@pytest.fixture
def run(places, tmp_path):
    """Run code in a fresh interpreter; what it printed. Nothing of it stays."""

    def run(code, **environment):
        done = python(SHOW + code, env=places | environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert list((tmp_path / "tmp").iterdir()) == []
        return done.stdout.splitlines()

    return run


CHILD = f"import safecache; {COUNT} events.count(Count.VERIFIED); events.count(Reason.DAMAGED)"
SPAWN = f"""
import subprocess, sys
for _ in range(2):
    subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""
FORK = """
import os
pid = os.fork()
if pid == 0:
    events.count(Count.VERIFIED)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
TOTALS = ['safecache_events_total{event="verified"} 4.0', 'safecache_problems_total{reason="damaged"} 2.0']


def test_registry_shows_the_sum_over_the_processes_of_the_run(run):
    """The process itself, one that it forked, which starts from nothing, and two that it spawned, which are gone."""
    code = (
        f"import safecache; {COUNT}\nevents.count(Count.VERIFIED)\nfrom safecache import metrics\nmetrics.register()\n"
    )
    assert run(code + FORK + SPAWN + "from prometheus_client import REGISTRY\nshow(REGISTRY)") == TOTALS


def test_registry_of_ones_own_is_used_once(run):
    code = f"import safecache; {COUNT}\nfrom safecache import metrics\nfrom prometheus_client import CollectorRegistry, REGISTRY\n"
    code += "mine = CollectorRegistry()\nfor _ in range(2): metrics.register(mine)\nevents.count(Count.SAVED)\nshow(mine); show(REGISTRY)"
    assert run(code) == ['safecache_events_total{event="saved"} 1.0']


def test_servers_multiprocess_mode_shows_it_with_the_servers_own(run, tmp_path):
    """As SGLang does: it decides on the mode after its plugins were loaded, and before it imports prometheus_client."""
    code = f"""
import os, sys, safecache; {COUNT}
events.count(Count.VERIFIED)
assert "prometheus_client" not in sys.modules
os.environ["PROMETHEUS_MULTIPROC_DIR"] = {str(tmp_path)!r} + "/server"
os.mkdir(os.environ["PROMETHEUS_MULTIPROC_DIR"])
from prometheus_client import CollectorRegistry, Counter, multiprocess
Counter("safecache_like_the_servers", "").inc()
from safecache import metrics
metrics.register()
"""
    code += (
        FORK + SPAWN + "registry = CollectorRegistry()\nmultiprocess.MultiProcessCollector(registry)\nshow(registry)"
    )
    assert run(code) == [TOTALS[0], "safecache_like_the_servers_total 1.0", TOTALS[1]]


def test_duration_of_a_compile_is_in_its_bucket(run):
    code = f"import safecache; {COUNT}\nfor s in (0.05, 0.3, 45.0): events.count(Count.ISOLATED, seconds=s)\n"
    code += "from safecache import metrics\nfrom prometheus_client import REGISTRY\nmetrics.register()\nshow(REGISTRY)"
    lines = run(code)
    counts = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
    bucket = 'safecache_compile_seconds_bucket{{le="{}"}}'.format
    assert [counts[bucket(bound)] for bound in ("0.1", "0.3", "30.0", "60.0", "+Inf")] == [1, 2, 2, 3, 3]
    assert counts["safecache_compile_seconds_count"] == 3 and counts["safecache_compile_seconds_sum"] == 45.35
    assert counts['safecache_events_total{event="compiled in isolation"}'] == 3


def test_process_that_counts_nothing_has_no_file(run):
    code = "import os, safecache; from safecache.settings import config; from safecache import metrics; metrics.register()\n"
    assert run(code + "print(os.listdir(config.metrics_directory()))") == ["[]"]


def test_without_the_setting_nothing_is_imported_or_made(run, tmp_path):
    code = f"import sys, safecache; {COUNT} events.count(Count.SAVED)\n"
    code += "print([name for name in sys.modules if 'metrics' in name or 'prometheus' in name])"
    assert run(code, SAFECACHE_METRICS="0") == ["[]"]


def test_import_with_the_setting_imports_no_prometheus_client(run):
    assert run("import sys, safecache; print('prometheus_client' in sys.modules)") == ["False"]


WITHOUT = """
import sys
class Without:
    "As where prometheus_client is not installed."
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "prometheus_client" else found(name, package)
import safecache
"""


def test_missing_extra_is_one_warning_with_the_remedy(places):
    done = python(
        WITHOUT + f"safecache.activate(); {COUNT} events.count(Count.SAVED); print(safecache.stats())", env=places
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("safecache: SAFECACHE_METRICS=1 needs prometheus_client: pip install 'safecache[metrics]'")
    assert done.stdout == "{'saved': 1}\n"


def test_place_for_temporary_files_that_is_missing_is_one_warning(places):
    code = f"import safecache; safecache.activate(); {COUNT} events.count(Count.SAVED); print(safecache.stats())\n"
    # tempfile looks elsewhere too.
    code = (
        "import tempfile; tempfile.tempdir = '/nowhere'\n" + code + "from safecache import metrics; metrics.register()"
    )
    done = python(code, env=places)
    assert (done.returncode, done.stdout) == (0, "{'saved': 1}\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("safecache: there are no metrics of this process: ") and "/nowhere" in line


@pytest.mark.parametrize("missing", ["prometheus_client.mmap_dict", "prometheus_client.multiprocess"])
def test_client_that_is_not_as_we_know_it_costs_the_metrics_and_no_more(places, missing):
    code = f"import sys, safecache; {COUNT}\nimport prometheus_client\nsys.modules[{missing!r}] = None\n"
    code += "from safecache import metrics\nmetrics.show()\nfor _ in range(2): events.count(Count.SAVED)\nprint(safecache.stats())"
    done = python(code, env=places)
    assert (done.returncode, done.stdout) == (0, "{'saved': 2}\n"), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("safecache: there are no metrics of this process: ImportError: ")


def test_directory_of_another_node_is_replaced(run):
    """As where Ray has handed the variable on."""
    code = f"import safecache; {COUNT}\nfrom safecache import metrics\nfrom prometheus_client import REGISTRY\n"
    code += "metrics.register()\nevents.count(Count.SAVED)\nshow(REGISTRY)"
    assert run(code, _SAFECACHE_METRICS_DIRECTORY="/nowhere/else") == ['safecache_events_total{event="saved"} 1.0']


def test_registering_without_the_extra_is_an_error_with_the_remedy(places):
    done = python(
        WITHOUT + "from safecache import metrics; metrics.register()", env=places | {"SAFECACHE_METRICS": "0"}
    )
    assert done.stderr.splitlines()[-1] == (
        "ImportError: safecache: metrics need prometheus_client: pip install 'safecache[metrics]'"
    )


@pytest.fixture
def full_disk(tmp_path):
    """A directory with room for a page."""
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@needs_root
def test_full_disk_costs_the_metrics_and_no_more(places, full_disk):
    """And not the process, as a page of a mapped file does that the disk has no room for."""
    code = f"import safecache; {COUNT}\nfor _ in range(2): events.count(Count.SAVED)\nprint(safecache.stats())"
    done = python(code, env=places | {"PROMETHEUS_MULTIPROC_DIR": str(full_disk)})
    assert done.stdout == "{'saved': 2}\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("safecache: there are no metrics of this process: ") and "No space left" in line
    assert list(full_disk.iterdir()) == []


def test_lookups_have_their_cache_outcome_and_reason(run):
    code = """
import os, safecache, safecache.metrics
from prometheus_client import CollectorRegistry
from safecache import features, ports
features.plug()
from safecache.ports import Lookup, Outcome
from safecache.places.refs import Ref
from safecache.reporting.kinds import Kind
from safecache.reporting.kinds import Reason
safecache.activate()
registry = CollectorRegistry()
safecache.metrics.register(registry)
hit = Lookup(Ref(Kind.AOT_ENTRY, "k"), "", Outcome.HIT, None, "", 0.0, "")
for lookup in (hit, hit, hit._replace(ref=Ref(Kind.FX_ENTRY, "k"), outcome=Outcome.MISS, reason=Reason.KEY_DIFFERS)):
    ports.tell(lookup)
assert not os.path.exists(".safecache"), "there is no cache whose journal it could be in"
show(registry)
"""
    assert run(code) == [
        'safecache_lookups_total{cache="aot",outcome="hit",reason=""} 2.0',
        'safecache_lookups_total{cache="fx",outcome="miss",reason="key differs"} 1.0',
    ]
