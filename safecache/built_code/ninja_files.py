"""Ninja's own files: the steps of a build.ninja, what has finished, and the headers that compilers reported."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import string
import struct
from collections.abc import Iterator
from typing import NamedTuple

from safecache.fs import opening

__all__ = ["Deps", "Step", "check_file", "find_compilers", "parse_steps", "read_deps", "read_log"]

# A space in a path is written "$ ", a colon "$:"; behind "|" are inputs that are not on the command line.
_WORD, _ESCAPED = re.compile(r"(?:\$.|[^ $])+"), re.compile(r"\$([ :$])")
_SEPARATORS = ("|", "||")
# Of what a command names besides its inputs, what becomes part of its output.
_LINKED = (".a", ".o", ".cubin")
_LOG, _DEPS = ".ninja_log", ".ninja_deps"
_DEPS_HEADER = b"# ninjadeps\n" + struct.pack("<i", 4)
# Of the first word of a record in it, the bits that are its size; the last one tells a path from what an output needs.
_SIZE = 0x7FFFFFFF


class Step(NamedTuple):
    """Describe a step of a build, with the steps that its output is made from.

    ``parts``: the outputs of those. ``sources``: the inputs of all of them that no step makes, and the archives that
    they are linked with. ``how``: what build.ninja says about all of them. ``tells_headers``: whether its own compiler
    reports the headers that it reads.
    """

    output: str
    parts: tuple[str, ...]
    sources: tuple[str, ...]
    how: str
    tells_headers: bool


class Deps(NamedTuple):
    """State what a compiler reported: the ``headers`` of an output, whose file had the time ``moment``, in ns."""

    moment: int
    headers: list[str]


def parse_steps(text: str, directory: str) -> list[Step]:
    """Return the steps of ``directory``'s build.ninja, each after those that its output is made from."""
    rules = {block.split(None, 2)[1]: block for block in text.split("\n\n") if block.startswith("rule ")}
    lines, words = dict[str, str](), dict[str, list[str]]()
    for line in text.splitlines():
        output, separator, rest = line.removeprefix("build ").partition(": ")
        if line.startswith("build ") and separator:
            output = _unescape_word(output)
            lines[output] = line
            words[output] = [*map(_unescape_word, _WORD.findall(rest))]
    common = [line for line in text.splitlines() if not line.startswith(("build ", "default "))]
    found, linked = dict[str, Step](), [each for each in _find_linked(text, directory) if each not in words]

    def add(output: str) -> None:
        rule, *inputs = words[output]
        made = [word for word in inputs if word in words and word != output]
        for each in made:
            if each not in found:
                add(each)
        parts = dict.fromkeys(part for each in made for part in (*found[each].parts, each))
        own = [word for word in inputs if word not in words and word not in _SEPARATORS]
        tells_headers = "\n  deps = " in rules.get(rule, "")
        if not tells_headers:
            own += linked
        sources = dict.fromkeys([*(source for each in made for source in found[each].sources), *own])
        how = "\n".join([*map(lines.__getitem__, [*parts, output]), *common])
        found[output] = Step(output, tuple(parts), tuple(sources), how, tells_headers)

    for output in words:
        if output not in found:
            add(output)
    return list(found.values())


def find_compilers(text: str) -> tuple[str, ...]:
    """Return the paths of the compilers that build.ninja names, as far as they are found."""
    values = dict(_iter_values(text))
    commands = (values.get(name, "").split() for name in ("cc", "cxx", "nvcc"))
    return tuple(found for words in commands if words and (found := shutil.which(words[0])))


def _iter_values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names in build.ninja, those of a rule or a step indented, and their values."""
    known: dict[str, str] = {}
    for line in re.sub(r"\$\n *", "", text).splitlines():
        name, separator, value = line.partition(" = ")
        if separator:
            value = string.Template(value).safe_substitute(known)
            yield name, value
            if not name.startswith(" "):
                known[name] = value


def _find_linked(text: str, directory: str) -> Iterator[str]:
    """Yield the paths of the archives and images that commands name besides their inputs; absent ones are left out."""
    words = {_unescape_word(word): None for _, value in _iter_values(text) for word in _WORD.findall(value)}
    places = [word[2:] for word in words if word.startswith("-L")]
    for word in words:
        if word.endswith(_LINKED):
            candidates = [word]
        elif word.startswith("-l"):
            candidates = [os.path.join(place, f"lib{word[2:]}{end}") for place in places for end in (".so", ".a")]
        else:
            continue
        found = next((path for path in candidates if os.path.exists(os.path.join(directory, path))), "")
        if found.endswith(_LINKED):
            yield found


def _unescape_word(word: str) -> str:
    return _ESCAPED.sub(r"\1", word)


def read_log(directory: str) -> set[str]:
    """Return the lines of ninja's log: another one each time that an output is finished."""
    return {line for line in os.fsdecode(_read_unverified(directory, _LOG)).splitlines() if line.count("\t") >= 4}


def read_deps(directory: str) -> dict[str, Deps]:
    """Return what compilers have reported, by output. Source: ninja's src/deps_log.h, of version 1.9 to 1.13.

    Not by ``ninja -t deps``, which repairs the file, and so must not run beside the ninja that writes it.
    """
    content = _read_unverified(directory, _DEPS)
    found, paths, at = dict[str, Deps](), list[str](), len(_DEPS_HEADER)
    if not content.startswith(_DEPS_HEADER):
        return found
    try:
        while at < len(content):
            (size,) = struct.unpack_from("<I", content, at)
            record = content[at + 4 : at + 4 + (size & _SIZE)]
            at += 4 + (size & _SIZE)
            if size > _SIZE:
                output, low, high, *headers = struct.unpack(f"<{(size & _SIZE) // 4}I", record)
                found[paths[output]] = Deps(high << 32 | low, [paths[header] for header in headers])
            else:  # a path, its padding and a checksum
                paths.append(os.fsdecode(record[:-4].rstrip(b"\0")))
    except (struct.error, IndexError, ValueError):
        pass  # the rest is still being written
    return found


def _read_unverified(directory: str, name: str) -> bytes:
    try:
        return opening.read_regular(os.path.join(directory, name), check_file)
    except (OSError, opening.UnusableEntry):
        return b""


def check_file(status: os.stat_result) -> None:
    """Raise OSError for what is no file. Sources and headers may have any owner, and may be links."""
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a file")
