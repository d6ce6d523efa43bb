"""A generated source is executed if it is what was generated, or named after what it is."""

from __future__ import annotations

import pytest

from safecache import session
from safecache.built_code import sources
from safecache.errors import EntryRefusedError
from safecache.reporting import events
from safecache.store import attestations
from safecache.tiers.directory_faults import Immovable

SOURCE = b"print('generated')\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
    session.reset()
    return tmp_path


def test_source_that_is_what_was_generated_stays(root):
    path = root / "source.py"
    path.write_bytes(b"\n" + SOURCE)
    assert sources.quarantine_if_changed(str(path), SOURCE, str(root)) and path.exists() and not events.read_counters()


def test_source_that_is_not_is_moved_away(root):
    path = root / "source.py"
    path.write_bytes(SOURCE + b"import evil")
    assert not sources.quarantine_if_changed(str(path), SOURCE, str(root))
    assert not path.exists() and events.read_counters() == {"damaged": 1, "quarantined": 1}


def test_commands_that_torch_adds_to_a_source_as_comments_are_no_change(root):
    """As CUTLASSCodeCache.compile does."""
    added = b"\n// CUDA Compilation cmd\n// nvcc -c a.cu\n\n// CUDA Linking cmd\n// nvcc a.o\n"
    (root / "a.cu").write_bytes(SOURCE + added)
    assert sources.quarantine_if_changed(str(root / "a.cu"), SOURCE, str(root)) and not events.read_counters()


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("a.py", b"\n// nvcc"),
        ("a.cu", b"// nvcc"),
        ("a.cu", b"\n//\rint evil;"),
        ("a.cu", b"\n// nvcc\nint evil;"),
        ("a.cu", b"\n// nvcc\nint evil;\n// nvcc"),
    ],
)
def test_anything_else_that_is_added_is_a_change(root, name, added):
    (root / name).write_bytes(SOURCE.strip() + added)
    assert not sources.quarantine_if_changed(str(root / name), SOURCE, str(root))


def test_source_that_cannot_be_moved_away_is_refused(root, monkeypatch, settings):
    path = root / "source.py"
    path.write_bytes(b"import evil")
    monkeypatch.setattr(sources.entry_files, "quarantine", lambda *arguments: None)
    with pytest.raises(Immovable, match="cannot be moved away"):
        sources.quarantine_if_changed(str(path), SOURCE, str(root))
    settings(SAFECACHE_STRICT=1)
    with pytest.raises(EntryRefusedError, match="cannot be moved away"):
        sources.quarantine_if_changed(str(path), SOURCE, str(root))


def test_source_is_executed_if_its_name_is_the_hash_of_its_content(root):
    path = root / "source.py"
    path.write_bytes(SOURCE)
    assert sources.admit(str(path), "name", lambda text: "name") == str(path)
    with pytest.raises(EntryRefusedError, match="nobody in this process generated it"):
        sources.admit(str(path), "name", lambda text: "other")
    assert events.read_counters() == {"unsealed": 1}
    attestations.attest_in_process(str(path), SOURCE)
    assert sources.admit(str(path), "name", lambda text: "other") == str(path)


def test_missing_source_is_missing_as_in_stock(root):
    with pytest.raises(FileNotFoundError):
        sources.admit(str(root / "gone.py"), "name", str)


@pytest.mark.parametrize("found", [b"import evil", None], ids=["file", "link"])
def test_source_that_another_process_restores_meanwhile_stays(root, monkeypatch, found):
    path = root / "source.py"
    if found is None:
        path.symlink_to("nowhere")
    else:
        path.write_bytes(found)
    quarantine = sources.entry_files.quarantine

    def restore_first(*args):
        sources.entry_files.replace(str(path), SOURCE)
        return quarantine(*args)

    monkeypatch.setattr(sources.entry_files, "quarantine", restore_first)
    assert sources.quarantine_if_changed(str(path), SOURCE, str(root))
    assert path.read_bytes() == SOURCE and not events.read_counters()
