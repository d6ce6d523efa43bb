"""The share that is compiled again: the setting, and of which keys."""

from __future__ import annotations

import pytest

from safecache import recompile_check, session
from safecache.errors import ConfigError
from safecache.places.refs import Ref
from safecache.ports import Found
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.settings import config


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "inf", "yes", "1%"])
def test_share_that_is_none_is_an_error_that_names_the_setting(text):
    with pytest.raises(ConfigError, match=r"SAFECACHE_RECOMPILE_SAMPLE='.*' is not allowed: use a number from 0 to 1"):
        config.load({"SAFECACHE_RECOMPILE_SAMPLE": text})


@pytest.mark.parametrize(("text", "share"), [("", 0), ("0", 0), ("0.01", 0.01), ("1", 1), ("1e-3", 0.001)])
def test_share(text, share):
    assert config.load({"SAFECACHE_RECOMPILE_SAMPLE": text}).recompile_sample == share


def test_old_name_counts_where_the_new_one_is_unset():
    both = {"SAFECACHE_VERIFY": "1", "SAFECACHE_RECOMPILE_SAMPLE": "0"}
    assert config.load({"SAFECACHE_VERIFY": "1"}).recompile_sample == 1 and config.load(both).recompile_sample == 0


def hidden(keys):
    session.reset()
    return {key for key in keys if recompile_check.should_hide([Found(Ref(Kind.FX_ENTRY, key), b"a", "")])}


KEYS = [f"key {number}" for number in range(2000)]
JOB = {"MASTER_ADDR": "host", "MASTER_PORT": "29500"}


@pytest.fixture
def sample(settings, monkeypatch):
    """The keys that are hidden of KEYS in a process with these variables."""

    def find(share="0.1", **environment):
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT", "_SAFECACHE_RUN"):
            monkeypatch.delenv(name, raising=False)
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        settings(SAFECACHE_RECOMPILE_SAMPLE=share)
        return hidden(KEYS)

    yield find
    session.reset()


def test_sample_is_of_its_share_and_another_in_each_run(sample):
    first, second = (sample(_SAFECACHE_RUN=run) for run in ("one", "two"))
    assert 120 < len(first) < 280 and first != second and first == sample(_SAFECACHE_RUN="one")
    assert sample("0") == set() and len(sample("1")) == len(KEYS)


def test_all_ranks_of_a_job_sample_the_same_keys_and_other_jobs_others(sample):
    ranks = [sample(RANK=rank, _SAFECACHE_RUN=f"run of {rank}", **JOB) for rank in "01"]
    assert ranks[0] == ranks[1] != sample(RANK="0", **{**JOB, "MASTER_PORT": "29501"})


def test_what_does_not_fit_into_memory_is_not_hidden(sample, monkeypatch):
    monkeypatch.setattr(recompile_check, "_MOST_BYTES", 10)
    assert len(sample("1")) == 10


def test_graphs_of_a_hidden_entry_are_hidden_too_and_each_once(settings):
    session.reset()
    settings(SAFECACHE_RECOMPILE_SAMPLE="1e-12")
    entry, graph = Found(Ref(Kind.AOT_ENTRY, "a"), b"a", ""), Found(Ref(Kind.FX_ENTRY, "g"), b"g", "")
    assert not recompile_check.should_hide([entry, graph]) and not recompile_check.should_hide([graph])
    settings(SAFECACHE_RECOMPILE_SAMPLE="1")
    assert recompile_check.should_hide([entry, graph])
    settings(SAFECACHE_RECOMPILE_SAMPLE="1e-12")
    assert (
        recompile_check.should_hide([graph])
        and not recompile_check.should_hide([graph])
        and not recompile_check.should_hide([entry, graph])
    )


def test_what_cannot_be_compared_is_saved_and_told(settings, caplog):
    session.reset()
    settings(SAFECACHE_RECOMPILE_SAMPLE="1")
    assert recompile_check.is_new(Ref(Kind.FX_ENTRY, "g", "/no"), b"unsealed")
    assert recompile_check.should_hide([Found(Ref(Kind.FX_ENTRY, "g"), b"unsealed too", "")])
    assert recompile_check.is_new(Ref(Kind.FX_ENTRY, "g", "/no"), b"unsealed") and "did not compare" in caplog.text
    assert events.read_counters()["not recompiled"] == 1
