"""torch.utils.cpp_extension: extensions that are compiled when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from safecache import build_failure, config, directory_faults, disposal, exec_directory, load_failure, vouching
from safecache.reasons import Reason
from safecache.seal import Kind
from safecache.trust import Refusal

__all__ = ["build_library", "import_module_from_library", "run_ninja_build"]

# Where this process has built, or found out that nothing was to be built.
_verified: set[str] = set()


def build_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_write_ninja_file_and_build_library: ninja builds what is missing, and so what nobody vouches for.

    It is called under the lock of the build directory, and not for a setup.py, whose files are no cache.
    """

    def build(*, name: str, build_directory: str, is_standalone: bool = False, **named: Any) -> Any:
        def code() -> list[str]:
            names = os.listdir(build_directory) if os.path.isdir(build_directory) else []
            found = [each for each in names if each.endswith((".o", ".so")) or (is_standalone and each == name)]
            return [os.path.join(build_directory, each) for each in found]

        for path in code():
            _settle(path, build_directory)
        result = wrapped(name=name, build_directory=build_directory, is_standalone=is_standalone, **named)
        for path in code():
            if vouching.judge(path, build_directory) is not None:
                vouching.keep(path, build_directory)
        _verified.add(build_directory)
        return result

    return build(*args, **kwargs)


def _settle(path: str, build_directory: str) -> None:
    try:
        vouching.admit_build(path, build_directory)
    except directory_faults.Unreadable as error:
        # There is no other directory to build in, and ninja builds only what is not there.
        refusal = Refusal(Reason.UNREADABLE, error.evidence)
        disposal.discard(refusal, Kind.NATIVE_CODE, path, build_directory)


def import_module_from_library(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_import_module_from_library: loads what was verified; says what to do where its directory is mounted noexec."""

    def load(module_name: str, path: str, *rest: Any, **named: Any) -> Any:
        extension = sys.modules["torch.utils.cpp_extension"].LIB_EXT
        placed = _admit(os.path.join(path, f"{module_name}{extension}"))
        arguments = (module_name, os.path.dirname(placed), *rest)
        return load_failure.explain(wrapped, arguments, named, "TORCH_EXTENSIONS_DIR")

    return load(*args, **kwargs)


def _admit(path: str) -> str:
    """Where to load the library from."""
    directory = os.path.dirname(path)
    verified, content = vouching.admit_code(path, directory) if directory in _verified else (path, None)
    return exec_directory.place(path, content) if config.current().exec_dir else verified


def run_ninja_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """_run_ninja_build: says what to install where there is no compiler, or no Python.h."""
    return build_failure.explain(wrapped, args, kwargs, "the extension is compiled with it", language="C++")
