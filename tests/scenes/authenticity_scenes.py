"""Every place where the local caches hand bytes to an unpickler, to Python or to the loader, attacked in each way.

``face`` runs in one process of its own for each of these places (sinks). What is planted is hostile: a pickle, library or
source that leaves a file behind if it is unpickled, loaded or executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from faults.damage import Marker
from faults.doors import MAGIC
from fuzz import grammar
from helpers import key_cases

from safecache.built_code import ninja_builds, packages
from safecache.errors import EntryRefusedError
from safecache.places import layout
from safecache.places.layout import CodeFile
from safecache.reporting import events
from safecache.reporting.kinds import Kind
from safecache.settings import config
from safecache.signing import key_files, keyring, provenance, seal
from safecache.signing.keys import Key
from safecache.store import attestations, gate, manifests
from safecache.tiers import fallback, levels
from safecache.upkeep import audit
from safecache.upkeep.audit import adopt
from scenes import artifact_scenes

STRANGER = Key.derive(b"a key that nobody here knows. . .")
REVOKED = Key.derive(b"a key that was revoked. . . . . .")
EXPIRED = Key.derive(b"a key that has expired . . . . . ")
HARMLESS = pickle.dumps({"harmless": 1})


class Sink:
    """One place: what lies at ``path`` is used by ``use`` as ``kind`` under ``cache_key``, and has its seal in it."""

    kind: Kind
    cache_key = ""
    path: Path
    header = b""
    # Outside of the seal, before it.
    version = b""
    # What its seal says besides where it was built.
    states: Mapping[str, str] = MappingProxyType({})
    # What is called, by then the last time in a use, to find out whether it may be used.
    looks = (seal, "verify", 1)

    def __init__(self, base: Path, trojan: str) -> None:
        self.base = base
        self.marker = base / "ran"

    def hostile(self) -> bytes:
        """What does harm if it is used."""
        return self.header + pickle.dumps(Marker(self.marker))

    def harmless(self) -> bytes:
        """What does none."""
        return self.header + HARMLESS

    def plant(self, content: bytes, sealing) -> None:
        """Put ``content`` there; ``sealing`` makes its seal. It may depend on the bytes, and so may the path."""
        self.put(sealing(content))

    def put(self, sealed: bytes) -> None:
        """Put these bytes there, seal included."""
        self.clear()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(sealed)

    def clear(self) -> None:
        """Have nothing there."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)

    def use(self) -> bool:
        """Ask torch for it: whether there was anything."""
        raise NotImplementedError

    def attempt(self) -> str:
        """What came of a use."""
        try:
            return "hit" if self.use() else "miss"
        except Exception as error:
            return type(error).__name__

    @property
    def cache_root(self) -> str:
        """The cache that it is a part of."""
        return os.environ["TORCHINDUCTOR_CACHE_DIR"]

    def is_sealed_anew(self) -> bool:
        """Whether something in the cache attests what does harm, and was not planted with it."""
        return False


class Entry(Sink):
    """An entry of one of the two caches, named after what it is."""

    cache_key = "f" + "k" * 50

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        self.path = self.directory / "entry"

    @property
    def cache(self):
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
        from torch._inductor.codecache import FxGraphCache

        return AOTAutogradCache if self.kind is Kind.AOT_ENTRY else FxGraphCache

    @property
    def directory(self) -> Path:
        return Path(self.cache._get_tmp_dir_for_key(self.cache_key))

    def put(self, sealed):
        self.path = self.directory / layout.name_entry(sealed)
        super().put(sealed)

    def clear(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def use(self):
        return bool(list(self.cache.iterate_over_candidates(True, None, self.cache_key)))


class AotEntry(Entry):
    kind = Kind.AOT_ENTRY


class FxEntry(Entry):
    kind = Kind.FX_ENTRY


class Artifact(Sink):
    """What is compiled ahead of time, handed over by its caller."""

    name: str

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        self.path = base / "artifact"
        getattr(artifact_scenes, f"save_{self.name}")(str(self.path))
        content = self.path.read_bytes()
        self.header = content[: len(MAGIC) + 1] if content.startswith(MAGIC) else b""

    def use(self):
        return getattr(artifact_scenes, f"load_{self.name}")(str(self.path))


class Function(Artifact):
    kind, name = Kind.AOT_FUNCTION, "function"


class Model(Artifact):
    kind, name = Kind.AOT_MODEL, "model"


class Graph(Artifact):
    kind, name = Kind.AOT_GRAPH, "graph_module"


class Precompile(Sink):
    kind = Kind.DYNAMO_PACKAGE

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        from torch._dynamo.package import CompilePackage, DynamoCache

        from scenes.models import function

        self.cache, self.function = DynamoCache, function
        key = CompilePackage.source_id_from_fn(function)
        self.cache_key = os.path.basename(key)
        self.path = Path(DynamoCache.path_prefix(), key, "entry")
        self.states = {"function": provenance.digest_code(function.__code__, of=function.__module__, line=True)}

    def use(self):
        return self.cache.load(self.function) is not None


class Profile(Sink):
    kind, cache_key = Kind.PGO_STATE, "job"

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        with artifact_scenes._job() as pgo:
            self.cache_key = pgo.get_cache_key()
            self.path = Path(pgo.code_state_path(self.cache_key))

    def use(self):
        with artifact_scenes._job() as pgo:
            return pgo.get_local_code_state(self.cache_key) is not None


class Memo(Sink):
    kind = Kind.MEMO

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        self.place = base / "memo"
        self.place.mkdir()
        artifact_scenes.save_memo(str(self.place))
        (self.path,) = (path for path in self.place.glob("*/cache/sub/*") if path.suffix != ".lock")
        self.version = self.path.read_bytes()[:4]
        self.cache_key = str(self.path.relative_to(self.path.parents[1]))

    def put(self, sealed):
        super().put(self.version + sealed)

    def use(self):
        return artifact_scenes.load_memo(str(self.place))


class Attested(Sink):
    """A file of code, which has its seal in a record."""

    root: Path
    looks = (gate, "judge_file", 2)

    def plant(self, content, sealing):
        statement = {"sha256": hashlib.sha256(content).hexdigest(), "stamp": None}
        self.clear()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(content)
        self.put_record(sealing(json.dumps(statement).encode()))

    @property
    def record(self) -> Path:
        return Path(manifests.record_path(CodeFile(str(self.path), str(self.root), self.kind)))

    def is_sealed_anew(self):
        stated = manifests.read_unverified_record(CodeFile(str(self.path), str(self.root), self.kind))
        hostile = hashlib.sha256(self.hostile()).hexdigest()
        return stated not in (None, self.planted) and manifests.read_unverified(stated)["sha256"] == hostile

    @property
    def cache_root(self):
        return str(self.root)

    def put_record(self, sealed: bytes) -> None:
        self.planted = sealed
        self.record.unlink(missing_ok=True)
        self.record.parent.mkdir(parents=True, exist_ok=True)
        self.record.write_bytes(sealed)


class Library(Attested):
    """A kernel of Inductor's: built unless there is one, then loaded."""

    kind, cache_key = Kind.NATIVE_CODE, "pl/planted.so"

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        self.root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        self.path = self.root / self.cache_key
        self.trojan = Path(trojan).read_bytes()

    def hostile(self):
        return self.trojan

    def harmless(self):
        return b"\x7fELF but not much more"

    def use(self):
        from torch._inductor.codecache import CppCodeCache

        gate.quarantine_unattested(CodeFile(str(self.path), str(self.root)))
        if not self.path.exists():
            return False
        CppCodeCache._load_library(str(self.path), "key")
        return True


class Code(Library):
    """The same, that is not loaded: one process can load a library of one name once. That it is left counts as harm."""

    def use(self):
        gate.quarantine_unattested(CodeFile(str(self.path), str(self.root)))
        if self.path.exists() and self.path.read_bytes() == self.hostile():
            self.marker.touch()
        return self.path.exists()


class Kernel(Attested):
    """A file in Triton's cache; that it is handed out counts as harm done."""

    kind = Kind.KERNEL
    looks = (gate, "judge_file", 1)

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        from triton.runtime.cache import FileCacheManager

        key = "K" * 52
        self.manager = FileCacheManager(key)
        self.path = Path(self.manager.cache_dir, "kernel.cubin")
        self.root = self.path.parents[1]
        self.cache_key = f"{key}/kernel.cubin"

    def hostile(self):
        return b"hostile"

    def harmless(self):
        return b"harmless"

    def use(self):
        found = self.manager.get_file(self.path.name)
        if found and Path(found).read_bytes() == self.hostile():
            self.marker.touch()
        return found is not None


class Source(Sink):
    """A Python module that Inductor generates, writes unless it is there, and executes. It has no seal."""

    kind = Kind.SOURCE
    looks = (gate, "make_private_path", 1)
    text = "harmless = True\n"

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        from torch._inductor import codecache

        self.codecache = codecache
        self.path = Path(codecache.PyCodeCache.write(self.text)[1])

    def hostile(self):
        return f"open({str(self.marker)!r}, 'w').close()\n".encode()

    def harmless(self):
        return self.text.encode()

    def plant(self, content, sealing):
        self.put(content)

    def use(self):
        self.codecache.PyCodeCache.modules_no_attr.clear()
        self.codecache.PyCodeCache.load(self.text)
        return True


class Package(Sink):
    """A package of AOTInductor, that is not unpacked and loaded: that it may be counts as harm."""

    kind = Kind.PACKAGE
    looks = (packages, "_find_refusal_by_end", 2)

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        self.path = base / "model.pt2"

    def hostile(self):
        return b"hostile"

    def use(self):
        with packages.verify_package(str(self.path)) as place:
            if seal.strip_unverified(Path(place).read_bytes()) == self.hostile():
                self.marker.touch()
            return True

    @property
    def cache_root(self):
        return str(self.base)


class Extension(Attested):
    """A library that ninja has built, and finds up to date: that it is left counts as harm."""

    kind, cache_key = Kind.NATIVE_CODE, "extension/probe.so"
    looks = (attestations, "attest_in_process", 1)

    def __init__(self, base, trojan):
        super().__init__(base, trojan)
        self.root = base / "extension"
        self.path = self.root / "probe.so"
        self.root.mkdir()
        (self.root / "probe.cpp").write_text("int probe;")
        self.build = ninja_builds.Build(str(self.root), "build probe.so: link probe.cpp\n")

    def hostile(self):
        return b"hostile"

    def harmless(self):
        return b"harmless"

    @property
    def record(self):
        return Path(manifests.record_path(CodeFile(str(self.path), str(self.root), self.kind, name=self.cache_key)))

    def plant(self, content, sealing):
        self.build.settle()
        (step,) = self.build._steps.values()
        built_of = {"sha256": self.build._digest_inputs(step, []), "headers": ninja_builds._pack_headers([])}
        statement = {"sha256": hashlib.sha256(content).hexdigest(), "stamp": None, "inputs": built_of}
        self.path.write_bytes(content)
        self.put_record(sealing(json.dumps(statement).encode()))

    def use(self):
        self.build.settle()
        if not self.path.exists():
            return False
        place, content = gate.verify_load_path(CodeFile(str(self.path), str(self.root)))
        if (content or Path(place).read_bytes()) == self.hostile():
            self.marker.touch()
        return True

    def is_sealed_anew(self):
        stated = manifests.read_unverified_record(
            CodeFile(str(self.path), str(self.root), self.kind, name=self.cache_key)
        )
        return stated not in (None, self.planted)


SINKS = {
    "package": Package,
    "extension": Extension,
    "aot": AotEntry,
    "fx": FxEntry,
    "source": Source,
    "library": Library,
    "code": Code,
    "kernel": Kernel,
    "function": Function,
    "model": Model,
    "graph": Graph,
    "precompile": Precompile,
    "profile": Profile,
    "memo": Memo,
}


# --- attacks: each plants something in a sink, and may say how the attacker acts while it is used


class Forger:
    """Makes seals as ``sink`` asks for them, with our own key unless told otherwise."""

    def __init__(self, sink: Sink, own: Key | None = None) -> None:
        self.sink = sink
        self.own = own or keyring.current().signing

    def seal(self, payload: bytes, **other) -> bytes:
        kind, cache_key = other.get("kind", self.sink.kind), other.get("cache_key", self.sink.cache_key)
        built = provenance.make_statement(kind) | self.sink.states | other.get("build", {})
        key, namespace = other.get("key", self.own), other.get("namespace", "default")
        return seal.attach(payload, kind, cache_key, key, built, namespace)

    def with_parts(self, change):
        """A way to seal: ours, with its parts changed afterwards."""
        return lambda payload: change(grammar.take_apart(self.seal(payload))).content


def _older(parts, key):
    """An entry as format 1 had them, in full: by its own domain, and without a namespace."""
    stated = json.loads(parts.body)
    del stated["namespace"]
    old = parts._replace(body=grammar.body(**stated), format=1).with_sizes()
    return old._replace(tag=key.make_tag(b"safecache seal 1\0" + old.footer + old.body))


def _sealed_by(**other):
    return lambda sink, forger: sink.plant(sink.hostile(), lambda payload: forger.seal(payload, **other))


def _changed(change):
    return lambda sink, forger: sink.plant(sink.hostile(), forger.with_parts(lambda parts: change(parts, forger.own)))


def no_tag(sink, forger):
    sink.plant(sink.hostile(), lambda payload: payload)
    if isinstance(sink, Attested):
        sink.record.unlink()


def secret_of_another(sink, forger):
    impostor = Key(forger.own.id, STRANGER.secret)
    sink.plant(sink.hostile(), lambda payload: forger.seal(payload, key=impostor))


def other_kind(sink, forger):
    kind = Kind.FX_ENTRY if sink.kind is not Kind.FX_ENTRY else Kind.AOT_ENTRY
    sink.plant(sink.hostile(), lambda payload: forger.seal(payload, kind=kind))


def symbolic_link(sink, forger):
    """To what would be used if it lay there itself."""
    sink.plant(sink.hostile(), forger.seal)
    elsewhere = sink.base / "elsewhere"
    sink.path.replace(elsewhere)
    sink.path.symlink_to(elsewhere)


def hard_link(sink, forger):
    """To what is good elsewhere: of a source, another source."""
    sink.plant(sink.hostile(), lambda payload: forger.seal(payload, cache_key="elsewhere"))
    place = sink.record if isinstance(sink, Attested) else sink.path
    elsewhere = sink.base / "elsewhere"
    elsewhere.unlink(missing_ok=True)
    place.replace(elsewhere)
    os.link(elsewhere, place)


def foreign_owner(sink, forger):
    sink.plant(sink.hostile(), forger.seal)
    os.chown(sink.path, 12345, 12345)


@contextlib.contextmanager
def open_ancestor(sink, forger):
    """Where unsealed files are trusted, if nobody else could have written them."""
    no_tag(sink, forger)
    sink.path.parent.chmod(0o777)
    with _settings(SAFECACHE_TRUST="private"):
        yield


@contextlib.contextmanager
def swap(sink, forger):
    """As soon as what lies there was looked at for the last time, something else does."""
    sink.plant(sink.harmless(), forger.seal)
    sink.path.parent.chmod(0o777)
    module, name, last = sink.looks
    looked, calls = getattr(module, name), []

    def look(*rest, **named):
        found = looked(*rest, **named)
        calls.append(name)
        if len(calls) == last:
            sink.path.unlink()
            sink.path.write_bytes(sink.version + sink.hostile())
        return found

    with mock.patch.object(module, name, look):
        yield
    assert len(calls) >= last, "nobody looked"


def other_content(sink, forger):
    """What is good of a record or seal, and something else than that was made for."""
    sink.plant(sink.harmless(), forger.seal)
    if isinstance(sink, Attested):
        sink.path.write_bytes(sink.hostile())
    else:
        sealed = forger.seal(sink.harmless())
        sink.put(sink.hostile() + sealed[len(sink.harmless()) :])


@contextlib.contextmanager
def _settings(**variables):
    with mock.patch.dict(os.environ, variables):
        config.reload()
        yield
    config.reload()


ATTACKS = {
    "as it should be": _sealed_by(),
    "no tag": no_tag,
    "other content": other_content,
    "unknown key": _sealed_by(key=STRANGER),
    "secret of another key": secret_of_another,
    "revoked key": _sealed_by(key=REVOKED),
    "expired key": _sealed_by(key=EXPIRED),
    "other cache key": _sealed_by(cache_key="another"),
    "other kind": other_kind,
    "other namespace": _sealed_by(namespace="staging"),
    "other GPU": _sealed_by(build={"gpu": "sm_80"}),
    "other build": _sealed_by(build={"torch": "2.10.0", "triton": "3.5.0"}),
    "older format": _changed(_older),
    "format byte": _changed(lambda parts, _: parts._replace(format=1)),
    "truncated tag": _changed(lambda parts, _: parts._replace(tag=parts.tag[:-1])),
    "symbolic link": symbolic_link,
    "hard link": hard_link,
    "foreign owner": foreign_owner,
    "open ancestor": open_ancestor,
    "swap": swap,
}


def _cell(sink: Sink, attack, strict: bool, key: Key | None = None, flow=lambda sink: None) -> dict:
    """What came of one attack, in a process that remembers nothing of the one before."""
    attestations._state.reset()
    events._state.reset()
    keyring._stopped.clear()
    sink.marker.unlink(missing_ok=True)
    sink.clear()
    shutil.rmtree(Path(sink.cache_root, ".safecache", "quarantine"), ignore_errors=True)
    sink.path.parent.mkdir(parents=True, exist_ok=True)
    sink.path.parent.chmod(0o755)
    with _settings(SAFECACHE_STRICT=str(int(strict))):
        during = attack(sink, Forger(sink, key))
        events._state.reset()
        with during or contextlib.nullcontext(), flow(sink) or contextlib.nullcontext(), _listening() as said:
            outcome = sink.attempt()
            sealed = sink.is_sealed_anew()
    found = {"ran": sink.marker.exists(), "outcome": outcome, "counts": events.read_counters(), "sealed": sealed}
    return found | {"said": said}


@contextlib.contextmanager
def _listening():
    """What is logged in this block."""
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("safecache").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("safecache").removeHandler(handler)


# --- what a process holds of keys when it meets what was sealed with the key of a farm


def _file(base, name, key):
    key_files.save(str(base / name), key)
    (base / name).chmod(0o600 if key.can_seal else 0o644)
    return {"SAFECACHE_KEY_FILE": str(base / name)}


def _withdrawn(how):
    def state(base):
        key_cases.put(how(key_cases.PUBLIC))
        return _file(base, "farm", key_cases.PRIVATE)

    return state


def _unreadable(base):
    (base / "unreadable").mkdir()
    return {"SAFECACHE_KEY_FILE": str(base / "unreadable")}


def _no_home(base):
    (base / "file").touch()
    return {"XDG_CONFIG_HOME": str(base / "file")}


STATES = {
    "MAC": lambda base: _file(base, "mac", key_cases.MAC),
    "Ed25519": lambda base: _file(base, "farm", key_cases.PRIVATE),
    "public part": lambda base: _file(base, "public", key_cases.PUBLIC),
    "revoked": _withdrawn(key_cases.revoked),
    "expired": _withdrawn(key_cases.expired),
    "another": lambda base: {},
    "unreadable": _unreadable,
    "missing": lambda base: {"SAFECACHE_KEY_FILE": str(base / "missing")},
    "no keyring": lambda base: _file(base, "farm", key_cases.PRIVATE) | {"SAFECACHE_KEYRING": str(base / "missing")},
    "no home": _no_home,
}


@contextlib.contextmanager
def _in_state(name, base):
    base.mkdir()
    with _settings(XDG_CONFIG_HOME=str(base)), _settings(**STATES[name](base)):
        keyring.renew()
        yield
    keyring.renew()


# --- what is done, on purpose, with a cache in which something was planted, before it is used


def _sign(root):
    audit.countersign(layout.walk(root), layout.walk_code(root))


def _adopt(root):
    # Of a directory that is not private nothing is.
    with contextlib.suppress(EntryRefusedError):
        adopt(root)


def _use_and_restore(sink):
    sink.attempt()
    for item in audit.list_quarantined([sink.cache_root]):
        with contextlib.suppress(EntryRefusedError, FileExistsError):
            audit.restore_quarantined(item)


@contextlib.contextmanager
def _as_layer(root, name):
    """The cache, with what is planted there, is the layer that the setting names, and empty itself."""
    layer = f"{root}.{name}"
    os.rename(root, layer)
    os.mkdir(root)
    with _settings(SAFECACHE_LOWER=layer):
        yield
    shutil.rmtree(root)
    os.rename(layer, root)


@contextlib.contextmanager
def _below_local_level(root, base):
    fallback._state.reset()
    with _settings(SAFECACHE_LOCAL=str(base / "local")):
        fallback.ensure_cache_directory(lambda: root)
        assert config.cache_directory() != root
        yield
        config.redirect_cache(root, None)
    shutil.rmtree(base / "local")
    levels._state.reset()
    fallback._state.reset()


FLOWS = {
    "sign": lambda sink: _sign(sink.cache_root),
    "adopt": lambda sink: _adopt(sink.cache_root),
    "restore": _use_and_restore,
    "lower": lambda sink: _as_layer(sink.cache_root, "lower"),
    "local": lambda sink: _below_local_level(sink.cache_root, sink.base),
}


def face_in_flows(sink, flows, attacks, directory, trojan):
    """What comes of each of these attacks on this sink after each of these flows."""
    os.environ["TROJAN_MARKER"] = os.path.join(directory, "ran")
    _trust_but_not(REVOKED, EXPIRED)
    place = SINKS[sink](Path(directory), trojan)
    return {
        flow: {
            attack: [_cell(place, ATTACKS[attack], strict, flow=FLOWS[flow]) for strict in (False, True)]
            for attack in attacks
        }
        for flow in flows
    }


def face_in_states(sink, attacks, directory, trojan):
    """What comes of each of these attacks on this sink, by what is held of keys, by trust and by mode."""
    os.environ["TROJAN_MARKER"] = os.path.join(directory, "ran")
    place = SINKS[sink](Path(directory), trojan)
    outcomes = {}
    for name in STATES:
        farm = key_cases.MAC if name == "MAC" else key_cases.PRIVATE
        with _in_state(name, Path(directory, f"state {name}")):
            for trust in ("signed", "private"):
                with _settings(SAFECACHE_TRUST=trust):
                    outcomes[f"{name}, {trust}"] = {
                        attack: [_cell(place, ATTACKS[attack], strict, farm) for strict in (False, True)]
                        for attack in attacks
                    }
    return outcomes


def plant_in_entries(attack, kind, directory):
    """Attack every entry of a kind that is there; for what only lies there, and waits for another process."""
    _trust_but_not(REVOKED, EXPIRED)
    entry = SINKS[kind](Path(directory), __file__)
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    keys = [place.cache_key for place in layout.walk(str(root)) if place.kind is entry.kind]
    for entry.cache_key in keys:
        with ATTACKS[attack](entry, Forger(entry)) or contextlib.nullcontext():
            pass
    return len(keys)


def _trust_but_not(revoked, expired):
    key_cases.put(key_cases.revoked(revoked))
    key_cases.put(key_cases.expired(expired))
    keyring.renew()


def face(sink, attacks, directory, trojan):
    """What comes of each of these attacks on this sink: in default mode, and in strict mode."""
    os.environ["TROJAN_MARKER"] = os.path.join(directory, "ran")
    _trust_but_not(REVOKED, EXPIRED)
    place = SINKS[sink](Path(directory), trojan)
    return {name: [_cell(place, ATTACKS[name], strict) for strict in (False, True)] for name in attacks}
