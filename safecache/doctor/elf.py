"""What an ELF file says of itself, read without loading it: 64 bits, as every platform of torch (elf(5))."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["MACHINES", "Elf", "NotElfError", "TruncatedElfError"]

_HEADER = struct.Struct("16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("IIQQQQQQ")
_SECTION = struct.Struct("IIQQQQIIQQ")
_SYMBOL = struct.Struct("IBBHQQ")

_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_ET_DYN = 3
_SHT_DYNSYM = 11
_STB_GLOBAL = 1
_BYTE_ORDER = {1: "<", 2: ">"}

# Of the platforms that there are wheels of torch for, and their neighbours; by the numbers of e_machine.
MACHINES = {3: "i386", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


class NotElfError(Exception):
    """The file is no ELF file, or not one that a process of this platform could load; says why."""


class TruncatedElfError(NotElfError):
    """It begins as an ELF file does, and ends before its headers do."""


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Elf:
    """One ELF file: ``machine`` as in MACHINES, and ``loaded_size``, how many bytes of the file loading it needs."""

    def __init__(self, content: bytes) -> None:
        """Read the headers. Raises NotElfError."""
        self._content = content
        if not content.startswith(_MAGIC[: len(content)]):
            raise NotElfError(f"it begins with {content[:8]!r}, not with the four bytes of an ELF file")
        if content[4:5] == b"\x01":
            raise NotElfError("it is an ELF file of 32 bits")
        if len(content) < _HEADER.size:
            raise TruncatedElfError(f"it has {len(content)} bytes, and the header alone {_HEADER.size}")
        order = _BYTE_ORDER.get(content[5]) if content[4] == _CLASS_64 else None
        if order is None:
            raise NotElfError(f"its ELF header is damaged: {content[: _HEADER.size]!r}")
        self._order = order
        header = self._unpack(_HEADER, 0)
        self.type, self.machine = header[1], header[2]
        self._section_table = (header[6], header[11], header[12])
        programs = [self._unpack(_PROGRAM, header[5] + number * header[9]) for number in range(header[10])]
        # PT_LOAD: offset and size in the file
        self.loaded_size = max((program[2] + program[5] for program in programs if program[0] == 1), default=0)
        self.memory_size = sum(program[6] for program in programs if program[0] == 1)

    @property
    def is_library(self) -> bool:
        """Whether it is one that can be loaded, and not an object file or a core dump."""
        return self.type == _ET_DYN

    def _unpack(self, layout: struct.Struct, offset: int) -> tuple[int, ...]:
        if offset + layout.size > len(self._content):
            raise TruncatedElfError(f"its headers go on beyond the end of the file, at {len(self._content)} bytes")
        fields: tuple[int, ...] = struct.unpack_from(self._order + layout.format, self._content, offset)
        return fields

    def undefined(self) -> list[str]:
        """The symbols that others must define for it to be loaded: global ones, since weak ones may be missing.

        Raises NotElfError, as ``defined`` does, if the list is damaged or cut off: the loader has another way to it.
        """
        return [name for name, binding, defined in self._symbols() if not defined and binding == _STB_GLOBAL]

    def defined(self) -> set[str]:
        """The symbols that it defines for others."""
        return {name for name, _, defined in self._symbols() if defined}

    def _symbols(self) -> Iterator[tuple[str, int, bool]]:
        offset, size, count = self._section_table
        sections = [_Section(*self._unpack(_SECTION, offset + number * size)) for number in range(count)]
        # There is one at most (elf(5)); to believe in thousands would take as many times as long.
        symbols = next((section for section in sections if section.type == _SHT_DYNSYM), None)
        if symbols is None:
            return
        if symbols.link >= count:
            raise NotElfError(f"the names of its symbols are in section {symbols.link} of {count}")
        strings = sections[symbols.link].offset
        table = memoryview(self._content)[symbols.offset : symbols.offset + symbols.size]
        if len(table) != symbols.size or symbols.size % _SYMBOL.size:
            raise NotElfError(f"its list of symbols has {len(table)} bytes of {symbols.size}")
        left = len(self._content)
        for name, info, _, index, _, _ in struct.Struct(self._order + _SYMBOL.format).iter_unpack(table):
            if name:
                text = self._string(strings + name)
                left -= len(text)
                if left < 0:
                    raise NotElfError("the names of its symbols are longer than the whole file")
                yield text.decode("utf-8", "replace"), info >> 4, index != 0

    def _string(self, start: int) -> bytes:
        end = self._content.find(b"\0", start)
        if end < 0:
            raise NotElfError(f"the name of a symbol, at {start}, does not end")
        return self._content[start:end]
