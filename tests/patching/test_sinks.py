"""The table of sinks is that of the installed release, and says of each what verifies it or why nothing has to."""

from __future__ import annotations

import pytest

from safecache.patching import sinks
from safecache.patching.activation import list_hooks
from safecache.signing import provenance

DISTRIBUTIONS = pytest.mark.parametrize("distribution", sinks.DISTRIBUTIONS)
RELEASES = [("torch", (2, minor)) for minor in range(11, 16)] + [("triton", (3, minor)) for minor in range(6, 10)]
EACH_RELEASE = pytest.mark.parametrize(("distribution", "release"), RELEASES, ids=lambda value: f"{value}")


def installed_release(distribution):
    version = provenance.torch_version() if distribution == "torch" else provenance.describe()["triton"]
    return sinks.parse_release(version)


@DISTRIBUTIONS
def test_table_is_that_of_the_installed_release(distribution):
    found = sinks.scan_installed(distribution)
    if found is None:
        pytest.skip(f"{distribution} is not installed")
    unknown, vanished = sinks.find_differences(found, sinks.list_sinks(distribution, installed_release(distribution)))
    assert (unknown, vanished) == ([], []), "hook it, or say in safecache/patching/sinks.txt why it needs none"


def test_new_and_vanished_sinks_show(tmp_path):
    """A function that upstream adds to a module that is there, and one that it takes out."""
    package = tmp_path / "torch" / "_inductor"
    package.mkdir(parents=True)
    (package / "codecache.py").write_text("import pickle\ndef new(path): return pickle.load(open(path))\n")
    known = sinks.list_sinks("torch", (2, 15))
    unknown, vanished = sinks.find_differences(sinks.scan(str(tmp_path), "torch"), known)
    assert unknown == [sinks.Sink("torch/_inductor/codecache.py", "new", "pickle.load", 1)]
    assert set(vanished) == set(known)


@EACH_RELEASE
def test_every_release_is_listed(distribution, release):
    assert len(sinks.list_sinks(distribution, release)) > (150 if distribution == "torch" else 10)


def test_no_sink_has_two_verdicts():
    for distribution, release in RELEASES:
        rows = [
            row.sink
            for row in sinks.read_table()
            if row.sink.module.startswith(f"{distribution}/") and row.since <= release <= row.until
        ]
        assert len(rows) == len(set(rows))


def test_hooks_are_verifying_ones_that_the_release_has():
    hooks = [hook for _, hook in list_hooks() if hook.verifies]
    for row in sinks.read_table():
        for label in row.verdict.hooks:
            having = [hook for hook in hooks if hook.label == label]
            assert having, label
            if row.sink.module.startswith("torch/"):
                for release in (row.since, row.until):
                    assert any(not hook.is_not_for(release) for hook in having), (label, release)


def test_reasons_are_sentences():
    reasons = {row.verdict.reason for row in sinks.read_table() if not row.verdict.hooks}
    assert all(reason[0].isupper() and reason.endswith(".") for reason in reasons)


def test_nothing_is_listed_of_a_release_that_is_not_known():
    assert sinks.list_sinks("torch", (2, 16)) == {} == sinks.list_sinks("torch", sinks.parse_release("no version"))


def test_line_that_is_no_row_is_an_error():
    with pytest.raises(ValueError, match="neither a row nor a verdict"):
        list(sinks._parse_lines(["perhaps something"]))
    with pytest.raises(ValueError, match="no verdict stands above"):
        list(sinks._parse_lines(["  torch/a.py f exec"]))
