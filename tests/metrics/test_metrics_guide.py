"""The guide's page on metrics, its alerts and its dashboard name what a process exports, and the page all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import python

import safecache

pytest.importorskip("prometheus_client", reason="the metrics extra is not installed")

GUIDE = Path(safecache.__file__).parent / "guide"
PAGE = (GUIDE / "metrics.md").read_text(encoding="utf-8")
ALERTS = (GUIDE / "deploy" / "alerts.yaml").read_text(encoding="utf-8")
DASHBOARD = json.loads((GUIDE / "deploy" / "dashboard.json").read_text(encoding="utf-8"))
# What Prometheus adds when it scrapes.
OF_PROMETHEUS = {"job", "instance"}
EXPORT = """
import http.server, threading, urllib.request
import safecache, safecache.metrics
from prometheus_client import CollectorRegistry, MetricsHandler
from safecache import features, ports
from safecache.history.run_summary import LABELS
from safecache.places.refs import Ref
from safecache.reporting import events
from safecache.reporting.kinds import Count, Reason

features.plug()
safecache.activate()
registry = CollectorRegistry()
safecache.metrics.register(registry)
for reason in Reason:
    events.count(reason)
for each in Count:
    events.count(each, seconds=1.0 if each is Count.ISOLATED else None)
for kind, outcome, reason in LABELS.values():
    ports.tell(ports.Lookup(Ref(kind, "key"), "", outcome, reason, "", 0.0, ""))
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler.factory(registry)) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
        print(answer.read().decode())
    server.shutdown()
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """What a scrape of a process that has counted everything brings: of each metric the type, and values by label."""
    from prometheus_client.parser import text_string_to_metric_families

    place = tmp_path_factory.mktemp("exports")
    environment = {"SAFECACHE_METRICS": "1", "TMPDIR": str(place), "XDG_CONFIG_HOME": str(place), "no_proxy": "*"}
    done = python(EXPORT, env=environment, cwd=place)
    assert done.returncode == 0, done.stderr
    found = {}
    for family in text_string_to_metric_families(done.stdout):
        for sample in family.samples:
            name = sample.name if family.type == "counter" else family.name
            _, labels = found.setdefault(name, (family.type, {}))
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    found["safecache_compile_seconds"][1].pop("le")
    return found


def targets():
    return [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]


def expressions():
    """The expressions of the dashboard and of the alerts, by what they are for."""
    variables = [("variable", each["query"]) for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    alerts = re.findall(r"- alert: (\w+)\n +expr: (?:>-\n)?(.+?)\n +labels:", ALERTS, re.DOTALL)
    assert len(alerts) == ALERTS.count("expr:") > 0
    return [*variables, *((title, target["expr"]) for title, target in targets()), *alerts]


def unknown(expression, exported):
    """The names of metrics, and the labels with their values, that are in it and not exported."""
    for name, matchers in re.findall(r"\b(safecache_\w+)(?:\{([^}]*)\})?", expression):
        if name not in exported:
            yield name
            continue
        labels = exported[name][1]
        for label, how, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
            values = value.split("|") if "~" in how else [value]
            if label in OF_PROMETHEUS:
                continue
            yield from (f"{name} {label}={each}" for each in values if each not in labels.get(label, ()))


@pytest.mark.parametrize(("title", "expression"), expressions(), ids=lambda text: text[:30])
def test_expression_uses_what_is_exported(title, expression, exported):
    assert list(unknown(expression, exported)) == []
    names = re.findall(r"\bsafecache_\w+", expression)
    grouped = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
    assert names and grouped <= {label for name in names for label in exported[name][1]} | OF_PROMETHEUS


def test_expression_of_something_else_is_noticed(exported):
    found = 'sum(safecache_hits) + safecache_problems_total{reason=~"damaged|torn",job="x"} + safecache_events_total{kind="saved"}'
    assert list(unknown(found, exported)) == [
        "safecache_hits",
        "safecache_problems_total reason=torn",
        "safecache_events_total kind=saved",
    ]


def test_annotations_of_alerts_use_labels_that_are_left():
    for alert in ALERTS.split("- alert: ")[1:]:
        (left,) = re.findall(r"expr:.*?by \(([^)]*)\)", alert, re.DOTALL)
        assert set(re.findall(r"\$labels\.(\w+)", alert)) <= set(left.split(", ")), alert


def test_panels_are_few_of_the_chosen_data_source_and_have_legends_of_their_labels():
    assert 6 <= len(DASHBOARD["panels"]) <= 8
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "instance"]
    for title, target in targets():
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, title
        grouped = {label for labels in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in labels.split(", ")}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == grouped, title


def test_panels_do_not_overlap():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_page_names_each_metric_with_its_labels_and_all_values_but_those_of_reasons(exported):
    table = re.findall(r"^\| `(safecache_\w+)` \| (\w+) \| (.+?) \| .+ \|$", PAGE, re.MULTILINE)
    said = {name: (kind, labelled(cell)) for name, kind, cell in table}
    assert len(table) == len(said)
    # That each reason has a heading on the page that is linked is a matter of that page.
    known = {
        name: (kind, {label: set() if label == "reason" else values for label, values in labels.items()})
        for name, (kind, labels) in exported.items()
    }
    assert said == known


def labelled(cell):
    """Of a cell of the table, such as "`outcome`: `sent`, `not sent`; `reason`: a code"."""
    parts = [re.findall(r"`([^`]+)`", part) for part in cell.split("; ")]
    return {label: set(values) for label, *values in filter(None, parts)}


def test_page_names_the_alerts_and_the_files():
    assert re.findall(r"^\| `(Safecache\w+)` \|", PAGE, re.MULTILINE) == re.findall(r"- alert: (\w+)", ALERTS)
    assert "(deploy/alerts.yaml)" in PAGE and "(deploy/dashboard.json)" in PAGE


def test_sections_that_the_page_and_alerts_send_to_are_of_reasons(exported):
    reasons = exported["safecache_problems_total"][1]["reason"]
    sent = set(re.findall(r"errors#([a-z-]+)", PAGE + ALERTS))
    assert sent and sent <= {reason.lower().replace(" ", "-") for reason in reasons}


def test_alerts_are_yaml_of_one_group_of_rules():
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(ALERTS)["groups"]
    assert {tuple(sorted(rule)) for rule in group["rules"]} == {("alert", "annotations", "expr", "labels")}
