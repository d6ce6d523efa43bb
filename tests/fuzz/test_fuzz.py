"""Whatever bytes a decoder gets, it raises nothing and takes nothing that was not sealed for it by a trusted key.

The same inputs and changes as those of fuzz/campaign.py, which goes on for as long as it is told to.
"""

from __future__ import annotations

import importlib.util
import random

import hypothesis
import pytest
from hypothesis import strategies

from fuzz import decoders, world
from fuzz.decoders import CORPUS, DECODERS
from safecache.reporting.kinds import Reason
from safecache.signing import trust

EACH = pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
KEPT = [(decoder, path) for decoder in DECODERS for path in sorted(decoder.corpus.iterdir())]


@pytest.mark.parametrize(("decoder", "path"), KEPT, ids=lambda value: getattr(value, "name", ""))
def test_input_that_was_kept(decoder, path):
    decoder.check(path.read_bytes())


def test_corpus_is_small_and_of_these_decoders():
    assert {path.name for path in CORPUS.iterdir()} == {decoder.name for decoder in DECODERS}
    assert sum(path.stat().st_size for _, path in KEPT) < 200_000


def test_changes_lead_to_every_verdict():
    """Or the tests here would prove little: some changes leave an entry good, and some make it so."""
    seal = next(decoder for decoder in DECODERS if decoder.name == "seal")
    seen, kept = set(), seal.kept()
    for number in range(5_000):
        chance = random.Random(number)
        content = seal.change(chance.choice(kept), chance)
        seen.add(decoders._verify(content, chance.choice((world.ASKED, *world.OTHERS))).reason)
    refusals = [reason for reason in Reason if reason in trust._EVIDENCE or reason in trust.UNATTESTED]
    assert seen == {None, *refusals}


@EACH
def test_changed_inputs(decoder):
    """Those that a seed gives; the text of a failure is one that can be repeated."""
    kept = decoder.kept()
    for number in range(decoder.changes):
        chance = random.Random(f"{decoder.name} {number}")
        content = decoder.change(chance.choice(kept), chance)
        try:
            decoder.check(content)
        except Exception as error:
            pytest.fail(f"{decoder.name} {number}: {type(error).__name__}: {error}\n{content[:2000]!r}")


@EACH
@hypothesis.settings(max_examples=150, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=strategies.data())
def test_changed_inputs_that_shrink(decoder, data):
    chance = data.draw(strategies.randoms(use_true_random=False))
    content = decoder.change(data.draw(strategies.sampled_from(decoder.kept())), chance)
    decoder.check(content)


@EACH
@hypothesis.given(content=strategies.binary(max_size=300))
def test_arbitrary_bytes(decoder, content):
    decoder.check(content)


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    from fuzz import campaign

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(campaign.sys, "argv", ["campaign.py", *arguments])
        return campaign.main()

    return run


def test_campaign_without_atheris_says_how_to_install_it(campaign, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        campaign("name", "--seconds", "1")
    assert ended.value.code == 2 and "pip install 'safecache[fuzz]'" in capsys.readouterr().err


def test_campaign_leaves_the_input_that_failed(campaign, monkeypatch, tmp_path):
    changed = []

    def fail(content):
        changed.append(content)
        raise AssertionError("found something")

    monkeypatch.setattr(decoders, "DECODERS", [decoder._replace(check=fail) for decoder in DECODERS])
    with pytest.raises(AssertionError, match="found something"):
        campaign("name", "--blind", "--seconds", "60")
    (left,) = tmp_path.glob("crash-name-*")
    assert [left.read_bytes()] == changed
