"""Explain loads and compiles that fail because of their environment, with a remedy.

May import the packages up to signing.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from safecache.fs import mounts
from safecache.settings import config

__all__ = [
    "REFUSED",
    "ExplainedProcessError",
    "append_text",
    "explain_build",
    "explain_error",
    "explain_load",
    "find_substitute",
    "is_explained",
    "make_export",
    "make_remedy",
    "write_advice",
]

# As the dynamic loader words it, after the path; the errno is EPERM, but it does not say so.
REFUSED = "failed to map segment from shared object"
_LOAD_LEAD = "safecache: the file is"
# The wording of ours, and of a source with the patch noexec-guidance.
_NOEXEC = "is mounted noexec: no code can be loaded from there."
# AOTInductor's loader puts "Error in dlopen: " before the path.
_PATH = re.compile(rf"(/[^\n:]+): {REFUSED}")


def explain_load(wrapped: Callable[..., Any], args: Any, kwargs: Any, variable: str | None) -> Any:
    """Call ``wrapped``, which loads code, and return its result; explain an error that a noexec mount has caused.

    ``variable``: the environment variable that moves this cache; None if none does. Other errors are raised unchanged.
    """
    try:
        return wrapped(*args, **kwargs)
    except Exception as error:
        better = explain_error(error, variable)
        if better is None:
            raise
        raise better from error


def explain_error(error: BaseException, variable: str | None) -> BaseException | None:
    """The same type of error with an explanation, if ``error`` came from a noexec mount; None if it did not."""
    if is_explained(error):
        return None
    # torch.ops.load_library keeps the loader's words in the cause.
    named = _PATH.search(str(error)) or _PATH.search(str(error.__cause__))
    if named is None or not mounts.is_noexec(named[1]):
        return None
    return _copy_error(error, f"{named[1]}: {REFUSED}. {_LOAD_LEAD}{write_advice(named[1], variable)}")


def is_explained(error: BaseException) -> bool:
    """Tell whether the error's text has an explanation already: from explained(), or from a patched source."""
    return _NOEXEC in str(error)


def write_advice(path: str, variable: str | None) -> str:
    """Return a clause, after "the file is": on which noexec mount ``path`` is, and which directory to use instead.

    ``variable``: the environment variable that names another directory; None if there is none.
    """
    mount = mounts.find_mount(path)
    said = f" on {mount or 'a file system'}, which {_NOEXEC}"
    if variable is None:
        point = mount.point if mount else os.path.dirname(path)
        return f"{said} This release of torch has no setting for this directory. Help: mount -o remount,exec {point}"
    found = find_substitute(variable)
    if found is None:
        return f"{said} Help: set {variable} to a directory that is not mounted noexec; none was found on this machine"
    return f"{said} Help: {found[1]} (checked: writable, not noexec)"


def find_substitute(variable: str) -> tuple[str, str] | None:
    """Return a directory of this machine that is writable and fit to load code from, and a shell line to paste.

    The line sets ``variable`` to a place there. None if no such directory was found.
    """
    directory = mounts.find_executable_directory(_list_candidates())
    if directory is None:
        return None
    # A name of our own, since others may be able to write to the directory too; TMPDIR's must exist already.
    place = directory if variable == "TMPDIR" else os.path.join(directory, f"{variable.lower()}-{os.getuid()}")
    return directory, make_export(variable, shlex.quote(place))


def make_export(variable: str, directory: str = "DIR") -> str:
    """Return a shell line that sets ``variable`` to the directory; SAFECACHE_TIERS gets it as the local tier."""
    return f"export {variable}={directory}{',cache' if variable == 'SAFECACHE_TIERS' else ''}"


def _list_candidates() -> list[str]:
    environment = config.get_environment()
    home = environment.get("HOME", "")
    cache = environment.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if home else "")
    return [path for path in (cache, home, "/var/tmp", _find_temporary(), os.getcwd()) if path]


def _find_temporary() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return ""  # none is writable


def _copy_error(error: BaseException, text: str) -> BaseException | None:
    """An error of the same type, for callers that catch it; None if the type does not take just a text."""
    try:
        new = type(error)(text)
    except Exception:
        return None
    if isinstance(error, ImportError) and isinstance(new, ImportError):
        new.name, new.path = error.name, error.path
    return new


_PROBE_TIMEOUT = 30  # seconds
_BUILD_LEAD = "safecache: "


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
    """A CalledProcessError, which Triton lets through, whose text says more than the exit status."""

    explanation = ""

    def __str__(self) -> str:
        return f"{super().__str__()} {self.explanation}"


def explain_build(wrapped: Callable[..., Any], args: Any, kwargs: Any, purpose: str, *, language: str) -> Any:
    """Call ``wrapped``, which runs a compiler, and return its result; explain an error for lack of it or of Python.h.

    ``args``, ``kwargs``: of ``wrapped``. ``purpose``: a clause on what needs the compiler. ``language``: "C" or "C++".
    The explained error has the same type, and the original as its cause. Any other error is raised unchanged.
    """
    try:
        return wrapped(*args, **kwargs)
    except Exception as error:
        said = None if _BUILD_LEAD in str(error) else _find_explanation(error, purpose, language)
        if said is None:
            raise
        raise append_text(error, said) from error


def _find_explanation(error: Exception, purpose: str, language: str) -> str | None:
    missing = _find_missing_compiler(error, language)
    if missing is not None:
        return f"{_BUILD_LEAD}{missing}, and {purpose}. {make_remedy(language)} (or let {_name_cc(language)} name one)."
    command = _find_failed_command(error)
    if command is None:
        return None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        f"{_BUILD_LEAD}{command[0]} does not find Python.h, the headers of Python {version} ({sys.executable}), and "
        f"{purpose}. {make_remedy('headers')}; an environment of conda, uv or pyenv has them if its Python is whole."
    )


# No compiler -------------------------------------------------------------------------------------------------------


def _find_missing_compiler(error: Exception, language: str) -> str | None:
    variable = _name_cc(language)
    if isinstance(error, FileNotFoundError):
        # The program that subprocess could not start; a missing source or directory would have another name.
        named = error.filename
        is_compiler = isinstance(named, str) and named == config.get_environment().get(variable)
        return f"{variable} names {named}, which is not there" if is_compiler and shutil.which(named) is None else None
    # Messages of Triton; of torch's exception InvalidCxxCompiler; and of the shell that ninja starts.
    text = str(error)
    if "Failed to find C" in text or "No working C++ compiler found" in text:
        return f"there is no {language} compiler"
    if "ninja: build stopped" in text:
        unknown = re.search(r"(?m)^(?:/bin/)?\S*sh: (?:line )?\d+: (\S+): (?:command )?not found", text)
        return f"there is no {unknown[1]}" if unknown else None
    return None


def _name_cc(language: str) -> str:
    return "CC" if language == "C" else "CXX"


# No Python.h -------------------------------------------------------------------------------------------------------


def _find_failed_command(error: Exception) -> list[str] | None:
    """The compiler command that failed for lack of Python.h: tried again, since Triton does not keep the output."""
    command = getattr(error, "cmd", None)
    output = getattr(error, "output", None)
    if "ninja: build stopped" in str(error):
        command, output = _find_ninja_command(str(error)), str(error)
    if not isinstance(command, list) or not command or (output is not None and "Python.h" not in str(output)):
        return None
    finds_nothing = not _can_preprocess(command, "#include <Python.h>\n")
    return command if finds_nothing and _can_preprocess(command, "") else None


def _find_ninja_command(text: str) -> list[str]:
    failed = re.search(r"(?m)^FAILED: .*\n(.+)$", text)
    # Only its -I flags are needed, for which shell quoting does not matter.
    return failed[1].split() if failed else []


def _can_preprocess(command: list[str], source: str) -> bool:
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


def make_remedy(what: str) -> str:
    """Return a sentence on how to install a "C" or "C++" compiler, or Python's "headers", on this distribution."""
    packages = _find_packages()
    if packages is None:
        return "Install Python's development headers" if what == "headers" else f"Install a {what} compiler"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    headers = packages.headers.format(version=version, compact=version.replace(".", ""))
    return f"Install it: {packages.install} {headers if what == 'headers' else packages.compilers[what]}"


def _find_packages() -> _Packages | None:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    for name in (release["ID"], *release.get("ID_LIKE", "").split()):
        family = _FAMILIES.get(name.partition("-")[0], name)
        if family in _PACKAGES:
            return _PACKAGES[family]
    return None


def append_text(error: Exception, said: str) -> Exception:
    """Return an error of the same type and with the same attributes, with ``said`` appended to its text."""
    if isinstance(error, subprocess.CalledProcessError):
        explained = ExplainedProcessError(error.returncode, error.cmd, error.output, error.stderr)
        explained.explanation = said
        return explained
    if isinstance(error, OSError):
        return type(error)(error.errno, f"{error.strerror} ({said})", error.filename)
    if isinstance(getattr(error, "output", None), str):  # torch's CppCompileError is made, and pickled, from these two
        return type(error)(error.cmd, f"{error.output}\n{said}")  # type: ignore[attr-defined]
    # Not by __init__, which in torch's InvalidCxxCompiler takes the name of a compiler.
    new = type(error).__new__(type(error))
    new.args = (f"{error} {said}",)
    vars(new).update(vars(error))
    return new
