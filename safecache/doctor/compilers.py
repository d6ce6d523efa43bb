"""The compilers that Triton and Inductor start, and Python's headers, tried as they are used."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping

from safecache.doctor import finding, programs
from safecache.doctor.finding import Finding
from safecache.loads import build_failure

__all__ = ["check"]

# Where nothing is named: ``_find_compiler`` of triton/runtime/build.py, ``cpp.cxx`` of torch/_inductor/config.py.
_LANGUAGES = {
    "C": ("CC", ("gcc", "clang"), "c", "#include <stdio.h>\n", "Triton compiles its launchers"),
    "C++": ("CXX", ("g++",), "c++", "#include <new>\n", "Inductor compiles for the CPU"),
}


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """A compiler of each language that is missing or does not work, and headers that it does not find."""
    working = []
    for language, (variable, names, flag, source, purpose) in _LANGUAGES.items():
        command = _command(environ, variable, names)
        remedy = f"{_install(language)}  # or export {variable}=PATH of one"
        if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
            named = f"{variable}={environ[variable]}" if environ.get(variable) else " or ".join(names)
            evidence = f"There is no {language} compiler: {named} is not found. {purpose} with it."
            yield finding.error("no-compiler", evidence, remedy)
            continue
        said = _against([*command, "-x", flag], source, environ)
        if said is None:
            working.append((command, flag))
        else:
            evidence = f"The {language} compiler {shlex.join(command)} does not work: {said}. {purpose} with it."
            yield finding.error("broken-compiler", evidence, remedy)
    for command, flag in working[:1]:
        yield from _headers(command, flag, environ)
    for command, flag in working:
        if flag == "c++":
            yield from _runtime(command, environ)
    if working:
        yield finding.ok("compilers", f"{' and '.join(shlex.join(command) for command, _ in working)} can be used.")


def _command(environ: Mapping[str, str], variable: str, names: tuple[str, ...]) -> list[str] | None:
    named = environ.get(variable)
    if named:
        # Triton takes it for the name of a program, torch 2.15 for a command.
        return [named] if variable == "CC" else shlex.split(named)
    return next(([name] for name in names if shutil.which(name, path=environ.get("PATH"))), None)


def _headers(command: list[str], flag: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    include = sysconfig.get_paths()["include"]
    if _against([*command, "-x", flag, f"-I{include}"], "#include <Python.h>\n", environ) is not None:
        evidence = f"{shlex.join(command)} does not find Python.h in {include}: nothing can be compiled."
        remedy = f"{_install('headers')}  # an environment of conda, uv or pyenv has them"
        yield finding.error("no-python-headers", evidence, remedy)


def _runtime(command: list[str], environ: Mapping[str, str]) -> Iterator[Finding]:
    """A library with a copy of the C++ runtime finds the locales of this process's with the numbers of its own."""
    try:
        library = _linked(command, environ)
    except OSError:
        return  # what there is no temporary directory for, or no library of, is told of elsewhere
    if b"libstdc++.so" in library or b"libc++.so" in library:
        return
    evidence = (
        f"{shlex.join(command)} links a copy of the C++ runtime into each library. An AOTInductor package that it "
        "builds ends the process with a segmentation fault, or std::bad_cast, when it is loaded."
    )
    remedy = "export CXX=/usr/bin/g++  # or another that has a libstdc++.so; and build the packages anew"
    yield finding.warning("static-libstdcxx", evidence, remedy)


def _linked(command: list[str], environ: Mapping[str, str]) -> bytes:
    """A library that has a use for the runtime. Raises OSError where there cannot be one."""
    with tempfile.TemporaryDirectory(prefix="safecache-doctor-") as directory:
        path = os.path.join(directory, "library.so")
        link = [*command, "-shared", "-fPIC", "-x", "c++", "-", "-o", path]
        programs.objection(link, source="#include <locale>\nstd::locale locale;\n", environ=environ)
        with open(path, "rb") as file:
            return file.read()


def _install(what: str) -> str:
    return build_failure.install(what).removeprefix("Install it: ")


def _against(command: list[str], source: str, environ: Mapping[str, str]) -> str | None:
    """What the compiler says first against ``source``; nothing is written."""
    return programs.objection([*command, "-fsyntax-only", "-"], source=source, environ=environ, line=0)
