"""ELF files are read as nm reads them, and whatever is no ELF file is refused by one error, soon."""

from __future__ import annotations

import importlib.util
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import hypothesis
import pytest
from conftest import NEEDS_TORCH
from hypothesis import strategies

from safecache.doctor.load_check import MACHINES, Elf, NotElfError, TruncatedElfError

SOURCE = """
int given(void), *given_data(void);
__attribute__((weak)) int perhaps(void);
__attribute__((weak)) int weakly(void) { return 1; }
__attribute__((visibility("hidden"))) int hidden(void) { return 2; }
int taken(void) { return given() + *given_data() + weakly() + hidden() + (perhaps ? perhaps() : 0); }
int data = 3;
"""
# Offsets of fields, and of their fields in 64 bits (elf(5)).
E_TYPE, E_MACHINE, E_PHOFF, E_SHOFF, E_PHENTSIZE, E_PHNUM, E_SHENTSIZE, E_SHNUM = 16, 18, 32, 40, 54, 56, 58, 60
SH_TYPE, SH_OFFSET, SH_SIZE, SH_LINK = 4, 24, 32, 40
SHT_DYNSYM = 11
OFFSETS = [
    0,
    1,
    63,
    64,
    65,
    1 << 12,
    (1 << 16) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]


def build(folder: Path, source: str, *flags: str) -> Path:
    path = folder / "probe.so"
    command = ["gcc", "-xc", "-fPIC", "-", *(flags or ("-shared",)), "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("built"), SOURCE)


@pytest.fixture(scope="module")
def content(library):
    return library.read_bytes()


def changed(content: bytes, layout: str, *changes: tuple[int, int]) -> bytes:
    new = bytearray(content)
    for offset, value in changes:
        struct.pack_into(layout, new, offset, value)
    return bytes(new)


def symbol_section(content: bytes) -> int:
    """Where the header of the section is that lists the symbols."""
    (start,) = struct.unpack_from("<Q", content, E_SHOFF)
    size, count = struct.unpack_from("<HH", content, E_SHENTSIZE)
    headers = range(start, start + size * count, size)
    return next(at for at in headers if struct.unpack_from("<I", content, at + SH_TYPE) == (SHT_DYNSYM,))


def nm(path: Path, *flags: str) -> set[str]:
    """The names of its dynamic symbols without their versions, behind one letter for their kind."""
    command = ["nm", "-D", "--format=posix", *flags, str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {f"{line.split()[1]} {line.split()[0].partition('@')[0]}" for line in lines}


def read_all(content: bytes) -> None:
    """Read everything; what is wrong must be told by NotElfError."""
    try:
        elf = Elf(content)
    except NotElfError:
        return
    for symbols in (elf.defined, elf.undefined):
        try:
            symbols()
        except NotElfError:
            pass


# Headers ------------------------------------------------------------------------------------------------------------


def test_library_has_the_machine_of_this_process(content):
    elf, here = Elf(content), Elf(Path(sys.executable).read_bytes())
    assert elf.is_library and elf.machine == here.machine and elf.machine in MACHINES


def test_sizes_are_those_of_the_segments(tmp_path):
    content = build(tmp_path, SOURCE + "char large[1 << 20];").read_bytes()
    elf = Elf(content)
    assert len(content) // 2 < elf.loaded_size < len(content), "the section headers, behind them, are not loaded"
    assert 1 << 20 < elf.memory_size < 1 << 21


def test_object_file_is_no_library(tmp_path):
    assert not Elf(build(tmp_path, SOURCE, "-c").read_bytes()).is_library


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 6, 20, 63, 64, 100])
def test_library_cut_short_within_its_headers_is_called_truncated(content, size):
    with pytest.raises(TruncatedElfError, match=f"{size} bytes"):
        Elf(content[:size])


def test_library_of_32_bits_is_refused(content):
    with pytest.raises(NotElfError, match="32 bits") as caught:
        Elf(changed(content, "B", (4, 1)))
    assert not isinstance(caught.value, TruncatedElfError)


@pytest.mark.parametrize("text", [b"\0", b"#!/bin/sh\n", b"\x7fELK", b"\x7fELf" + bytes(100), b"MZ" * 100, bytes(1000)])
def test_what_is_no_elf_file_is_refused_with_its_beginning(text):
    with pytest.raises(NotElfError) as caught:
        Elf(text)
    assert repr(text[:8]) in str(caught.value) and not isinstance(caught.value, TruncatedElfError)


@pytest.mark.parametrize("offset, value", [(4, 0), (4, 3), (5, 0), (5, 3)])
def test_class_or_byte_order_that_there_is_not_is_called_damage(content, offset, value):
    with pytest.raises(NotElfError, match="damaged") as caught:
        Elf(changed(content, "B", (offset, value)))
    assert not isinstance(caught.value, TruncatedElfError)


def test_big_endian_library_is_read():
    # Of an s390x: a header, program headers of PT_LOAD and of PT_NOTE, which need not be there, no sections.
    identity = b"\x7fELF\x02\x02\x01".ljust(16, b"\0")
    header = struct.pack(">16sHHIQQQIHHHHHH", identity, 3, 22, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    programs = struct.pack(">IIQQQQQQ", 1, 5, 0, 0, 0, 120, 4096, 4096)
    programs += struct.pack(">IIQQQQQQ", 4, 4, 0, 0, 0, 9999, 9999, 8)
    elf = Elf(header + programs)
    assert (elf.is_library, MACHINES[elf.machine], elf.loaded_size, elf.memory_size) == (True, "s390x", 120, 4096)
    assert (elf.defined(), elf.undefined()) == (set(), [])


def test_little_endian_library_that_says_big_endian_is_refused(content):
    with pytest.raises(NotElfError):
        Elf(changed(content, "B", (5, 2)))


# Symbols ------------------------------------------------------------------------------------------------------------


def test_symbols_are_those_of_nm(library, content):
    elf = Elf(content)
    assert elf.defined() == {name[2:] for name in nm(library, "--defined-only")} >= {"taken", "data", "weakly"}
    assert set(elf.undefined()) == {name[2:] for name in nm(library, "--undefined-only") if name[0] == "U"}
    assert set(elf.undefined()) == {"given", "given_data"}


def test_weak_symbol_that_is_missing_is_not_undefined(library, content):
    assert "w perhaps" in nm(library)
    assert "perhaps" not in Elf(content).undefined() and "perhaps" not in Elf(content).defined()
    assert "hidden" not in Elf(content).defined()


def test_symbols_have_no_version(tmp_path):
    (tmp_path / "map").write_text("TAKEN_1 { global: taken; local: *; };")
    path = build(tmp_path, SOURCE, "-shared", f"-Wl,--version-script={tmp_path / 'map'}")
    assert Elf(path.read_bytes()).defined() == {"taken", "TAKEN_1"}


@NEEDS_TORCH
@pytest.mark.parametrize("name", ["torch._C", "lib/libc10.so", "lib/libtorch_python.so"])
def test_symbols_of_torch_are_those_of_nm(name):
    folder = Path(importlib.util.find_spec("torch").origin).parent
    path = folder / name if "/" in name else next(folder.glob("_C.*.so"))
    elf = Elf(path.read_bytes())
    assert elf.is_library
    assert elf.defined() == {symbol[2:] for symbol in nm(path, "--defined-only")}
    undefined = elf.undefined()
    assert set(undefined) == {symbol[2:] for symbol in nm(path, "--undefined-only") if symbol[0] == "U"}
    assert len(undefined) == len(set(undefined))


def test_library_without_section_headers_tells_no_symbols(content):
    elf = Elf(changed(content, "<H", (E_SHNUM, 0)))
    assert (elf.defined(), elf.undefined()) == (set(), [])


@pytest.mark.parametrize("value", [None, 1 << 16, (1 << 32) - 1])
def test_section_of_names_that_there_is_not_is_refused(content, value):
    value = value or struct.unpack_from("<H", content, E_SHNUM)[0]
    elf = Elf(changed(content, "<I", (symbol_section(content) + SH_LINK, value)))
    with pytest.raises(NotElfError, match="names of its symbols"):
        elf.undefined()


def test_name_that_does_not_end_is_refused(content):
    section = symbol_section(content)
    (table,) = struct.unpack_from("<Q", content, section + SH_OFFSET)
    with pytest.raises(NotElfError, match="does not end"):
        Elf(changed(content, "<I", (table + 24, (1 << 32) - 1))).defined()


@pytest.mark.parametrize("value", [value for value in OFFSETS if value > 1 << 12])
@pytest.mark.parametrize("field", [SH_OFFSET, SH_SIZE])
def test_list_of_symbols_beyond_the_end_is_refused(content, field, value):
    elf = Elf(changed(content, "<Q", (symbol_section(content) + field, value)))
    with pytest.raises(NotElfError):
        elf.defined()


# Damage -------------------------------------------------------------------------------------------------------------


def test_names_that_overlap_do_not_fill_the_memory():
    """1,000 symbols of one name each, all of 100 kB, and all the same 100 kB of the file."""
    symbols = struct.pack("<IBBHQQ", 1, 0x12, 0, 0, 0, 0) * 1000
    sections = [(0, SHT_DYNSYM, 0, 0, 192, len(symbols), 1, 0, 8, 24), (0, 3, 0, 0, 192 + len(symbols), 0, 0, 0, 1, 0)]
    table = b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 64, 0, 64, 56, 0, 64, 2, 0)
    elf = Elf(header + table + symbols + b"\0" + b"a" * 100_000 + b"\0")
    tracemalloc.start()
    try:
        with pytest.raises(NotElfError, match="longer than the whole file"):
            elf.undefined()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_thousands_of_lists_of_symbols_are_read_as_one(content):
    """65,535 sections that are all the same list: to read each would take minutes."""
    start = symbol_section(content)
    many = changed(changed(content, "<Q", (E_SHOFF, start)), "<H", (E_SHENTSIZE, 0), (E_SHNUM, 65535))
    symbols = list(Elf(many)._symbols())
    (size,) = struct.unpack_from("<Q", content, start + SH_SIZE)
    assert len(symbols) <= size // 24


FIELDS = {E_PHOFF: "<Q", E_SHOFF: "<Q", E_PHENTSIZE: "<H", E_PHNUM: "<H", E_SHENTSIZE: "<H", E_SHNUM: "<H"}


@pytest.mark.parametrize("offset", FIELDS)
@pytest.mark.parametrize("value", OFFSETS)
def test_any_value_in_a_header_is_survived(content, offset, value):
    layout = FIELDS[offset]
    read_all(changed(content, layout, (offset, value % (1 << 8 * struct.calcsize(layout)))))


@hypothesis.settings(max_examples=300)
@hypothesis.given(strategies.data())
def test_damage_raises_nothing_but_the_one_error(content, data):
    section = symbol_section(content)
    (table,) = struct.unpack_from("<Q", content, section + SH_OFFSET)
    # Most bytes are code: those that are read come up as often as all the others.
    read = strategies.sampled_from([*range(64), *range(section, section + 64), *range(table, table + 24 * 8)])
    places = read | strategies.integers(0, len(content) - 1)
    new = bytearray(content)
    for place, value in data.draw(strategies.lists(strategies.tuples(places, strategies.integers(0, 255)), max_size=8)):
        new[place] = value
    for offset in data.draw(strategies.lists(strategies.sampled_from([SH_OFFSET, SH_SIZE]), max_size=2)):
        struct.pack_into("<Q", new, section + offset, data.draw(strategies.sampled_from(OFFSETS)))
    read_all(bytes(new[: data.draw(strategies.just(len(new)) | strategies.integers(0, len(new)))]))


@hypothesis.given(strategies.binary(max_size=400))
def test_anything_behind_the_magic_bytes_is_survived(rest):
    read_all(b"\x7fELF\x02\x01" + rest)
    read_all(rest)


def test_every_truncation_is_survived(content):
    for size in range(len(content)):
        read_all(content[:size])
