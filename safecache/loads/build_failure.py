"""A compile that failed for want of a compiler or of Python's headers: which, for what, and what to install."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from safecache.settings import config

__all__ = ["ExplainedProcessError", "explain", "install"]

_PROBE_TIMEOUT = 30  # seconds
_LEAD = "safecache: "


class _Packages(NamedTuple):
    """How a family of distributions installs what is missing."""

    install: str
    compilers: dict[str, str]
    headers: str


_PACKAGES = {
    "debian": _Packages("apt-get install", {"C": "gcc", "C++": "g++"}, "python{version}-dev"),
    "fedora": _Packages("dnf install", {"C": "gcc", "C++": "gcc-c++"}, "python{version}-devel"),
    "suse": _Packages("zypper install", {"C": "gcc", "C++": "gcc-c++"}, "python{compact}-devel"),
    "alpine": _Packages("apk add", {"C": "build-base", "C++": "build-base"}, "python3-dev"),
    "arch": _Packages("pacman -S", {"C": "gcc", "C++": "gcc"}, "python"),
}
_FAMILIES = {"rhel": "fedora", "centos": "fedora", "ubuntu": "debian", "opensuse": "suse", "sles": "suse"}


class ExplainedProcessError(subprocess.CalledProcessError):
    """A CalledProcessError, as Triton lets it out, whose text says more than the exit status."""

    explanation = ""

    def __str__(self) -> str:
        return f"{super().__str__()} {self.explanation}"


def explain(wrapped: Callable[..., Any], args: Any, kwargs: Any, purpose: str, *, language: str) -> Any:
    """Call ``wrapped``, which runs a compiler; what it raises for want of one, or of Python.h, is raised explained.

    The type is the same, the original its cause. Any other error is raised as it is. ``purpose``: what for.
    """
    try:
        return wrapped(*args, **kwargs)
    except Exception as error:
        said = None if _LEAD in str(error) else _explanation(error, purpose, language)
        if said is None:
            raise
        raise _with(error, said) from error


def _explanation(error: Exception, purpose: str, language: str) -> str | None:
    missing = _missing_compiler(error, language)
    if missing is not None:
        return f"{_LEAD}{missing}, and {purpose}. {install(language)} (or let {_variable(language)} name one)."
    command = _command_without_header(error)
    if command is None:
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"{_LEAD}{command[0]} does not find Python.h, the headers of Python {version} ({sys.executable}), "
        f"and {purpose}. {install('headers')}; an environment of conda, uv or pyenv has them if its Python is whole."
    )


# No compiler -------------------------------------------------------------------------------------------------------


def _missing_compiler(error: Exception, language: str) -> str | None:
    variable = _variable(language)
    if isinstance(error, FileNotFoundError):
        # What subprocess could not start; a source or a directory that is gone is there by another name.
        named = error.filename
        is_compiler = isinstance(named, str) and named == config.child_environment().get(variable)
        return f"{variable} names {named}, which is not there" if is_compiler and shutil.which(named) is None else None
    # Triton's own words; torch's, of its exception InvalidCxxCompiler; and the shell's that ninja starts.
    text = str(error)
    if "Failed to find C" in text or "No working C++ compiler found" in text:
        return f"there is no {language} compiler"
    if "ninja: build stopped" in text:
        unknown = re.search(r"(?m)^(?:/bin/)?\S*sh: (?:line )?\d+: (\S+): (?:command )?not found", text)
        return f"there is no {unknown[1]}" if unknown else None
    return None


def _variable(language: str) -> str:
    return "CC" if language == "C" else "CXX"


# No Python.h -------------------------------------------------------------------------------------------------------


def _command_without_header(error: Exception) -> list[str] | None:
    """The compiler's command that failed for want of Python.h: tried again, since Triton does not keep the output."""
    command = getattr(error, "cmd", None)
    output = getattr(error, "output", None)
    if "ninja: build stopped" in str(error):
        command, output = _command_of_ninja(str(error)), str(error)
    if not isinstance(command, list) or not command or (output is not None and "Python.h" not in str(output)):
        return None
    finds_nothing = not _preprocesses(command, "#include <Python.h>\n")
    return command if finds_nothing and _preprocesses(command, "") else None


def _command_of_ninja(text: str) -> list[str]:
    failed = re.search(r"(?m)^FAILED: .*\n(.+)$", text)
    # Only its -I flags are wanted: quoting that a shell would undo does not matter to them.
    return failed[1].split() if failed else []


def _preprocesses(command: list[str], source: str) -> bool:
    compiler, *flags = command
    includes = [value for flag, value in itertools.pairwise(flags) if flag in ("-I", "-isystem")]
    includes += [flag[2:] for flag in flags if flag.startswith("-I") and len(flag) > 2]
    try:
        probe = subprocess.run(
            [compiler, "-E", "-x", "c", *(f"-I{directory}" for directory in includes), "-o", os.devnull, "-"],
            input=source.encode(),
            capture_output=True,
            timeout=_PROBE_TIMEOUT,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return probe.returncode == 0


# What to do --------------------------------------------------------------------------------------------------------


def install(what: str) -> str:
    """How to install, on this distribution, a "C" or "C++" compiler, or Python's "headers"."""
    packages = _packages()
    if packages is None:
        return "Install Python's development headers" if what == "headers" else f"Install a {what} compiler"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    headers = packages.headers.format(version=version, compact=version.replace(".", ""))
    return f"Install it: {packages.install} {headers if what == 'headers' else packages.compilers[what]}"


def _packages() -> _Packages | None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    for name in (release["ID"], *release.get("ID_LIKE", "").split()):
        family = _FAMILIES.get(name.partition("-")[0], name)
        if family in _PACKAGES:
            return _PACKAGES[family]
    return None


def _with(error: Exception, said: str) -> Exception:
    """An error of the same type, and with the same attributes, whose text goes on with what is ``said``."""
    if isinstance(error, subprocess.CalledProcessError):
        explained = ExplainedProcessError(error.returncode, error.cmd, error.output, error.stderr)
        explained.explanation = said
        return explained
    if isinstance(error, OSError):
        return type(error)(error.errno, f"{error.strerror} ({said})", error.filename)
    if isinstance(getattr(error, "output", None), str):  # torch's CppCompileError is made, and pickled, of these two
        return type(error)(error.cmd, f"{error.output}\n{said}")  # type: ignore[attr-defined]
    # Not through __init__: that of torch's InvalidCxxCompiler takes the name of a compiler.
    new = type(error).__new__(type(error))
    new.args = (f"{error} {said}",)
    vars(new).update(vars(error))
    return new
