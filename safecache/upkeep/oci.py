"""A pack as an artifact of the OCI in a registry of container images, or as an image that Kubernetes can mount.

What is fetched has the digest that was asked for, or that the registry states, and the form that is sent from here.
That says nothing of who has made it: whoever takes the file verifies the pack's own seal. Nothing that a registry says
becomes a path.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

from safecache.errors import KeyringError, RegistryError
from safecache.files import folders, temporaries
from safecache.signing import keyring
from safecache.signing.keys import Algorithm, Key
from safecache.upkeep import registry
from safecache.upkeep.registry import Blob, Reference, Registry

__all__ = ["ARTIFACT", "FILE", "Fetched", "Pushed", "fetched", "push", "sign", "signing_key"]

ARTIFACT = "application/vnd.safecache.pack.v1"
FILE = "model.safecache"
_LAYER = f"{ARTIFACT}.tar+zstd"
_CONFIG, _IMAGE_LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_EMPTY = b"{}"
_TITLE = "org.opencontainers.image.title"
# Where GKM's and KServe's extractor of kernel caches looks in a layer, and what tells it the kind of a cache.
_IN_IMAGE, _MANIFEST_IN_IMAGE = f"io.triton.cache/{FILE}", "io.triton.manifest/manifest.json"
_LABEL = "cache.triton.image"
_SIGNED, _SIGNATURE = "application/vnd.dev.cosign.simplesigning.v1+json", "dev.cosignproject.cosign/signature"
_MOST_SIGNATURES = 100
_PIECE = 1 << 20


class Pushed(NamedTuple):
    """``reference``: by digest, as ``cosign verify`` takes it; ``size``: in bytes, 0 if the registry had it."""

    reference: str
    digest: str
    size: int


class Fetched(NamedTuple):
    """``digest``: of its manifest in the registry, which says ``annotations``, unverified; ``size``: in bytes."""

    path: str
    digest: str
    size: int
    annotations: Mapping[str, str]


def push(to: Reference, path: str, made_with: Mapping[str, Any], there: Registry, *, as_image: bool = False) -> Pushed:
    """Send the pack at ``path``; ``made_with``: the versions that its manifest has. Raises RegistryError or OSError."""
    if to.digest:
        raise RegistryError("what is pushed gets a tag: its digest follows from what it is")
    with open(path, "rb") as pack, contextlib.ExitStack() as stack:
        blob = _blob_of(pack)
        if as_image:
            layer: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            unpacked = _wrap(pack, blob.size, layer)
            config, kind = _image_config(unpacked, blob.size, made_with), _CONFIG
            blob, layer_kind = _blob_of(layer), _IMAGE_LAYER
        else:
            layer, config, kind, layer_kind = pack, _EMPTY, "application/vnd.oci.empty.v1+json", _LAYER
        sent = blob.size if there.upload(blob, layer) else 0
    there.upload(_blob(config), io.BytesIO(config))
    manifest = {
        "schemaVersion": 2,
        "mediaType": registry.OCI_MANIFEST,
        "artifactType": ARTIFACT,
        "config": _descriptor(kind, _blob(config)),
        "layers": [_descriptor(layer_kind, blob) | {"annotations": {_TITLE: FILE}}],
        "annotations": {_TITLE: FILE} | dict(_versions("vnd.safecache.made-with", made_with)),
    }
    digest = there.put_manifest(to.tag, _json(manifest))
    return Pushed(to._replace(tag="", digest=digest).shown, digest, sent)


def _versions(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in sorted(value.items()):
            yield from _versions(f"{name}.{key}", each)
    elif value is not None and value != "":
        yield name, str(value)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _blob(content: bytes) -> Blob:
    return Blob(registry.digest_of(content), len(content))


def _blob_of(file: IO[bytes]) -> Blob:
    file.seek(0)
    hasher = hashlib.sha256()
    while piece := file.read(_PIECE):
        hasher.update(piece)
    return Blob(f"sha256:{hasher.hexdigest()}", file.tell())


def _descriptor(kind: str, blob: Blob) -> dict[str, Any]:
    return {"mediaType": kind, "digest": blob.digest, "size": blob.size}


# The image: one layer with the pack first, which is compressed already.


def _wrap(pack: IO[bytes], size: int, layer: IO[bytes]) -> str:
    """Write the layer of an image with this pack; the digest of the layer before its compression."""
    hasher, packer = hashlib.sha256(), zlib.compressobj(0, wbits=31)

    def put(content: bytes) -> None:
        hasher.update(content)
        layer.write(packer.compress(content))

    pack.seek(0)
    put(_header(_IN_IMAGE, size))
    while piece := pack.read(_PIECE):
        put(piece)
    manifest = _json({"triton": []})
    put(bytes(-size % tarfile.BLOCKSIZE) + _header(_MANIFEST_IN_IMAGE, len(manifest)) + manifest)
    put(bytes(-len(manifest) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
    layer.write(packer.flush())
    return f"sha256:{hasher.hexdigest()}"


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member.tobuf(tarfile.GNU_FORMAT)


def _image_config(unpacked: str, size: int, made_with: Mapping[str, Any]) -> bytes:
    labels = {
        f"{_LABEL}/entry-count": "1",
        f"{_LABEL}/cache-size-bytes": str(size),
        f"{_LABEL}/summary": _json({"targets": _targets(str(made_with.get("gpu") or ""))}).decode(),
    }
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(str(made_with.get("machine")), "amd64")
    rootfs = {"type": "layers", "diff_ids": [unpacked]}
    return _json({"architecture": architecture, "os": "linux", "config": {"Labels": labels}, "rootfs": rootfs})


def _targets(gpus: str) -> list[dict[str, Any]]:
    """What MCV compares with the node's GPUs, for these architectures with commas between them."""
    found: list[dict[str, Any]] = []
    for gpu in filter(None, gpus.split(",")):
        cuda = re.fullmatch("sm_([0-9]+)[a-z]?", gpu)
        if cuda:
            found.append({"backend": "cuda", "arch": cuda[1], "warp_size": 32})
        elif gpu.startswith("gfx"):
            found.append({"backend": "hip", "arch": gpu.partition(":")[0], "warp_size": 64})
    return found


@contextlib.contextmanager
def fetched(what: Reference, there: Registry, directory: str, most: int) -> Iterator[Fetched]:
    """The pack with this tag or digest, in a temporary file in ``directory``, for this block, which may move it away.

    ``most``: its largest size in bytes. Raises RegistryError or OSError.
    """
    found = there.manifest(what.digest or what.tag, ", ".join((registry.OCI_MANIFEST, *_INDEXES)))
    if found is None:
        raise RegistryError(f"there is no {what.shown}")
    content, kind = found
    blob, is_image, annotations = _read_manifest(content, kind, what.shown)
    if blob.size > most:
        raise RegistryError(f"the pack of {what.shown} has {blob.size} bytes, more than the {most} that are allowed")
    with contextlib.ExitStack() as stack:
        path, file = stack.enter_context(_new(directory))
        there.download(blob, file)
        if is_image:
            layer = file
            path, file = stack.enter_context(_new(directory))
            _unwrap(layer, file, most, what.shown)
        file.flush()
        yield Fetched(path, registry.digest_of(content), os.fstat(file.fileno()).st_size, annotations)


@contextlib.contextmanager
def _new(directory: str) -> Iterator[tuple[str, IO[bytes]]]:
    with temporaries.beside(os.path.join(directory, FILE)) as path, folders.opened(directory) as folder:
        with contextlib.suppress(OSError):  # it cannot be listed
            temporaries.reap(folder, only_ours=True)
        descriptor = folder.open(os.path.basename(path), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        temporaries.lock(folder, descriptor)
        with open(descriptor, "w+b") as file:
            yield path, file


def _read_manifest(content: bytes, kind: str, shown: str) -> tuple[Blob, bool, dict[str, str]]:
    """The blob with the pack, whether that is the layer of an image, and the annotations."""

    def refused(why: str) -> RegistryError:
        return RegistryError(f"{shown} is refused: {why}")

    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError):
        raise refused("its manifest is no JSON") from None
    if not isinstance(manifest, dict):
        raise refused("its manifest is no JSON object")
    kind = str(manifest.get("mediaType", kind))
    if kind in _INDEXES or "manifests" in manifest:
        raise refused("it is an index of several manifests, and not a pack: name one of them by its digest")
    if manifest.get("schemaVersion") != 2 or kind != registry.OCI_MANIFEST or manifest.get("artifactType") != ARTIFACT:
        raise refused(f"it is no pack of safecache, whose manifest would state artifactType {ARTIFACT}")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) != 1 or not isinstance(layers[0], dict):
        raise refused("a pack has one layer")
    layer = layers[0]
    digest, size = layer.get("digest"), layer.get("size")
    if layer.get("mediaType") not in (_LAYER, _IMAGE_LAYER):
        raise refused(f"its layer is no {_LAYER}")
    if not isinstance(digest, str) or not registry.DIGEST.fullmatch(digest):
        raise refused("its layer states no digest of sha256")
    if type(size) is not int or size < 0:
        raise refused("its layer states no size")
    said = manifest.get("annotations")
    texts = {str(name): each for name, each in said.items() if isinstance(each, str)} if isinstance(said, dict) else {}
    return Blob(digest, size), layer["mediaType"] == _IMAGE_LAYER, texts


def _unwrap(layer: IO[bytes], file: IO[bytes], most: int, shown: str) -> None:
    """Write to ``file`` the pack that is the first in this layer."""
    pieces = _inflated(layer, shown)
    head = b""
    while len(head) < tarfile.BLOCKSIZE:
        head += next(pieces, b"") or _short_of(shown)
    try:
        member = tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise RegistryError(f"{shown} is refused: its layer is no tar") from None
    if member.name != _IN_IMAGE or member.type != tarfile.REGTYPE or not 0 <= member.size <= most:
        raise RegistryError(f"{shown} is refused: its layer does not begin with {_IN_IMAGE} of at most {most} bytes")
    left, piece = member.size, head[tarfile.BLOCKSIZE :]
    while left:
        file.write(piece[:left])
        left -= min(left, len(piece))
        piece = (next(pieces, b"") or _short_of(shown)) if left else b""


def _short_of(shown: str) -> bytes:
    raise RegistryError(f"{shown} is refused: its layer ends too early")


def _inflated(layer: IO[bytes], shown: str) -> Iterator[bytes]:
    layer.seek(0)
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while not unpacker.eof and (piece := unpacker.unconsumed_tail or layer.read(_PIECE)):
            if content := unpacker.decompress(piece, _PIECE):
                yield content
    except zlib.error:
        raise RegistryError(f"{shown} is refused: its layer is no gzip") from None


def signing_key() -> Key:
    """The key that seals, which cosign takes. Raises KeyringError."""
    key = keyring.sealing_key()
    if key.algorithm is not Algorithm.ED25519:
        raise KeyringError(f"cosign takes no MAC key, as {key.id.hex()} is: safecache keygen --ed25519")
    return key


def sign(to: Reference, digest: str, key: Key, there: Registry) -> str:
    """Sign what has this digest in the repository, as cosign does with a key; the tag of the signatures.

    Beside those that are there already, which stay. Raises RegistryError.
    """
    identity = {"docker-reference": f"{to.host}/{to.name}"}
    critical = {"identity": identity, "image": {"docker-manifest-digest": digest}, "type": _CRITICAL_TYPE}
    payload = _json({"critical": critical, "optional": None})
    signature = base64.b64encode(key.tag(payload)).decode()
    layer = _descriptor(_SIGNED, _blob(payload)) | {"annotations": {_SIGNATURE: signature}}
    tag = digest.replace(":", "-") + ".sig"
    layers = _signatures(there.manifest(tag), f"{to.host}/{to.name}:{tag}")
    if layer not in layers:
        layers.append(layer)
    there.upload(_blob(payload), io.BytesIO(payload))
    config = _signatures_config(layers)
    there.upload(_blob(config), io.BytesIO(config))
    described = _descriptor(_CONFIG, _blob(config))
    manifest = {"schemaVersion": 2, "mediaType": registry.OCI_MANIFEST, "config": described, "layers": layers}
    there.put_manifest(tag, _json(manifest))
    return tag


_CRITICAL_TYPE = "cosign container image signature"


def _signatures(found: tuple[bytes, str] | None, shown: str) -> list[dict[str, Any]]:
    """The layers of the signatures that are there already, others' too."""
    if found is None:
        return []
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
        layers = json.loads(found[0])["layers"]
        if len(layers) < _MOST_SIGNATURES and all(registry.DIGEST.fullmatch(each["digest"]) for each in layers):
            return list(layers)
    raise RegistryError(f"{shown} is no list of signatures that one can be added to")


def _signatures_config(layers: Sequence[Mapping[str, Any]]) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    return _json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
