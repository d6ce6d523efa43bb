"""The table of `ls`: ordered as asked, whole keys at any width, and nothing that a terminal would obey."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
from conftest import SOURCE
from helpers.caches import DAY, HOUR, key
from helpers.listed import entry, kernel

from safecache.cli import view


@pytest.mark.parametrize(("sort", "order"), [("size", "bca"), ("age", "cab"), ("used", "bac"), ("name", "cab")])
def test_order_is_as_asked_and_limit_cuts_it(cache, listed, sort, order):
    sizes = {"a": 10, "b": 3000, "c": 200}
    ages = {"a": 2 * DAY, "b": DAY, "c": 3 * DAY}
    names = {"a": "cpp_fused_mm", "b": "triton_poi_fused_z", "c": "cpp_fused_add"}
    for name, size in sizes.items():
        entry(cache, name, payload=names[name].encode().ljust(size), age=ages[name])
    keys = [key("a", name) for name in order]
    assert [row["key"] for row in listed("--sort", sort)["entries"]] == keys
    found = listed("--sort", sort, "--limit", "2")
    assert [row["key"] for row in found["entries"]] == keys[:2] and found["total"] == 3


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--limit", "x"), ("--sort", "luck"), ("--kind", "sql")])
def test_argument_that_is_none_is_a_usage_error(cache, run, arguments):
    assert run("ls", *arguments, cache.root).code == 2


def test_table_has_a_line_for_each_and_enough_of_the_key_to_show_it(cache, run):
    for name in "abc":
        entry(cache, name)
    said = run("ls", cache.root)
    header, *rows, total = said.lines
    assert header.split()[:3] == ["name", "key", "kind"] and len(rows) == 3 and total.startswith("3 in all")
    for row in rows:
        assert run("show", row.split()[1], "--in", cache.root).code == 0


def test_keys_that_begin_alike_are_shown_as_far_as_they_differ(cache, run):
    keys = ["a" + "b" * 51, "a" + "b" * 50 + "c", "a" + "b" * 20 + "c" * 31]
    for own in keys:
        cache.file(cache.root / "aotautograd" / own / "entry", HOUR)
    shown = {line.split()[1] for line in run("ls", cache.root).lines[1:4]}
    assert shown == {keys[0], keys[1], keys[2][:22]}


@pytest.mark.parametrize("width", [20, 79, 100, 300])
def test_narrow_terminal_cuts_nothing(cache, run, monkeypatch, width):
    monkeypatch.setattr(view, "Console", partial(view.Console, width=width, force_terminal=True, no_color=True))
    entry(cache, "a", payload=b"triton_poi_fused_" + b"_".join([b"convolution"] * 9))
    lines = [line.ljust(300) for line in run("ls", cache.root).lines[:-1] if "\x1b" not in line]  # the heading is bold
    assert any(key("a", "a")[:10] in line for line in lines)
    column = max(line.index(" ") for line in lines)
    folded = "".join(line[:column].strip() for line in lines)
    assert folded == "triton_poi_fused_" + "_".join(["convolution"] * 9)


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("torch 2.15.0 triton", ["torch", "2.15.0", "triton"]),
        ("abcdefghijklmnopq", ["abcdefgh", "ijklmnop", "q"]),
        ("カーネルの名前です", ["カーネル", "の名前で", "す"]),
        ("", [""]),
    ],
)
def test_cell_is_folded_between_words_or_else_anywhere(monkeypatch, capsys, cell, lines):
    monkeypatch.setattr(view, "Console", partial(view.Console, width=1, force_terminal=True))
    view.Table([view.Heading("x", folds=True), view.Heading("y")], [[cell, "whole"]]).print()
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.removesuffix("whole").rstrip() for line in shown] == lines and "whole" in shown[0]


def test_names_cannot_speak_to_the_terminal_nor_in_markup(cache, run):
    metadata = {"name": "\x1b[2J[red]k[/red]", "target": {"arch": "\x07"}, "triton_version": "3\n9"}
    kernel(cache, "k", metadata)
    said = run("ls", cache.root)
    assert said.code == 0 and "\x1b" not in said.out and "\x07" not in said.out
    assert "\\x1b[2J[red]k[/red]" in said.out and len(said.lines) == 3
    shown = run("show", kernel(cache, "k", metadata).name, "--in", cache.root)
    assert "\x1b" not in shown.out and "\\x1b[2J[red]k[/red]" in shown.out


def test_reader_who_has_seen_enough_is_no_error(cache):
    for number in range(300):  # more than a pipe holds, as JSON
        cache.aot(f"{number}", HOUR)
    command = [sys.executable, "-m", "safecache", "ls", "--json", str(cache.root)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SOURCE)}
    ) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)
