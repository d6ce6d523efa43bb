"""An extension is built of what its sources are now, whatever an old build of it says by its times and records."""

from __future__ import annotations

import os
import shutil

import pytest
from scenes import load_scenes

from safecache.places.layout import CodeFile
from safecache.store import manifests

SOURCE = '#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n'
MAIN = '#include "answer.h"\nint main() { return ANSWER; }\n'
# Of sources that are unpacked, or checked out with the times of their commits.
LONG_AGO = 1_600_000_000
STRICTNESS = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])


@pytest.fixture
def place(home):
    directory = home.base / "extensions"
    directory.mkdir()
    home.environment["TORCH_EXTENSIONS_DIR"] = str(directory)
    write(directory, 41)
    return directory


def write(directory, answer, *, source=SOURCE, header="answer.h"):
    """Sources that answer this, of the time that they always have."""
    directory.mkdir(exist_ok=True)
    (directory / "probe.cpp").write_text(source)
    (directory / header).write_text(f"#define ANSWER {answer}\n")
    for path in directory.glob("*.[ch]*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


@pytest.fixture
def load(home):
    def load(expected, *, warnings=0, **how):
        answer = home.run(load_scenes.load_operators, source="", **how)
        assert answer.ok and len(answer.warnings) == warnings, answer
        assert answer.result["answer"] == expected, answer
        return answer.result["steps"]

    return load


def built(directory):
    return [path for path in directory.iterdir() if path.name not in ("probe.cpp", "answer.h")]


def restore(saved, directory):
    """The old build, with its records and what ninja knows of it, its objects of now."""
    for path in built(directory):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in built(saved):
        if path.is_dir():
            shutil.copytree(path, directory / path.name)
        else:
            shutil.copy2(path, directory / path.name)


CHANGES = {
    "header": lambda directory: write(directory, 42),
    "source": lambda directory: write(directory, 41, source=SOURCE.replace("ANSWER;", "ANSWER + 1;")),
}


@STRICTNESS
@pytest.mark.parametrize("change", CHANGES)
def test_old_build_is_not_loaded_once_its_source_was_fixed(place, load, change, strict, tmp_path):
    load(41)
    shutil.copytree(place, tmp_path / "saved", copy_function=shutil.copy2)
    CHANGES[change](place)
    load(42, strict=strict)
    restore(tmp_path / "saved", place)
    load(42, strict=strict)
    steps = load(42, strict=strict)
    assert steps == load(42, strict=strict), "it is built once"


@pytest.mark.parametrize("change", CHANGES)
def test_old_build_is_loaded_by_stock_torch(place, load, change, tmp_path):
    load(41)
    CHANGES[change](place)
    load(41, stock=True)


def test_object_does_not_move_to_another_extension(home, place, load):
    one, other = place / "one", place / "other"
    write(one, 41)
    write(other, 42)
    load(41, name="one", folder="one")
    load(42, name="other", folder="other")
    move(one, other)
    load(42, name="other", folder="other", warnings=1)


def move(one, other):
    """The object of one extension, and its record, in the place of another's; to be linked again."""
    status = (other / "probe.o").stat()
    shutil.copy2(one / "probe.o", other / "probe.o")
    os.utime(other / "probe.o", ns=(status.st_atime_ns, status.st_mtime_ns))
    (other / "other.so").unlink()
    names = [manifests.record_name(CodeFile(str(at / "probe.o"), str(at.parent))) for at in (one, other)]
    source, target = (
        manifests.record_path(CodeFile("", str(at), name=name)) for at, name in zip((one, other), names, strict=True)
    )
    shutil.copy2(source, target)


def test_moved_object_is_linked_by_stock_torch(place, load):
    one, other = place / "one", place / "other"
    write(one, 41)
    write(other, 42)
    load(41, name="one", folder="one")
    load(42, name="other", folder="other")
    move(one, other)
    load(41, name="other", folder="other", stock=True)


def test_only_what_was_changed_of_several_sources_is_compiled_anew(place, load):
    (place / "more.cpp").write_text("int more() { return 1; }\n")
    steps = load(41, more=["more.cpp"])
    assert load(41, more=["more.cpp"]) == steps
    (place / "more.cpp").write_text("int more() { return 2; }\n")
    assert load(41, more=["more.cpp"]) == steps + 2, "an object and the library"


def test_program_is_built_of_its_sources_of_now(place, load, tmp_path):
    write(place, 41, source=MAIN)
    steps = load(41, standalone=True)
    assert load(41, standalone=True) == steps
    shutil.copytree(place, tmp_path / "saved", copy_function=shutil.copy2)
    write(place, 42, source=MAIN)
    load(42, standalone=True)
    restore(tmp_path / "saved", place)
    load(42, standalone=True)


def test_times_alone_are_no_reason_to_build(place, load):
    steps = load(41)
    for path in place.glob("*.[ch]*"):
        os.utime(path)
    assert load(41) == steps


def test_library_of_somebody_else_in_the_build_directory_stays(place, load):
    (place / "libother.so").write_bytes(b"of the user")
    load(41)
    assert load(41) and (place / "libother.so").read_bytes() == b"of the user"


def test_flag_that_was_changed_by_whoever_wrote_build_ninja_is_of_no_effect(place, load):
    steps = load(41)
    text = (place / "build.ninja").read_text()
    (place / "build.ninja").write_text(text.replace("-fPIC", "-fPIC -DANSWER=13"))
    assert load(41) == steps


@pytest.mark.parametrize("place_of", [".safecache", ".safecache/quarantine"])
def test_planted_library_that_cannot_be_moved_away_is_built_in_a_private_directory(home, place, load, place_of):
    load(41)
    with (place / "probe.so").open("ab") as file:
        file.write(b"planted")
    obstacle = place / place_of
    if obstacle.exists():
        shutil.rmtree(obstacle)
    obstacle.write_bytes(b"in the way")
    load(41, warnings=1)
    load(41, warnings=1)
    assert "EntryRefusedError" in home.run(load_scenes.load_operators, source="", strict=True).errors


def test_allocator_that_was_replaced_after_its_build_is_not_loaded(home, place):
    """Servers let torch build it in a directory for all users, and name the file there."""
    stock = home.run(load_scenes.load_allocator, planted="planted", stock=True)
    assert stock.result == [False], stock
    assert home.run(load_scenes.load_allocator, planted="").result == [True]
    answer = home.run(load_scenes.load_allocator, planted="planted")
    assert answer.errors[:1] == ["EntryRefusedError"], answer
