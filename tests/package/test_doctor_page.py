"""The page of doctor: each finding that is not "ok" has one section, with a fix."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import safecache
from safecache.cli import main

PACKAGE = Path(safecache.__file__).parent
PAGE = (PACKAGE / "guide" / "doctor.md").read_text()
SECTION = re.compile(r"^### (\S+)\n\n((?:\S.*\n)+)\n(\* \*\*Fix\*\*: .+\n(?:  .+\n)*)(?=\n#|\Z)", re.MULTILINE)
SECTIONS = {code: (text, fix) for code, text, fix in SECTION.findall(PAGE)}
TESTS = Path(__file__).parents[1]
# Where each code is produced, and its form and remedy are checked.
PLACES = (
    "doctor/test_*.py",
    "faults/test_load_diagnosis.py",
    "package/test_without_triton.py",
    "remote/test_doctor.py",
)


def levels():
    """The functions of safecache.doctor.finding that each code is given to."""
    found: dict[str, set[str]] = {}
    for path in sorted((PACKAGE / "doctor").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and re.fullmatch(r"finding\.(ok|info|warning|error)", ast.unparse(call.func)):
                code = ast.unparse(call.args[0])
                for name in ("torch", "triton") if "{name}" in code else ("",):
                    text = code.removeprefix("f").strip("'").replace("{name}", name)
                    found.setdefault(text, set()).add(ast.unparse(call.func).partition(".")[2])
    return found


CODES = {code for code, found in levels().items() if found != {"ok"}}


def test_every_code_has_one_section_and_every_section_a_code():
    assert re.findall(r"^### (.+)$", PAGE, re.MULTILINE) == list(SECTIONS)
    assert len(CODES) > 100 and all(re.fullmatch(r"[a-z-]+", code) for code in CODES), CODES
    assert sorted(SECTIONS) == sorted(CODES)


def test_every_code_is_produced_in_a_test():
    named = {
        node.value
        for pattern in PLACES
        for path in TESTS.glob(pattern)
        for test in ast.parse(path.read_text()).body
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_")
        for node in ast.walk(test)
        if isinstance(node, ast.Constant)
    }
    assert CODES - named == set()


def test_one_code_is_not_for_people_who_are_well_and_for_others():
    assert [code for code, found in levels().items() if "ok" in found and found != {"ok"}] == []


def test_command_that_a_finding_names_prints_its_section(run):
    said = run("help", "doctor#low-space")
    assert said.code == 0 and said.lines[0] == "### low-space" and said.out == main._find_section(PAGE, "low-space")
    assert {code: main._find_section(PAGE, code).split()[:2] for code in CODES} == {
        code: ["###", code] for code in CODES
    }


def test_json_of_the_page_is_that_of_the_command(run):
    (fields,) = re.findall(r'`\{"findings": \[\{(.+?)\}\], "worst"\}`', PAGE)
    data = ast.literal_eval(re.sub(r"\bnull\b", "None", run("doctor", "--no-import", "--json").out))
    assert list(data["findings"][0]) == re.findall(r'"(\w+)"', fields) and data.keys() == {"worst", "findings"}
