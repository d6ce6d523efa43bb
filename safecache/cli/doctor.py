"""``safecache doctor``: what prevents caches from working on this machine, and why a shared object does not load."""

from __future__ import annotations

import argparse
from collections import Counter

from safecache.cli import EXIT_FINDINGS, view
from safecache.cli.arguments import add_json, require_zstandard
from safecache.cli.view import View
from safecache.doctor import load_check
from safecache.doctor.comparison import Baseline
from safecache.doctor.examination import compare, examine
from safecache.doctor.finding import SEVERITIES, worst
from safecache.settings import config
from safecache.upkeep import warming

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add its arguments."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--load", metavar="FILE", help="instead, say why a shared object does not load, without running it"
    )
    what.add_argument("--no-import", action="store_true", help="do not import torch: leave out what the hooks do")
    text = "instead, say whether these packs or cache directories, which were filled elsewhere, can be used here"
    what.add_argument("--for", dest="sources", nargs="*", metavar="PACK|DIR", help=text)
    parser.add_argument("--strict", action="store_true", help="exit with 1 for warnings too, not for errors alone")
    add_json(parser)


def run(arguments: argparse.Namespace) -> View:
    """Examine this machine, a file or a cache from elsewhere."""
    if arguments.sources is not None:
        return _compare(arguments.sources)
    if arguments.load:
        findings = load_check.check(arguments.load)
    else:
        with view.progress(described="looking around"):
            findings = examine(import_torch=not arguments.no_import)
    data = {"file": arguments.load} if arguments.load else {"worst": worst(findings)}
    lines = [line for each in findings for line in _lines(f"{each.severity} {each.code}", each.evidence, each.remedy)]
    if not arguments.load:
        counts = Counter(finding.severity for finding in findings)
        lines.append(
            ", ".join(f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity])
        )
    least = SEVERITIES.index("warning" if arguments.strict else "error")
    code = EXIT_FINDINGS if SEVERITIES.index(worst(findings)) >= least else 0
    return View({**data, "findings": [finding._asdict() for finding in findings]}, lines, code)


def _compare(sources: list[str]) -> View:
    """Tell how caches from elsewhere differ; 1 if anything misses by that, or nothing lies there."""
    packs = [source for source in sources if config.is_pack(source)]
    directories = [source for source in sources if source not in packs]
    if packs:
        require_zstandard()
    baselines = [Baseline.of_pack(pack) for pack in packs]
    if directories or not packs:
        baselines.append(Baseline.of_directories(directories or warming.places()))
    groups = sum(baseline.groups for baseline in baselines)
    found = [each for baseline in baselines for each in compare(baseline)]
    lines = [line for each in found for line in _lines("misses" if each.misses else "may miss", str(each), each.remedy)]
    if not groups:
        lines.append("nothing that is compiled lies there")
    elif worst(found) != "error":
        lines.append("every entry can hit here as far as can be told without compiling")
    misses = not groups or worst(found) == "error"
    differences = [each._asdict() | {"text": str(each)} for each in found]
    data = {"groups": groups, "misses": misses, "differences": differences}
    return View(data, lines, EXIT_FINDINGS if misses else 0)


def _lines(what: str, evidence: str, remedy: str) -> list[str]:
    return [f"{what}: {evidence}", *([f"  {remedy}"] if remedy else [])]
