"""Tests, for pytest, of what every tier has to do: subclass TierTests for a tier of your own.

    class TestMine(TierTests):
        @pytest.fixture
        def held(self, tmp_path):
            return Held(MyTier(tmp_path), my_contents)

A tier may lose anything, and others may write to its storage. It raises nothing. A process gets from the tier what was
given to it under that key, byte for byte, or nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from safecache import session
from safecache.built_code import triton_files
from safecache.errors import SafecacheError
from safecache.places import layout, metadata
from safecache.places.refs import Ref
from safecache.ports import Tier, Tiers, plugs
from safecache.reporting.kinds import ENTRIES, Kind
from safecache.settings import config
from safecache.signing import keyring, provenance, seal
from safecache.store import bundles, entry_files, gate
from safecache.testing import DAMAGES
from safecache.upkeep.copies import Source

__all__ = ["Held", "TierTests"]

# How many bits of what is stored are flipped at least; and how often is looked while it changes.
_FLIPS, _LOOKS = 120, 15
_LETTERS = 51
_CHANGES = DAMAGES | {"cut": lambda content: content[:-1], "cut at its start": lambda content: content[1:]}
_CHANGES |= {"lengthened": lambda content: content + b"\0", "doubled": lambda content: content * 2}


class Held:
    """Tier under test. ``contents``: what it has stored, by names of its own; the tests alter it as an attacker would.

    ``kinds``: those that it can have. ``fill``: makes it hold these bundles of a cache; by default calls its keep().
    ``failures``: ways in which it can fail, by name: each as long as a block lasts. ``source``: opens it as a source of
    copies, if it can list what it has. ``forget``: makes it forget a bundle; False where it never does.
    """

    def __init__(
        self,
        tier: Tier,
        contents: MutableMapping[str, bytes],
        *,
        kinds: Iterable[Kind] = (*ENTRIES, Kind.KERNEL, Kind.NATIVE_CODE, Kind.AUTOTUNING, Kind.PGO_STATE),
        fill: Callable[[list[Ref]], object] | None = None,
        failures: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
        source: Callable[[], Source] | None = None,
        forget: Callable[[Ref], bool] = lambda _: False,
    ) -> None:
        self.tier, self.contents, self.kinds = tier, contents, frozenset(kinds)
        self.fill = fill or self._keep_refs
        self.failures = failures or {}
        self.source, self.forget = source, forget

    def _keep_refs(self, refs: list[Ref]) -> None:
        for ref in refs:
            self.tier.keep(ref)


def _make_refs(root: str, letter: str) -> list[Ref]:
    """Return a ref of each kind in the cache ``root``, with keys of this letter, whether it is there or not."""
    keys = {Kind.AOT_ENTRY: f"a{letter * _LETTERS}", Kind.FX_ENTRY: f"f{letter * _LETTERS}"}
    keys |= {Kind.PGO_STATE: f"job/{letter}", Kind.NATIVE_CODE: f"{letter * 2}/c{letter * _LETTERS}.so"}
    keys |= {Kind.AUTOTUNING: f"aa/tuned-{letter}.best_config"}
    kernel = Ref(Kind.KERNEL, letter.upper() * 52, os.path.join(root, "triton", "0"))
    return [*(Ref(kind, key, root) for kind, key in keys.items()), kernel]


def _fill_cache(root: str, letter: str) -> list[Ref]:
    """Put these bundles into the cache, sealed by this process's key. Return their refs."""
    refs = _make_refs(root, letter)
    for ref in refs[:-1]:
        content = json.dumps({f"{ref.kind.value} made for": letter}).encode()
        if ref.kind.has_record:
            gate.attest_file(ref.name_file(os.path.basename(ref.path)), content)
        else:
            content = seal.attach(
                content, ref.kind, ref.key, keyring.sealing_key(), provenance.make_statement(ref.kind)
            )
        entry_files.publish(ref.path if ref.is_file else ref.name_file(layout.name_entry(content)).path, content, root)
    kernel, files = refs[-1].path, {"k.cubin": f"a cubin {letter}".encode(), "k.json": b"{}"}
    paths = {name: triton_files.put(kernel, name, content) for name, content in files.items()}
    triton_files.put(kernel, "__grp__k.json", json.dumps({"child_paths": paths}).encode())
    return refs


class TierTests:
    """Tests of a tier: subclass with a fixture ``held``. Each test has keys, settings and caches of its own."""

    @pytest.fixture(autouse=True)
    def process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Prepare a process in which no tier is plugged in but the one under test, once it holds something."""
        self.base = tmp_path
        for name in [name for name in config.get_environment() if name.startswith("SAFECACHE")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr(plugs, "tiers", Tiers())
        config.reload()
        session.reset()
        yield
        session.reset()

    @pytest.fixture
    def held(self) -> Held:
        """Return the tier under test, which holds nothing yet."""
        raise NotImplementedError("a fixture `held` of your own")

    @pytest.fixture
    def refs(self, held: Held) -> list[Ref]:
        """Fill the tier from a cache; return the refs that it holds."""
        found = [
            ref for letter in "ab" for ref in _fill_cache(str(self.base / "cache"), letter) if ref.kind in held.kinds
        ]
        held.fill(found)
        plugs.tiers.add(held.tier)
        self.original = _read_contents(self.base / "cache")
        return found

    def move(self, refs: Iterable[Ref], there: Path) -> list[Ref]:
        """Return the same refs in the cache ``there``, whose directories are made."""
        moved = [ref._replace(root=str(there / os.path.relpath(ref.root, self.base / "cache"))) for ref in refs]
        for ref in moved:
            Path(ref.root).mkdir(parents=True, exist_ok=True)
        return moved

    def look_up(self, refs: Iterable[Ref], where: str = "there") -> list[bool]:
        """Return whether a process with an empty cache finds each, and check that the cache has only what was given."""
        session.reset()
        there = self.base / where
        moved = self.move(refs, there)
        found = [bundles.fetch(ref) is not None for ref in moved]
        written = _read_contents(there)
        # That of a kernel's list may be the record of each of its files.
        given = {name: self.original.values() if "/records/" in name else [self.original.get(name)] for name in written}
        assert {name for name, content in written.items() if content not in given[name]} == set()
        for ref, is_found in zip(moved, found, strict=True):
            assert is_found == os.path.exists(ref.path), ref
        for path in sorted(there.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        return found

    def test_what_it_was_given_it_has(self, refs: list[Ref]) -> None:
        """Find everything, for one process after another."""
        assert self.look_up(refs) == self.look_up(refs[::-1]) == [True] * len(refs)

    @pytest.mark.usefixtures("refs")
    def test_what_it_was_not_given_it_has_not(self) -> None:
        """Find nothing under another key of the same kind."""
        others = _make_refs(str(self.base / "cache"), "c")
        assert self.look_up(others) == [False] * len(others)

    def look_up_changed(self, held: Held, refs: list[Ref], changes: Iterable[Mapping[str, bytes]]) -> None:
        """Look up with every third or fourth content of each of ``changes``; one would hide another of its bundle."""
        given = dict(held.contents)
        for changed, step in zip(changes, itertools.cycle((3, 4)), strict=False):
            for names in filter(None, ([*given][start::step] for start in range(step))):
                held.contents.update({name: changed[name] for name in names})
                self.look_up(refs)
                held.contents.update({name: given[name] for name in names})

    @pytest.mark.parametrize("how", _CHANGES)
    def test_damaged_content_is_not_found(self, held: Held, refs: list[Ref], how: str) -> None:
        """Damage some contents, and all: as a full disk does, or somebody who appends to them."""
        changed = {name: _CHANGES[how](content) for name, content in held.contents.items()}
        self.look_up_changed(held, refs, [changed] * 2)
        held.contents.update(changed)
        assert self.look_up(refs) == [False] * len(refs) or how == "flipped"

    def test_no_flipped_bit_is_found(self, held: Held, refs: list[Ref]) -> None:
        """Flip bits all over: no file comes out that was not put in."""
        given, last = dict(held.contents), max(12, _FLIPS // len(held.contents)) - 1
        flips = ({name: _flip_bit(given[name], number / last) for name in given} for number in range(last + 1))
        self.look_up_changed(held, refs, flips)
        assert self.look_up(refs) == [True] * len(refs)

    def test_content_of_another_key_is_not_found(self, held: Held, refs: list[Ref]) -> None:
        """Exchange contents: what was given under one key is nothing under another."""
        given = dict(held.contents)
        turned = [dict(zip(given, ([*given.values()] * 6)[n:], strict=False)) for n in (1, 2, 3, 5)]
        self.look_up_changed(held, refs, turned)
        held.contents.update(turned[0])
        self.look_up(refs)

    def test_what_is_gone_is_not_found(self, held: Held, refs: list[Ref]) -> None:
        """Remove one content after the other: nothing wrong comes out, and at last nothing."""
        for name in list(held.contents):
            del held.contents[name]
            self.look_up(refs)
        assert self.look_up(refs) == [False] * len(refs)

    def test_what_a_stranger_has_given_is_not_found(self, refs: list[Ref], monkeypatch: pytest.MonkeyPatch) -> None:
        """Look up in a process that does not trust the key."""
        monkeypatch.setenv("XDG_CONFIG_HOME", str(self.base / "another"))
        config.reload()
        assert self.look_up(refs) == [False] * len(refs)

    def test_what_nobody_has_sealed_is_not_found(self, held: Held) -> None:
        """Store files without seals, as stock torch writes them."""
        refs = [ref for ref in _fill_cache(str(self.base / "cache"), "a") if ref.kind in held.kinds]
        for path in filter(Path.is_file, (self.base / "cache").rglob("*")):
            path.write_bytes(b"{}")
        held.fill(refs)
        plugs.tiers.add(held.tier)
        self.original = {}
        assert self.look_up(refs) == [False] * len(refs)

    def test_content_that_is_exchanged_while_it_is_read(self, held: Held, refs: list[Ref]) -> None:
        """Put one content after the other under each name meanwhile."""
        given, stop = dict(held.contents), threading.Event()

        def exchange() -> None:
            for name, content in itertools.cycle(itertools.product(given, given.values())):
                held.contents[name] = content
                held.contents[name] = given[name]
                if stop.is_set():
                    return

        thread = threading.Thread(target=exchange)
        thread.start()
        try:
            for _ in range(_LOOKS):
                self.look_up(refs)
        finally:
            stop.set()
            thread.join()
        assert self.look_up(refs) == [True] * len(refs)

    def test_it_lists_what_it_has(self, held: Held, refs: list[Ref]) -> None:
        """List by kind and key, and nothing else; content that was damaged since is refused when it is read."""
        if held.source is None:
            pytest.skip("it is not copied from")
        source = held.source()
        listings = [listing for listing in source.list_bundles() if listing.ref.kind in held.kinds]
        assert sorted((each.ref.kind.value, each.ref.key) for each in listings) == sorted(
            (ref.kind.value, ref.key) for ref in refs
        )
        given = {listing.ref: source.read(listing).files for listing in listings}
        for name, content in dict(held.contents).items():
            held.contents[name] = DAMAGES["garbage"](content)
            for listing in listings:
                with suppress(SafecacheError):
                    bundle = source.read(listing)
                    assert bundle.refusal is not None or set(bundle.files) <= set(given[listing.ref]), name
            held.contents[name] = content

    def test_what_it_forgets_is_not_found(self, held: Held, refs: list[Ref]) -> None:
        """Forget every second bundle, and find the others; find all once they are given again."""
        forgotten = [held.forget(ref) for ref in refs[::2]]
        assert self.look_up(refs[::2]) == [not is_gone for is_gone in forgotten]
        assert self.look_up(refs[1::2]) == [True] * len(refs[1::2])
        if any(forgotten):
            held.fill(refs)
        assert self.look_up(refs) == [True] * len(refs)

    def test_threads_that_look_up_at_once(self, refs: list[Ref]) -> None:
        """Look everything up from 8 threads of one process and one cache, which then has all of it."""
        session.reset()
        moved = self.move(refs, self.base / "there")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(bundles.fetch, moved * 8))
        assert all(os.path.exists(ref.path) for ref in moved)
        self.look_up([])  # and nothing else

    def test_whatever_fails_raises_nothing(self, held: Held, refs: list[Ref]) -> None:
        """Fail reads and writes: neither raises, and all is found again later."""
        for fail in held.failures.values():
            with fail():
                self.look_up(refs)
                for ref in refs:
                    held.tier.keep(ref, again=True)
        for _ in range(2 * _LOOKS):
            if all(self.look_up(refs)):
                return
            time.sleep(0.5)  # what it does in the background may still fail
        raise AssertionError("it works no more, though nothing fails")


def _flip_bit(content: bytes, part: float) -> bytes:
    """Return ``content`` with one bit flipped, at the fraction ``part`` of its length (0 to 1)."""
    place, bit = divmod(int((8 * len(content) - 1) * part), 8)
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def _read_contents(root: Path) -> dict[str, bytes]:
    """Return all files below ``root`` by relative path; of safecache's own files, the records only."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if metadata.FOLDER not in name or "/records/" in name}
