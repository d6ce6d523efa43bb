"""AOTInductor's packages and libraries: what nothing attests is not loaded, in any mode, and nothing of it runs.

Each attack is shown to work on stock torch first.
"""

from __future__ import annotations

import shutil
import zipfile

import pytest
from scenes import sink_scenes

MODES = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "ran"


def with_library(package, library, target):
    """A copy of a package with another library in it; the seal does not come with it."""
    with zipfile.ZipFile(package) as archive, zipfile.ZipFile(target, "w") as copy:
        for member in archive.infolist():
            content = library.read_bytes() if member.filename.endswith(".so") else archive.read(member)
            copy.writestr(member.filename, content)
    return target


@pytest.fixture(scope="module")
def sealed(new_home, tmp_path_factory):
    """A package that was made while safecache was active, and the home that it was made in."""
    home, path = new_home(), tmp_path_factory.mktemp("package") / "model.pt2"
    answer = home.run(sink_scenes.package_model, path=str(path))
    assert answer.ok and answer.warnings == [], answer
    return home, path


@MODES
def test_package_is_loaded_in_another_process_if_its_seal_holds(sealed, tmp_path, trojan, marker, strict):
    home, path = sealed
    content = path.read_bytes()
    payload = content[: content.rindex(b"PK\x05\x06") + 22]
    cases = {
        "flipped": content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        "unsealed": payload,
        "cut": content[:-8],
    }
    for name, changed in cases.items():
        (tmp_path / f"{name}.pt2").write_bytes(changed)
    planted = with_library(path, trojan, tmp_path / "planted.pt2")
    cases["planted"] = planted.read_bytes()
    cases["transplanted"] = cases["planted"] + content[len(payload) :]
    (tmp_path / "transplanted.pt2").write_bytes(cases["transplanted"])
    shutil.copy(path, tmp_path / "renamed.pt2")

    paths = {name: str(tmp_path / f"{name}.pt2") for name in [*cases, "renamed"]}
    environment = {"TROJAN_MARKER": str(marker)}
    answer = home.run(sink_scenes.load_models, paths=list(paths.values()), strict=strict, env=environment)
    said = {name: answer.result[path] for name, path in paths.items()}
    assert not marker.exists() and answer.warnings == [], answer
    assert said.pop("renamed") == "" and said.keys() == cases.keys()
    assert all(
        text.startswith("RefusedArtifactError: safecache: not loading AOTInductor package") for text in said.values()
    ), said
    assert all(f"safecache adopt {paths[name]}" in said[name] for name in ("unsealed", "planted")), said

    if not strict:
        home.run(sink_scenes.load_models, paths=[paths["planted"]], stock=True, env=environment)
        assert marker.exists()
    assert home.run(sink_scenes.load_models, paths=[paths["renamed"]], stock=True).result == {paths["renamed"]: ""}


def test_package_is_verified_whichever_way_it_is_loaded(sealed, tmp_path, trojan, marker):
    home, path = sealed
    good = shutil.copy(path, tmp_path / "good.pt2")
    as_object, by_export, unpacked, _ = home.run(sink_scenes.load_package_elsewhere, path=str(good)).result
    assert (as_object, by_export) == ("", "") and "a directory has no seal" in unpacked
    planted = with_library(path, trojan, tmp_path / "planted.pt2")
    said = home.run(sink_scenes.load_package_elsewhere, path=str(planted), env={"TROJAN_MARKER": str(marker)}).result
    # Torch takes a RuntimeError of the second and the last for an older format, and would read the same bytes again.
    own, inner = "RefusedArtifactError", "EntryRefusedError"
    assert [text.partition(":")[0] for text in said] == [own, inner, own, inner] and not marker.exists(), said


def test_library_that_was_exchanged_before_it_was_packaged_is_not_sealed(home, tmp_path, trojan, marker):
    path, environment = str(tmp_path / "model.pt2"), {"TROJAN_MARKER": str(marker)}
    answer = home.run(sink_scenes.package_model, path=path, trojan=str(trojan), env=environment)
    assert answer.ok and [w for w in answer.warnings if "did not seal" in w and "nothing attests" in w], answer
    (said,) = home.run(sink_scenes.load_models, paths=[path], env=environment).result.values()
    assert said.startswith("RefusedArtifactError") and not marker.exists()


@MODES
def test_library_is_loaded_by_its_record(home, trojan, marker, strict):
    path = home.run(sink_scenes.build_library, strict=strict).result
    assert home.run(sink_scenes.load_library, path=path, strict=strict).result == ""
    assert home.run(sink_scenes.load_library, path=path, stock=True).result == ""
    shutil.copy(trojan, path)
    environment = {"TROJAN_MARKER": str(marker)}
    said = home.run(sink_scenes.load_library, path=path, strict=strict, env=environment).result
    assert said.startswith("RefusedArtifactError: safecache: not loading compiled code") and not marker.exists()
    home.run(sink_scenes.load_library, path=path, stock=True, env=environment)
    assert marker.exists()
