"""What a docstring names in ``double backquotes`` is there: a parameter, or another name in the code that it is of."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import safecache

PACKAGE = Path(safecache.__file__).parent
NAMED = re.compile(r"``([A-Za-z_]\w*)``")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Settings and protocols of Python, and what torch, Triton and a command's JSON call something.
ELSEWHERE = re.compile(r"SAFECACHE_\w+|__\w+__|" + "|".join(sorted(sys.stdlib_module_names)))
UPSTREAM = {"extra_ldflags", "verbose", "code_state_path", "sm_90", "kernel", "strerror", "all_hit", "missing"}


# A pronoun, a preposition or a relative word, whose noun the reader would have to guess.
OPENER = re.compile(
    r"(It|Its|They|Them|That|Those|These|This|One|None|Who|Whose|What|Which|Of|As|In|On|To|For|By|With|From|At|Where|When|Once|"
    r"All|Another|Such|Some|Any|Nothing|Like)\b"
)
LONGEST = 30


def docstrings(node):
    return {ast.get_docstring(each, clean=False) for each in ast.walk(node) if isinstance(each, DOCUMENTED)}


def words(node, but):
    """The identifiers below ``node``, and the words of its texts that are not among ``but``."""
    for each in ast.walk(node):
        yield from (
            name for field in ("id", "attr", "arg", "name") if isinstance(name := getattr(each, field, None), str)
        )
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value not in but:
            yield from re.findall(r"\w+", each.value)


def unknown(node, known, but):
    """(what is documented, what its docstring names) for what neither it nor ``known``, what is around it, has."""
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, DOCUMENTED):
            yield from unknown(each, known, but)
            continue
        own = known | {*words(each, but)}
        for name in NAMED.findall(ast.get_docstring(each) or ""):
            if name not in own | UPSTREAM and not ELSEWHERE.fullmatch(name):
                yield each.name, name
        yield from unknown(each, own if isinstance(each, ast.ClassDef) else known, but)


def of_source(text):
    tree = ast.parse(text)
    but = docstrings(tree)
    known = {name for each in tree.body if not isinstance(each, DOCUMENTED) for name in words(each, but)}
    return list(unknown(tree, known | {each.name for each in tree.body if isinstance(each, DOCUMENTED)}, but))


def test_names_in_docstrings_are_there():
    found = {path.relative_to(PACKAGE): of_source(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {str(path): names for path, names in found.items() if names} == {}


def test_renamed_parameter_is_found():
    text = 'def settle(judge, discard):\n    """Both are called again if ``{}`` returns False."""\n    return judge() or discard()\n'
    assert of_source(text.format("discard")) == []
    assert of_source(text.format("set_aside")) == [("settle", "set_aside")]


def offences(source):
    """First lines that open badly, and sentences of too many words."""
    for text in filter(None, docstrings(ast.parse(source))):
        if OPENER.match(text):
            yield text.partition("\n")[0]
        sentences = re.split(r"(?<=[.:;])\s+|\n\n", re.sub(r"\n(?!\n)", " ", text))
        yield from (sentence for sentence in sentences if len(sentence.split()) > LONGEST)


def test_docstrings_open_with_a_verb_or_a_noun_and_their_sentences_are_short():
    found = {str(path.relative_to(PACKAGE)): list(offences(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_pronoun_and_long_sentence_are_found():
    good = "Return the path of the record"
    assert list(offences(f'def f():\n    """{good}."""')) == []
    assert list(offences('def f():\n    """It has run, and well."""')) == ["It has run, and well."]
    assert len(list(offences(f'def f():\n    """{good}{" and of its seal" * 8}."""'))) == 1
