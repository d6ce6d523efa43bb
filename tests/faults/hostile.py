"""The family of hostile bytes: whatever stock torch and Triton would unpickle, execute or load, planted as they keep it.

Each case prepares a home, plants, and says which scene then meets what was planted. The control on stock torch is part
of every case: there it runs.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from conftest import Home
from harness.planted import MARKER
from scenes import artifact_scenes, kernel_scenes, load_scenes, model_scenes

from faults import damage
from faults.doors import DOORS, PRECOMPILE, PROFILE, Door
from faults.trojan import CONSTRUCTOR, INCLUDES, PYTHON, files

ESCAPED = "escaped"

Scene = dict[str, Any]


class Case(NamedTuple):
    """``plant`` returns the scene to run. ``misses``: in default mode the compile goes on.

    ``seen``: what the audit hook says on stock torch; empty where another process does the harm, or nothing runs.
    """

    name: str
    plant: Callable[[Home, Path], Scene]
    seen: str = "pickle.find_class"
    misses: bool = True
    needs: str = ""


def marker(home: Home) -> Path:
    """The file that what was planted leaves if it runs."""
    return home.base / "ran"


def hostile(home: Home) -> bytes:
    """A pickle that runs when it is unpickled."""
    return pickle.dumps(damage.Marker(marker(home)))


def _must(answer):
    assert answer.ok, answer
    return answer


# --- the caches of entries


def _entries(kind: str, as_torch_would: bool) -> Callable[[Home, Path], Scene]:
    def plant(home, trojan):
        for path in home.entries(kind):
            damage.plant(path, marker(home), as_torch_would=as_torch_would)
        return {"scene": model_scenes.compile_model}

    return plant


def remote_entries(home, trojan):
    remote = home.base / "remote"
    remote.mkdir()
    shutil.rmtree(home.cache)
    _must(home.run(model_scenes.compile_with_remote, directory=str(remote)))
    _plant_values(home, remote)
    shutil.rmtree(home.cache)
    return {"scene": model_scenes.compile_with_remote, "directory": str(remote)}


def remote_profile(home, trojan):
    remote = home.base / "remote"
    remote.mkdir()
    _must(home.run(artifact_scenes.save_profile, path="", remote=str(remote)))
    _plant_values(home, remote)
    return {"scene": artifact_scenes.load_profile, "path": "", "remote": str(remote)}


def _plant_values(home, remote):
    values = list(remote.iterdir())
    assert values
    for path in values:
        path.write_text(json.dumps(damage.remote_value(hostile(home))))


# --- mega-caches and standalone artifacts


def mega_cache(home, trojan):
    path = home.base / "mega"
    _must(home.run(model_scenes.save_mega_cache, path=str(path)))
    shutil.rmtree(home.cache)
    return {"scene": model_scenes.load_planted_mega_cache, "path": str(path), "marker": str(marker(home)), "key": None}


def _in_mega_cache(door: Door, name: str) -> Callable[[Home, Path], Scene]:
    def plant(home, trojan):
        path = door.save(home)
        key = path.parent.name if door is PRECOMPILE else path.name[len("code_state_") : -len(".pkl")]
        path.unlink()
        arrived = [damage.artifact(name, key, hostile(home))]
        return {
            "scene": artifact_scenes.populate_and_load,
            "artifacts": arrived,
            "load": door.scene("load"),
            "path": door.path(home),
        }

    return plant


def _standalone(fmt: str) -> Callable[[Home, Path], Scene]:
    def plant(home, trojan):
        path = home.base / "artifact"
        _must(home.run(model_scenes.standalone, save=str(path), fmt=fmt))
        if fmt == "unpacked":
            for entry in [*path.glob("aotautograd/*/*"), *path.glob("fxgraph/*/*/*")]:
                # Not beside it, or there would be another that is good.
                entry.write_bytes(hostile(home))
        else:
            _must(home.run(artifact_scenes.plant_in_standalone, path=str(path), marker=str(marker(home))))
        shutil.rmtree(home.cache)
        return {"scene": model_scenes.load_standalone, "path": str(path), "fmt": fmt}

    return plant


def unpacked_over(home, trojan):
    path = home.base / "artifact"
    _must(home.run(model_scenes.standalone, save=str(path), fmt="unpacked"))
    for entry in path.glob("fxgraph/*/*/*"):
        damage.plant(entry, marker(home))
    return {"scene": artifact_scenes.save_unpacked_over, "path": str(path)}


# --- names that would leave their place


def _mega_cache_name(name: str, key: str) -> Callable[[Home, Path], Scene]:
    def plant(home, trojan):
        return {
            "scene": artifact_scenes.populate,
            "artifacts": [damage.artifact(name, key.format(base=home.base), b"{}")],
        }

    return plant


def _bundle_name(name: str) -> Callable[[Home, Path], Scene]:
    def plant(home, trojan):
        return {"scene": artifact_scenes.load_bundle, "names": [name.format(base=home.base), "cgood.best_config"]}

    return plant


# --- files that are unpickled as a whole


def _door(door: Door) -> Callable[[Home, Path], Scene]:
    def plant(home, trojan):
        door.save(home)
        door.plant(home, hostile(home))
        return {"scene": door.scene("load"), "path": door.path(home)}

    return plant


# --- generated code, and what is built of it


def forget_entries(home: Home) -> None:
    """As if nothing had been compiled yet."""
    for folder in ("aotautograd", "fxgraph"):
        shutil.rmtree(home.cache / folder)


def source_in_a_warm_cache(home, trojan):
    for path in files(home, "*.py"):
        path.write_text(PYTHON + path.read_text())
    return {"scene": model_scenes.compile_model}


def source_in_a_cold_cache(home, trojan):
    scene = source_in_a_warm_cache(home, trojan)
    forget_entries(home)
    return scene


def library_in_a_warm_cache(home, trojan):
    for path in files(home, "*.so"):
        shutil.copy(trojan, path)
    return {"scene": model_scenes.compile_model}


def library_in_a_cold_cache(home, trojan):
    scene = library_in_a_warm_cache(home, trojan)
    forget_entries(home)
    shutil.rmtree(home.cache / ".safecache")
    return scene


def source_of_a_library(home, trojan):
    for path in files(home, "*.cpp"):
        path.write_text(f"{INCLUDES}{CONSTRUCTOR}{path.read_text()}")
    for path in files(home, "*.so"):
        path.unlink()
    return {"scene": model_scenes.compile_model}


CODE = [
    source_in_a_warm_cache,
    source_in_a_cold_cache,
    library_in_a_warm_cache,
    library_in_a_cold_cache,
    source_of_a_library,
]


def headers(home: Home) -> list[Path]:
    """The header of build_with_header, where stock torch keeps it and where safecache does, for each key."""
    found = [path for path in (home.base / "headers").rglob("*.h") if ".safecache" not in path.parts]
    assert found
    return found


def without_libraries(home):
    """A header is asked for where a library is built."""
    for path in home.cache.rglob("*.so"):
        path.unlink()


def header(home, trojan):
    scene = {"scene": load_scenes.build_with_header, "directory": str(home.base / "headers")}
    without_libraries(home)
    built = _must(home.run(**scene))
    assert [name[-2:] for name in built.result] == [".h", "ch"], built
    _must(home.run(**scene, stock=True))
    without_libraries(home)
    for path in headers(home):
        path.write_text(f"{INCLUDES}{CONSTRUCTOR}")
        path.with_suffix(".h.gch").unlink()
    return scene


def precompiled_header(home, trojan):
    """Precompiled with the flags of the kernels, or the compiler would not take it."""
    directory = str(home.base / "headers")
    command = _must(home.run(load_scenes.header_command, directory=directory)).result
    without_libraries(home)
    _must(home.run(load_scenes.build_with_header, directory=directory))
    genuine = headers(home)[0].read_text()
    scene = header(home, trojan)
    for path in headers(home):
        subprocess.run([*command, str(path), "-o", f"{path}.gch"], check=True, stderr=subprocess.DEVNULL)
        path.write_text(genuine)
    return scene


def probe_of_vector_instructions(home, trojan):
    scene = {"scene": load_scenes.find_vector_instructions}
    assert _must(home.run(**scene)).result is True
    for path in files(home, "*.so"):
        if ".main." not in path.name:
            shutil.copy(trojan, path)
            path.with_name(f"{path.name}.load_ok").unlink(missing_ok=True)
    return scene


# --- Triton's cache


def triton_files(home: Home, pattern: str) -> list[Path]:
    """The files of such a name in Triton's cache."""
    found = [path for path in (home.base / "triton").glob(f"*/{pattern}") if ".safecache" not in path.parts]
    assert found, pattern
    return found


def kernel(home, trojan):
    """One with its own list of files and a cubin of its own, which is recognised where it is handed out."""
    _must(home.run(kernel_scenes.compile_kernel))
    (group,) = triton_files(home, "__grp__*")
    evil = home.base / "evil.cubin"
    evil.write_bytes(MARKER.encode())
    listed = json.loads(group.read_text())
    name = next(name for name in listed["child_paths"] if name.endswith(".cubin"))
    listed["child_paths"][name] = str(evil)
    group.write_text(json.dumps(listed))
    return {"scene": kernel_scenes.compile_kernel}


def module_of_triton(home, trojan):
    _must(home.run(kernel_scenes.build_module))
    (module,) = triton_files(home, "probe*.so")
    shutil.copy(trojan, module)
    return {"scene": kernel_scenes.build_module}


# Done by another process: the compiler that reads a header is not Python, and the probe runs in one of its own.
ELSEWHERE = ""

CASES = [
    Case("aot-entry", _entries("aot", as_torch_would=False)),
    Case("aot-entry-named-as-torch-would", _entries("aot", as_torch_would=True)),
    Case("fx-entry", _entries("fx", as_torch_would=False)),
    Case("fx-entry-named-as-torch-would", _entries("fx", as_torch_would=True)),
    Case("remote-entries", remote_entries),
    Case("remote-profile", remote_profile),
    Case("mega-cache", mega_cache),
    Case("mega-cache-precompile", _in_mega_cache(PRECOMPILE, "precompile")),
    Case("mega-cache-profile", _in_mega_cache(PROFILE, "pgo")),
    Case("mega-cache-name-autotune-above", _mega_cache_name("autotune", "../escaped.best_config"), seen=""),
    Case("mega-cache-name-autotune-code", _mega_cache_name("autotune", "ab/escaped.py"), seen=""),
    Case("mega-cache-name-autotune-absolute", _mega_cache_name("autotune", "{base}/escaped.best_config"), seen=""),
    Case("mega-cache-name-precompile-above", _mega_cache_name("precompile", "../../escaped"), seen=""),
    Case("mega-cache-name-precompile-absolute", _mega_cache_name("precompile", "{base}/escaped"), seen=""),
    Case("bundle-name-absolute", _bundle_name("{base}/escaped.best_config"), seen=""),
    Case("bundle-name-above", _bundle_name("../escaped.best_config"), seen=""),
    Case("bundle-name-folder-above", _bundle_name("x..escaped.best_config"), seen=""),
    Case("bundle-name-code", _bundle_name("cescaped.py"), seen=""),
    Case("standalone-binary", _standalone("binary"), misses=False),
    Case("standalone-unpacked", _standalone("unpacked"), misses=False),
    Case("standalone-unpacked-over", unpacked_over, misses=False),
    *(Case(door.name, _door(door), misses=door.misses) for door in DOORS),
    Case("source-in-a-warm-cache", source_in_a_warm_cache, seen="exec"),
    Case("source-in-a-cold-cache", source_in_a_cold_cache, seen="exec"),
    Case("library-in-a-warm-cache", library_in_a_warm_cache, seen="import"),
    Case("library-in-a-cold-cache", library_in_a_cold_cache, seen="import"),
    Case("source-of-a-library", source_of_a_library, seen="import"),
    Case("header", header, seen="import"),
    Case("precompiled-header", precompiled_header, seen="import"),
    Case("probe-of-vector-instructions", probe_of_vector_instructions, seen=ELSEWHERE),
    Case("kernel", kernel, seen="", needs="triton"),
    Case("module-of-triton", module_of_triton, seen="import", needs="triton"),
]


def did_harm(home: Home, answer) -> bool:
    """Whether what was planted ran, left its place or was handed out."""
    handed_out = isinstance(answer.result, dict) and answer.result.get("cubin") == MARKER.encode().hex()
    return marker(home).exists() or bool(list(home.base.rglob(f"*{ESCAPED}*"))) or handed_out
