"""A server of several workers on a GPU: it comes up through each fault, with one line for it, and right numbers.

Beside each, what stock torch does there is printed, as a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from scenarios import serving
from scenarios.serving import Case, Site

torch = pytest.importorskip("torch")
# Another device than a GPU is for those who change this file.
DEVICE = os.environ.get("SCENARIO_DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
pytestmark = [
    pytest.mark.skipif(ON_GPU and not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(900),
]
# Servers at the same time; each has so many workers.
AT_ONCE, WORKERS = (6, 2) if ON_GPU else (1, 1)
ARTIFACTS = {"one_file": False}

CASES = [
    Case("warm-import", serving.untouched, source="loaded"),
    Case("warm-plugin", serving.untouched, source="loaded", activation="plugin"),
    Case("warm-sitecustomize", serving.untouched, source="loaded", activation="sitecustomize"),
    Case("warm-run", serving.untouched, source="loaded", activation="run"),
    Case("truncated-model", serving.truncate, ["unsealed"], activation="plugin"),
    Case("truncated-artifact", serving.truncate_artifacts, activation="sitecustomize", options=ARTIFACTS),
    Case("planted-artifact", serving.plant_in_artifacts, ["unsealed", "unsealed"], options=ARTIFACTS),
    Case("planted", serving.plant, ["unsealed", "unsealed"], activation="run"),
    Case("unpicklable", serving.be_unpicklable, ["unpicklable"], again="compiled"),
    Case("full-disk", serving.fill, ["unusable directory"] + ["unwritable"] * ON_GPU, again="compiled"),
    Case("noexec", serving.forbid_execution, [] if ON_GPU else ["not executable"]),
    Case("killed-in-compile", serving.kill_in_compile, deaths=True),
    Case("killed-in-save", serving.kill_in_save, deaths=True),
]
if ON_GPU:
    CASES.append(Case("launchers", serving.keep_launchers))


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A warm site of stock torch and one of safecache, by these names, and what their first starts said."""
    sites = {
        name: Site(tmp_path_factory.mktemp(name) / "warm", DEVICE, WORKERS, stock=name == "stock")
        for name in ("stock", "safecache")
    }
    with ThreadPoolExecutor() as pool:
        return sites, dict(zip(sites, pool.map(Site.start, sites.values()), strict=True))


@pytest.fixture(scope="module")
def ran(cold):
    """By case and then by who: its starts, or what kept them from being made; and its site."""
    sites, _ = cold

    def run(job):
        case, who = job
        site = sites[who].copy(sites[who].base.with_name(case.name))
        try:
            return serving.run(case, site), site
        except Exception as error:
            return error, site

    jobs = [(case, who) for case in CASES for who in sites]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {(case.name, who): result for (case, who), result in zip(jobs, pool.map(run, jobs), strict=True)}


def test_cold_start_saves_and_answers_as_stock(cold):
    sites, said = cold
    for name, started in said.items():
        started.check()
        assert {worker["source"] for worker in started.workers} == {"compiled"}, started
        assert len(sites[name].models) == WORKERS
    assert said["safecache"].reasons == [], said["safecache"]
    assert said["safecache"].logits == pytest.approx(said["stock"].logits, abs=1e-4)
    for name, started in said.items():
        print(json.dumps({"case": "cold", "who": name, "seconds": started.seconds, **serving.versions(started)}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_server_comes_up(cold, ran, case):
    (ours, site), stock = ran[case.name, "safecache"], ran[case.name, "stock"]
    said = {"stock": serving.outcome(*stock), "safecache": serving.outcome(ours, site)}
    print(json.dumps({"case": case.name, **said}))
    if isinstance(ours, PermissionError):
        pytest.skip(str(ours))
    if isinstance(ours, Exception):
        raise ours
    serving.check(case, ours, site)
    for started in ours:
        assert started.logits == pytest.approx(cold[1]["stock"].logits, abs=1e-4)


@pytest.mark.skipif(not ON_GPU or serving.namespace() is None, reason="needs a GPU, and to mount")
def test_noexec_triton_directory_is_named_with_a_line_that_works(cold):
    """Without an approved place for code, the server is down, as with stock; the line in its error brings it up."""
    warm = cold[0]["safecache"]
    site = warm.copy(warm.base.with_name("pasted"))
    site.forget()
    prefix, variables = serving.mounting(site.triton, "noexec"), {"XDG_CACHE_HOME": str(site.base)}
    down = site.start(prefix=prefix, env=variables)
    assert not down.up, down
    for worker in down.workers:
        text = "\n".join(worker["chain"])
        assert "mounted noexec" in text and str(site.triton) in text, worker
        (name, value), *_ = re.findall(r"export (TRITON_CACHE_DIR)=(\S+)", text)
    up = site.start(prefix=prefix, env=variables | {name: value})
    up.check()
    assert up.reasons == []
