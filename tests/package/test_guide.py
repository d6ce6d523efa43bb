"""The README and the guide: short enough, whole, and true of the commands there are."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest

import safecache
from safecache.cli import main

ROOT = Path(safecache.__file__).parents[1]
GUIDE = Path(safecache.__file__).parent / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
TEXTS = [ROOT / "README.md", *PAGES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(path):
    """Of its headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(path.read_text())}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for link in LINK.findall(path.read_text()):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_commands_in_it_exist(path, run):
    """As far as their names go."""
    text = path.read_text()
    blocks = "".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"`safecache ([a-z]+)", text)) | set(
        re.findall(r"^(?:\$ )?safecache ([a-z]+)", blocks, re.MULTILINE)
    )
    for command in sorted(named):
        assert run(command, "--help").code == 0, command


@pytest.mark.parametrize("page", ["architecture", "contributing"])
def test_files_it_names_have_what_it_says(page):
    """As in "`NAME` of `store/gate.py`"."""
    text = " ".join((GUIDE / f"{page}.md").read_text().split())
    for file in re.findall(r"`([a-z_/.]+\.py)`", text):
        assert any(list(ROOT.glob(f"{below}{file}")) for below in ("", "safecache/", "**/")), file
    for name, file in re.findall(r"`(\w+)` (?:of|in) `([\w/.]+\.py)`", text):
        place = next(path for below in ("", "safecache/", "**/") for path in ROOT.glob(f"{below}{file}"))
        assert re.search(rf"\b{name}\b", place.read_text()), (name, file)


def test_readme_is_one_screen_and_names_each_page():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert {link.partition("#")[0] for link in LINK.findall(text)} >= {f"safecache/guide/{page.name}" for page in PAGES}


def test_help_lists_the_pages_and_shows_one(run):
    listed = run("help")
    parts = dict(main._PAGES)
    assert listed.code == 0 and [line.split()[0] for line in listed.lines] == [
        word for part, names in parts.items() for word in (part, *names.split())
    ]
    assert sorted(" ".join(parts.values()).split()) == [page.stem for page in PAGES]
    for page in PAGES:
        assert run("help", page.stem).out == page.read_text()


def test_page_that_is_not_there_is_named(run):
    said = run("help", "no\x1bsuch")
    assert said.code == 2 and "settings" in said.err and "\x1b" not in said.err


def test_help_lists_every_command_in_its_group(run):
    said = run("--help").out
    _, *groups = re.split(r"^(\w+):$", said[said.index("\nuse:\n") :], flags=re.M)
    listed = {groups[i]: re.findall(r"^  (\w+) ", groups[i + 1], flags=re.M) for i in range(0, len(groups), 2)}
    assert list(listed) == ["use", "look", "keys", "upkeep"] and all(listed.values())
    assert sorted(name for names in listed.values() for name in names) == sorted(main._COMMANDS)


def test_packages_are_described_as_in_their_docstrings():
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \| (.+) \|$", (GUIDE / "architecture.md").read_text().partition("## Packages")[2], flags=re.M
        )
    )
    packages = [path.parent for path in GUIDE.parent.glob("*/__init__.py")]
    first = {
        package.name: importlib.import_module(f"safecache.{package.name}").__doc__.partition(".\n")[0]
        for package in packages
    }
    assert {name: text.removesuffix(".") for name, text in first.items()} == rows


def test_life_of_an_entry_names_functions_where_they_are():
    """WRITE_GOLDEN=1 writes their lines anew."""
    page = GUIDE / "architecture.md"
    text = page.read_text(encoding="utf-8")

    def place(match):
        name, module = match[1], match[2]
        lines = (GUIDE.parent / module).read_text(encoding="utf-8").splitlines()
        (number,) = [number for number, line in enumerate(lines, 1) if re.match(rf" *def {name}\(", line)]
        return f"`{name}` {module}:{number} "

    found = re.sub(r"`(\w+)` ([\w/]+\.py):\d+ ", place, text)
    assert found.count(".py:") == 14
    if os.environ.get("WRITE_GOLDEN"):
        page.write_text(found, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == found


def sentences(text):
    """Of prose, list items and cells of tables; code is one word."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text))
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) |#|\|)|\|", text):
        yield from re.split(r"(?<=[.!?:;])\s+", " ".join(part.split()))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_sentences_are_short(path):
    assert [each for each in sentences(path.read_text()) if len(each.split()) > 35] == []


def test_long_sentence_is_found():
    text = f"* One item is `some code`.\n* It {'really ' * 34}is long.\n"
    assert [len(each.split()) for each in sentences(text) if len(each.split()) > 35] == [38]
