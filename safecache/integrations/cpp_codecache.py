"""C++: finding and running the compiler, precompiled headers, libraries, and the probe of the CPU."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from safecache import compiles, load_errors
from safecache.built_code import exec_directory, generated, library_builds, lock_guards
from safecache.errors import EntryRefusedError, SafecacheError
from safecache.fs import mounts, ownership
from safecache.integrations import installation
from safecache.patching.hook import hook, verifier
from safecache.places.layout import CodeFile
from safecache.reporting import events, report, waits
from safecache.reporting.kinds import Count, Kind, Reason
from safecache.reporting.report import Refusal
from safecache.session import Part, inherit
from safecache.settings import config
from safecache.signing import keyring, provenance, trust
from safecache.store import gate
from safecache.tiers import directory_faults, fallback
from safecache.tiers.directory_faults import Fault

__all__ = [
    "check_build",
    "cpp_compiler_search",
    "install_gcc_via_conda",
    "load_async",
    "precompile_header",
    "probe_load",
    "run_compile_cmd",
    "valid_vec_isa_list",
]

# The hook that upstream supports, and why it does not do.
_INSTEAD_VEC_ISA_OK = "torch._inductor.config.cpp.vec_isa_ok: it is the answer, which is to be found out"

# Seconds for which no header is precompiled after a failure, since another attempt may wait for a lock.
_PATIENCE = 600.0
# Older releases probe the CPU's vector instructions in every process, and leave no marker that a probe was loaded.
_PROBE_MARKERS_FROM = (2, 14)
_REMEDY = "Kernels are built without precompiled headers for now, which takes some seconds more for each."


@verifier(
    "torch._inductor.codecache:CppCodeCache.load_async(cls, main_code, device_type=, submit_fn=, extra_flags=, "
    "optimized_code=)",  # 2.11, 2.12
    "cls, main_code, device_type=, submit_fn=, extra_flags=, optimized_code=, needs_vec_isa=, kernel_needs_vec_isa=",
    why="Stock torch needs a writable cache and its lock even for a finished library, so a read-only warm cache "
    "fails the compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L4153",
)
def load_async(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    """CppCodeCache.load_async: writes, builds and loads again in the fallback directory if the cache is unusable."""

    def start() -> Callable[[], Any]:
        with compiles.override_scope(build=library_builds.Build(), lock_guard=_spare_lock):
            load: Callable[[], Any] = wrapped(*args, **kwargs)
        return load

    generated.admit_kernels(*(code for code in (*args[:1], *kwargs.values()) if isinstance(code, str)))
    load = fallback.attempt(start)

    def finish_load() -> Any:
        try:
            return load()
        except Exception as error:
            if not fallback.replace_if_failed(_convert_to_fault(error)):
                raise
        for key in [key for key, known in instance.cache.items() if known is load]:
            del instance.cache[key]
            # A module that failed to execute, but that torch would take for a loaded one.
            sys.modules.pop(f"{key}.{getattr(instance, 'entry_function', '')}", None)
        return start()()

    return finish_load


def _spare_lock(lock: lock_guards.Lock) -> None:
    """Torch looks for a library under this lock and, if there is none, has it built under the same lock."""
    if lock_guards.find_source_key(lock) is None:
        lock.take()


def _convert_to_fault(error: Exception) -> Exception:
    """Return the error; in default mode, for a library replaced since it was verified, a fault of its directory."""
    if not isinstance(error, EntryRefusedError) or config.current().strict:
        return error
    return directory_faults.Immovable(errno.EPERM, str(error), config.cache_directory())


def _has_fetched() -> bool:
    """Tell whether this process has had anything from a pack or the remote: most libraries come from there then."""
    counters = events.read_counters()
    return any(counters.get(count.value) for count in (Count.PACK_HIT, Count.REMOTE_HIT))


@verifier(
    "torch._inductor.codecache:_precompile_header(header, hashable_cmd_line, compile_command)",
    why="Stock torch precompiles a header of 150 MB even if the library exists, and any failure there ends the "
    "compile.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/codecache.py#L3896",
)
def precompile_header(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> str | None:
    """_precompile_header: None if there is no room for some 150 MB, no lock, no signing key, or no need.

    Kernels are then built without a precompiled header: after a failure, for _PATIENCE seconds. There is no need for
    one where the library is there. Torch asks for it all the same, and it does not lie in the cache: where that was
    copied to, or mounted, or another user has it, a hit would compile one.
    """
    if library_builds.current_build().is_found():
        return None
    # Without a signing key the next process could not verify the header. Where a remote has given the entry it has the
    # libraries too, and a header takes longer than all else: what it lacks is built without one.
    if waits.breaker.now.get_seconds_left("headers") or keyring.current().signing is None or _has_fetched():
        return None
    try:
        path: str = wrapped(*args, **kwargs)
        return path
    except SafecacheError:
        raise
    except Exception as error:
        place = sys.modules["torch._inductor.codecache"]._HEADER_DIR
        fault = _find_fault(error, place)
        if fault is None:
            raise
        waits.breaker.now.leave_alone("headers", _PATIENCE)
        message = f"cannot precompile headers in {place}"
        events.report(fault.reason, message, why=fault.text, cause=place, remedy=_REMEDY, error=error)
        return None


def _find_fault(error: Exception, place: str) -> Fault | None:
    directories = (place, tempfile.gettempdir())
    fault = directory_faults.find(error, *directories)
    if fault is not None:
        return fault
    against = next(filter(None, map(directory_faults.probe, directories)), None)
    return None if against is None else Fault(Reason.UNUSABLE_DIRECTORY, against)


_PURPOSE = "Inductor compiles its CPU kernels and their launchers with it"

# Where this process has had conda install a compiler.
_installed: Part[set[str]] = Part(set, inherit)


@hook(
    "torch._inductor.cpp_builder:cpp_compiler_search(search)",
    why="Stock torch ends the compile with InvalidCxxCompiler, which names neither the purpose of the compiler nor "
    "what to install.",
    issue="https://github.com/pytorch/pytorch/issues/92745",
)
def cpp_compiler_search(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """cpp_compiler_search: all errors of its own mean that there is no compiler, and are explained so."""
    return load_errors.explain_build(wrapped, args, kwargs, _PURPOSE, language="C++")


@verifier(
    "torch._inductor.cpp_builder:install_gcc_via_conda()",
    why="Stock torch runs any g++ that lies in the cache directory, whoever put it there.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/cpp_builder.py#L157",
)
def install_gcc_via_conda(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """install_gcc_via_conda: a compiler in the cache is only run if this process has just installed it there.

    It is thousands of files, which nothing attests. Raises FileNotFoundError; torch then tries the next compiler.
    """
    prefix = os.path.join(sys.modules["torch._inductor.cpp_builder"].cache_dir(), "gcc")
    objection, compiler = _find_objection(prefix), os.path.join(prefix, "bin", "g++")
    refusal = Refusal(Reason.UNSEALED, objection or "")
    if objection is not None and not trust.is_observed(refusal, Kind.NATIVE_CODE, compiler):
        remedy = f"The next compiler is taken; if you trust this one, name it yourself: export CXX={compiler}"
        report.refuse(refusal, Kind.NATIVE_CODE, compiler, remedy)
        raise FileNotFoundError(compiler)
    result = wrapped(*args, **kwargs)
    _installed.now.add(prefix)
    return result


def _find_objection(prefix: str) -> str | None:
    if prefix in _installed.now:
        return None
    if os.path.lexists(prefix):
        return "this process has not installed it, and nothing attests a whole compiler in a cache"
    others = ownership.find_exposure(os.path.dirname(prefix))
    return None if others is None else f"others could write to it: {others}"


@hook(
    "torch._inductor.cpp_builder:run_compile_cmd(cmd_line, cwd)",
    why="A full TMPDIR, missing Python headers or a compiler ended by the OOM killer fails the compile with mere "
    "compiler output.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/cpp_builder.py#L814",
)
def run_compile_cmd(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """run_compile_cmd: says what to install if Python's headers are missing; tries another TMPDIR if it is unusable.

    A compiler that a signal ended is run once more: see library_builds.repeat_if_killed().
    """

    def run(cmd_line: str, *rest: Any, **named: Any) -> Any:
        try:
            return library_builds.repeat_if_killed(lambda: wrapped(cmd_line, *rest, **named))
        except Exception:
            place = directory_faults.find_replacement()
            if place is None:
                raise
        return wrapped(f"env TMPDIR={shlex.quote(place)} {cmd_line}", *rest, **named)

    return load_errors.explain_build(run, args, kwargs, _PURPOSE, language="C++")


@verifier(
    "torch._inductor.cpu_vec_isa:VecISA.check_build(self, code)",
    why="Stock torch takes any failed build or load of its probe for a CPU without vector instructions, and "
    "silently compiles slow kernels.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/cpu_vec_isa.py#L219",
    instead=_INSTEAD_VEC_ISA_OK,
)
def check_build(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> bool:
    """VecISA.check_build: verifies its library; reports a noexec mount that makes it answer no, and so kernels slow."""

    build = library_builds.Build(verifies=True)

    def check() -> bool:
        build.error = None
        with compiles.override_scope(build=build, lock_guard=_take_unless_attested):
            usable: bool = wrapped(*args, **kwargs)
        return usable

    # Torch catches whatever is raised in there, and concludes that the CPU has no such instructions.
    with events.propagate_strict():
        installation.ensure_cache()
        usable = fallback.attempt(check)
        if not usable and fallback.replace_if_failed(build.error):
            usable = check()
    cache: str = sys.modules["torch._inductor.codecache"].cache_dir()
    if not usable and mounts.is_noexec(cache):
        events.report(
            Reason.NOT_EXECUTABLE,
            "torch cannot detect this CPU's vector instructions, and compiles slow kernels without them",
            why=f"its probe is{load_errors.write_advice(cache, 'TORCHINDUCTOR_CACHE_DIR')}".removesuffix("."),
            cause=cache,
            remedy="If you only read a warm cache, TORCHINDUCTOR_VEC_ISA_OK=1 skips the probe.",
        )
    return usable


@hook(
    "torch._inductor.cpu_vec_isa:valid_vec_isa_list()",
    why="Several threads probe at once without a lock, and one may read compiler flags that another has changed "
    "only for its probe.",
    issue="https://github.com/pytorch/pytorch/pull/141109",
)
def valid_vec_isa_list(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """valid_vec_isa_list: one thread probes, and others that ask meanwhile wait for what it finds.

    Torch changes the flags of an instruction set while it probes that, and another thread that came meanwhile would
    keep those: what is built with them is looked for under another name than what the last process built.
    """
    with _installed.lock:
        return wrapped(*args, **kwargs)


def _take_unless_attested(lock: lock_guards.Lock) -> None:
    cache: str = sys.modules["torch._inductor.codecache"].cache_dir()
    key = lock_guards.find_source_key(lock)
    if key is None or not gate.is_attested(CodeFile(os.path.join(cache, key[1:3], f"{key}.so"), cache)):
        lock.take()


@verifier(
    "torch._inductor.cpu_vec_isa:VecISA._probe_load(self, output_path)",
    why="Stock torch dlopens whatever probe library lies in the cache, and takes a noexec mount for missing vector "
    "instructions.",
    issue="https://github.com/pytorch/pytorch/blob/v2.15.0/torch/_inductor/cpu_vec_isa.py#L157",
    since=(2, 13),
    instead=_INSTEAD_VEC_ISA_OK,
)
def probe_load(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    """VecISA._probe_load: loads the verified library, in a process of its own, from where code may be loaded.

    Raises EntryRefusedError, in default mode too.
    """

    def probe(output_path: str) -> Any:
        root = sys.modules["torch._inductor.codecache"].cache_dir()
        loaded = wrapped(exec_directory.find_load_path(CodeFile(output_path, root)))
        if loaded and provenance.torch_release() >= _PROBE_MARKERS_FROM:
            library_builds.mark_loaded(output_path, root)
        return loaded

    return probe(*args, **kwargs)
