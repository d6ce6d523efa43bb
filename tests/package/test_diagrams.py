"""The diagrams in the guide: each parses by a small grammar, far stricter than Mermaid's, and is short and connected."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import safecache

GUIDE = Path(safecache.__file__).parent / "guide"
BLOCK = re.compile(r"(?<=\n\n)^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DIAGRAMS = [(page.stem, block) for page in sorted(GUIDE.glob("*.md")) for block in BLOCK.findall(page.read_text())]
# With its fences; columns that rich leaves of a terminal with 120.
MOST_LINES, MOST_COLUMNS = 16, 118

# "end" ends a block of Mermaid's wherever it stands alone, and an id of x or o after a line is an arrow's head.
NAME = r"(?!(?:end|graph|subgraph|style|class|click|x|o)\b)[a-z]\w*"
WORDS = r"(?! )(?:(?!--|\bend\b)[\w ,.:/…-])+(?<! )"
NODE = rf"{NAME}(?:\[{WORDS}\])?"
NODES = rf"{NODE}(?: & {NODE})*"
STATEMENT = re.compile(rf"  (?P<starts>{NODES})(?: (?:-- {WORDS} )?--> (?P<ends>{NODES}))?")
PARTICIPANT = re.compile(rf"  participant (?P<name>{NAME})(?: as {WORDS})?")
MESSAGE = re.compile(rf"  (?P<start>{NAME})--?>>(?P<end>{NAME}): {WORDS}")


def parse(block):
    """Return its nodes, and its edges as pairs of nodes. Raises ValueError for what is not in the grammar."""
    lines = block.splitlines()
    if len(lines) + 2 > MOST_LINES:
        raise ValueError(f"{len(lines) + 2} lines")
    if lines[0] in ("flowchart TD", "flowchart LR"):
        nodes, edges = _flowchart(lines[1:])
    elif lines[0] == "sequenceDiagram":
        nodes, edges = _sequence(lines[1:])
    else:
        raise ValueError(f"no header: {lines[0]}")
    if alone := nodes - _reached(edges):
        raise ValueError(f"not connected: {sorted(alone)}")
    return nodes, edges


def _matched(pattern, line):
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"not in the grammar: {line}")
    return found


def _flowchart(lines):
    texts, nodes, edges = {}, set(), set()
    for line in lines:
        found = _matched(STATEMENT, line)
        sides = [re.findall(rf"({NAME})(?:\[(.+?)\])?(?: & |$)", side or "") for side in found.group("starts", "ends")]
        for name, text in sides[0] + sides[1]:
            nodes.add(name)
            if text and texts.setdefault(name, text) != text:
                raise ValueError(f"{name} has two texts")
        edges |= set(product(*([name for name, _ in side] for side in sides)))
    return nodes, edges


def _sequence(lines):
    nodes, edges = set(), set()
    for line in lines:
        if line.startswith("  participant "):
            name = _matched(PARTICIPANT, line)["name"]
            if name in nodes or edges:
                raise ValueError(f"{name} comes twice, or too late")
            nodes.add(name)
        else:
            edges.add(_matched(MESSAGE, line).group("start", "end"))
    if unknown := {name for edge in edges for name in edge} - nodes:
        raise ValueError(f"no participants: {sorted(unknown)}")
    return nodes, edges


def _reached(edges):
    """The nodes that edges, taken both ways, connect with the first; those alone with themselves are not."""
    edges = {edge for edge in edges if edge[0] != edge[1]}
    reached = set(min(edges, default=()))
    while more := {name for edge in edges if reached & set(edge) for name in edge} - reached:
        reached |= more
    return reached


@pytest.mark.parametrize("page, block", DIAGRAMS, ids=[page for page, _ in DIAGRAMS])
def test_diagram_parses_is_connected_and_fits_a_terminal(page, block):
    nodes, edges = parse(block)
    assert nodes and edges
    assert max(map(len, block.splitlines())) <= MOST_COLUMNS


def test_no_diagram_is_overlooked():
    """One that is indented, or not below an empty line, is no match of BLOCK."""
    assert sum(page.read_text().count("```mermaid") for page in GUIDE.glob("*.md")) == len(DIAGRAMS)
    assert {"directories", "security", "single_flight"} <= {page for page, _ in DIAGRAMS}


@pytest.mark.parametrize("page, block", DIAGRAMS, ids=[page for page, _ in DIAGRAMS])
def test_a_sentence_above_says_what_it_shows(page, block):
    above = (GUIDE / f"{page}.md").read_text().partition(f"```mermaid\n{block}")[0].rstrip()
    assert above.endswith((".", ":")) and not above.rpartition("\n")[2].startswith(("#", "|", "```"))


def test_grammar_knows_what_is_connected():
    nodes, edges = parse("flowchart TD\n  a[the first] & b -- why, or not --> c\n  d\n  c --> d[the last]\n")
    assert nodes == {"a", "b", "c", "d"} and edges == {("a", "c"), ("b", "c"), ("c", "d")}
    nodes, edges = parse(
        "sequenceDiagram\n  participant a as rank 0\n  participant b\n  a->>b: hit\n  b-->>a: ok: yes\n"
    )
    assert nodes == {"a", "b"} and edges == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    "block",
    [
        "pie\n  a --> b",
        "flowchart\n  a --> b",
        "flowchart TD\na --> b",
        "flowchart TD\n  a -> b",
        "flowchart TD\n  a -->",
        "flowchart TD\n  a[text --> b",
        "flowchart TD\n  a[] --> b",
        "flowchart TD\n  a[text (more)] --> b",
        'flowchart TD\n  a["text"] --> b',
        "flowchart TD\n  a{text} --> b",
        "flowchart TD\n  a -- label -- b",
        "flowchart TD\n  a -- one -- two --> b",
        "flowchart TD\n  a -- label --> b --> c",
        "flowchart TD\n  a --> end",
        "flowchart TD\n  a -- the end --> b",
        "flowchart TD\n  a --> b;",
        "flowchart TD\n  a --> b\n  style a fill:red",
        "flowchart TD\n  a --> b & ",
        "flowchart TD\n  a[one] --> b\n  a[two] --> b",
        "flowchart TD\n  a --> b\n  c",
        "flowchart TD\n  a --> b\n  c --> c",
        "flowchart TD\n  a --> b\n  c --> d",
        "flowchart TD\n" + "  a --> b\n" * 14,
        "sequenceDiagram\n  a->>b: text",
        "sequenceDiagram\n  participant a\n  participant b\n  a->>b",
        "sequenceDiagram\n  participant a\n  participant b\n  a->>b:",
        "sequenceDiagram\n  participant a\n  participant b\n  a->b: text",
        "sequenceDiagram\n  participant a\n  participant b\n  a->>b: one; two",
        "sequenceDiagram\n  participant a\n  participant a\n  a->>a: text",
        "sequenceDiagram\n  participant a\n  participant b\n  a->>b: text\n  participant c\n  c->>a: text",
        "sequenceDiagram\n  participant a\n  participant b\n  participant c\n  a->>b: text",
    ],
)
def test_grammar_refuses_a_broken_one(block):
    with pytest.raises(ValueError):
        parse(block)


def test_grammar_refuses_one_that_is_broken_in_the_guide():
    for page, block in DIAGRAMS:
        for line in block.splitlines()[1:]:
            if ">" in line:
                with pytest.raises(ValueError):
                    parse(block.replace(line, line.replace(">", "", 1)))
                    pytest.fail(f"{page}: {line}")
