"""Sizes and ages as people write them, and as they are written for people."""

from __future__ import annotations

import pytest

from safecache.settings import units


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("4096", 4096),
        ("512B", 512),
        ("10k", 10_000),
        ("10kB", 10_000),
        ("10K", 10_000),
        ("500MiB", 500 * 1024**2),
        ("500 Mi", 500 * 1024**2),
        ("10G", 10 * 1000**3),
        ("10gib", 10 * 1024**3),
        ("1.5T", 1_500 * 1000**3),
        (" 2Ti ", 2 * 1024**4),
    ],
)
def test_size_is_read_with_its_unit(text, number):
    assert units.parse_size(text) == number


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15min", 900), ("36h", 129_600), ("1.5d", 129_600), ("4w", 28 * 86400)]
)
def test_age_is_read_with_its_unit(text, seconds):
    assert units.parse_age(text) == seconds


BAD = [
    "",
    " ",
    "G",
    "0",
    "0.5",
    "-1",
    "1e3",
    "nan",
    "inf",
    "1..5",
    "1,5",
    "10P",
    "10iB",
    "10Bi",
    "1 0",
    "٣G",
    "9" * 400,
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        units.parse_size(text)


@pytest.mark.parametrize("text", ["", "30", "0d", "d", "-1d", "1y", "1m", "30D", "nand", "1d2h"])
def test_what_is_no_age_is_refused(text):
    with pytest.raises(ValueError):
        units.parse_age(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "٣", "1.0", "10k", "x", "1" * 400])
def test_what_is_no_number_of_files_is_refused(text):
    with pytest.raises(ValueError):
        units.parse_count(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (10**16, "10000.0 TB")],
)
def test_size_is_written_with_its_unit(size, text):
    assert units.write_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (86400, "1 d"), (1e7, "115 d")]
)
def test_age_is_written_in_its_largest_unit(seconds, text):
    assert units.write_age(seconds) == text


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, ["file"], "1 file"),
        (0, ["file"], "0 files"),
        (1, ["entry", "entries"], "1 entry"),
        (2, ["is", "are"], "2 are"),
    ],
)
def test_count_agrees_with_its_noun(number, words, text):
    assert units.write_count(number, *words) == text
