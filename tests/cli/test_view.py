"""A view prints its data as JSON, or its lines and tables: whole, in their order, each on its stream."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import SOURCE

from safecache.cli.view import Complaint, Heading, Table, View

TABLE = Table([Heading("name"), Heading("size", right=True)], [("a\x1b[31m", "1"), ("b", "100")], {"b": "red"})
VIEW = View({"b": 1}, ["first\nline", TABLE, Complaint("what is wrong"), "last"], 3)


def test_text_is_printed_in_its_order_with_nothing_that_a_terminal_obeys(capsys):
    assert VIEW.show(as_json=False) == 3
    said = capsys.readouterr()
    assert said.out == "first\\nline\nname      size\na\\x1b[31m    1\nb          100\nlast\n"
    assert said.err == "what is wrong\n"


def test_json_is_the_data_alone_and_iterates_no_text(capsys):
    view = VIEW._replace(text=(pytest.fail(line) for line in ["printed"]))
    assert view.show(as_json=True) == 3
    said = capsys.readouterr()
    assert (json.loads(said.out), said.err) == ({"b": 1}, "")


def test_what_has_no_data_is_printed_as_text(capsys):
    assert View(None, ["done"]).show(as_json=True) == 0
    assert capsys.readouterr().out == "done\n"


def test_run_does_not_wait_for_what_prints():
    code = "import sys; import safecache.cli.main; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SOURCE)
