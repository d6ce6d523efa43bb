"""Packs as container images, which skopeo sends to a registry and fetches from there.

skopeo has the logins, certificates and retries of a client of registries, and compares what it fetches with its
digest. A digest says nothing of who made a pack: whoever reads the pack verifies its seal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any, NamedTuple

from safecache.errors import ConfigError, RegistryError
from safecache.fs import private_directory
from safecache.settings.units import write_size

__all__ = ["FILE", "Reference", "fetch", "parse_reference", "push"]

FILE = "model.safecache"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG, _LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
# Docker's form of a layer, which a registry or a tool may have made of it.
_LAYERS = (_LAYER, "application/vnd.docker.image.rootfs.diff.tar.gzip")
# Where GKM's and KServe's extractor of kernel caches looks in a layer, and what tells it the kind of a cache.
_PATH, _INDEX_PATH = f"io.triton.cache/{FILE}", "io.triton.manifest/manifest.json"
_LABEL = "cache.triton.image"
_PIECE = 1 << 20
# Seconds that skopeo gets, and one more for so many bytes; and the bytes of a file that any fetch may write.
_PATIENCE_S, _SLOWEST, _SMALL = 60.0, 10_000, 8 << 20

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"oci://(?P<name>{_HOST}(?:/{_NAME})+)"
    rf"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@(?P<digest>{_DIGEST.pattern}))?"
)


class Reference(NamedTuple):
    """An image; ``name``: ``HOST/REPOSITORY``; ``digest``: of its manifest, or "" where only its tag is given."""

    name: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse_reference(text: str) -> Reference:
    """Parse ``oci://HOST/REPOSITORY:TAG`` or ``…@sha256:…``. Without a tag, "latest" is meant.

    Raises RegistryError, which does not show ``text``: it may hold a password.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        form = "oci://REGISTRY/REPOSITORY:TAG or …@sha256:…, without a user or password (docker login keeps those)"
        raise RegistryError(f"this is no reference of the form {form}")
    name, tag, digest = match.group("name", "tag", "digest")
    return Reference(name, tag or "latest", digest or "")


def push(to: Reference, path: str, made_with: Mapping[str, Any], *, has_tls: bool = True) -> Reference:
    """Send the pack at ``path`` as an OCI image to the tag ``to``, and return the image's reference by digest.

    ``made_with``: versions in the pack's manifest. ``has_tls``: False to accept a registry without valid TLS. Raises
    RegistryError, also if ``to`` has a digest; OSError; ConfigError if skopeo is not installed.
    """
    if to.digest:
        raise RegistryError("what is pushed gets a tag: its digest follows from what it is")
    with private_directory.create_temporary() as directory:
        manifest = _write_layout(os.path.join(directory, "image"), path, made_with)
        words = ["copy", "--quiet", "--preserve-digests", "--retry-times=2", f"--dest-tls-verify={has_tls}".lower()]
        _run_skopeo([*words, "oci:image", f"docker://{to}"], directory, os.path.getsize(path), to)
    return to._replace(digest=manifest)


@contextlib.contextmanager
def fetch(reference: Reference, max_bytes: int, *, has_tls: bool = True) -> Iterator[tuple[str, Reference]]:
    """Download an OCI image. The context yields the path of its pack, unverified, and the reference by digest.

    The file is removed at the end of the context. ``has_tls``: as in push(). Raises RegistryError, also for an image of
    more than ``max_bytes``; OSError; ConfigError if skopeo is not installed.
    """
    verify_tls = f"tls-verify={has_tls}".lower()
    with private_directory.create_temporary() as directory:
        inspect = ["inspect", "--raw", "--retry-times=2", f"--{verify_tls}", f"docker://{reference}"]
        manifest = _run_skopeo(inspect, directory, 0, reference)
        found = reference._replace(digest=_digest_content(manifest))
        if reference.digest not in ("", found.digest):
            raise RegistryError(f"{reference} is refused: its registry sent {found.digest}")
        digest, size = _read_unverified_layer(manifest, reference)
        if size > max_bytes:
            allowed = f"more than the {max_bytes} that are allowed"
            raise RegistryError(f"the pack of {reference} has {size} bytes, {allowed}")
        copy = ["copy", "--quiet", "--preserve-digests", "--retry-times=2", f"--src-{verify_tls}"]
        _run_skopeo([*copy, f"docker://{found}", "oci:image"], directory, size, reference)
        path = os.path.join(directory, FILE)
        with open(_locate_blob(os.path.join(directory, "image"), digest), "rb") as layer, open(path, "xb") as pack:
            _unwrap_unverified(layer, pack, max_bytes, str(reference))
        shutil.rmtree(os.path.join(directory, "image"))
        yield path, found


def _run_skopeo(words: list[str], directory: str, size: int, reference: Reference) -> bytes:
    """Run skopeo in this directory, for an image of ``size`` bytes, and return what it prints."""
    program = shutil.which("skopeo")
    if program is None:
        raise ConfigError("registries need skopeo: install the package skopeo, such as by apt-get install skopeo")
    seconds, pipe = _PATIENCE_S + size / _SLOWEST, subprocess.PIPE
    with subprocess.Popen(
        [program, *words], cwd=directory, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
    ) as child:
        try:
            # A registry may send more than it has stated.
            _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            limit = min([max(size, _SMALL), *(each for each in limits if each != resource.RLIM_INFINITY)])
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (limit, hard))
            printed, errors = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise RegistryError(f"{reference} took longer than {seconds:.0f} s") from None
        finally:
            child.kill()
    if child.returncode:
        raise RegistryError(f"{reference}: {_describe_failure(errors.decode(errors='replace'), child.returncode)}")
    return printed


def _describe_failure(errors: str, code: int) -> str:
    """Say it in skopeo's words, which are the last line, without the signatures in a URL."""
    said = re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', errors)
    if not said:
        return f"skopeo ended with {code}"
    text = re.sub(r"\?[^\s\"]*", "?…", said[-1].replace('\\"', '"'))
    needs_login = re.search("unauthorized|authentication required|denied", text)
    return f"skopeo says: {text}" + ("; docker login, or skopeo login, keeps a password" if needs_login else "")


def _digest_content(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _dump_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


# --- a layout of one image: https://github.com/opencontainers/image-spec/blob/main/image-layout.md


def _write_layout(image: str, path: str, made_with: Mapping[str, Any]) -> str:
    """Write the layout of the image of this pack; the digest of its manifest, the same for the same pack."""
    os.makedirs(os.path.join(image, "blobs", "sha256"))
    layer, unpacked = _write_layer(image, path)
    config = _write_blob(image, _CONFIG, _dump_json(_describe_image(unpacked, os.path.getsize(path), made_with)))
    annotations = {"org.opencontainers.image.title": FILE, **dict(_list_versions("vnd.safecache.made-with", made_with))}
    manifest = {"mediaType": _MANIFEST, "config": config, "layers": [layer], "annotations": annotations}
    written = _write_blob(image, _MANIFEST, _dump_json({"schemaVersion": 2, **manifest}))
    with open(os.path.join(image, "index.json"), "wb") as file:
        file.write(_dump_json({"schemaVersion": 2, "manifests": [written]}))
    with open(os.path.join(image, "oci-layout"), "wb") as file:
        file.write(_dump_json({"imageLayoutVersion": "1.0.0"}))
    return str(written["digest"])


def _locate_blob(image: str, digest: str) -> str:
    return os.path.join(image, "blobs", *digest.split(":"))


def _write_blob(image: str, kind: str, content: bytes) -> dict[str, Any]:
    with open(_locate_blob(image, _digest_content(content)), "wb") as file:
        file.write(content)
    return {"mediaType": kind, "digest": _digest_content(content), "size": len(content)}


def _write_layer(image: str, path: str) -> tuple[dict[str, Any], str]:
    """Write the layer with this pack, uncompressed as the pack is compressed; and the digest of its tar."""
    packed, unpacked, packer = hashlib.sha256(), hashlib.sha256(), zlib.compressobj(0, wbits=31)
    written = os.path.join(image, "layer")
    with open(path, "rb") as pack, open(written, "wb") as layer:
        for piece in _split_tar(pack, os.path.getsize(path)):
            unpacked.update(piece)
            packed.update(content := packer.compress(piece))
            layer.write(content)
        packed.update(content := packer.flush())
        layer.write(content)
        size = layer.tell()
    digest = f"sha256:{packed.hexdigest()}"
    os.rename(written, _locate_blob(image, digest))
    return {"mediaType": _LAYER, "digest": digest, "size": size}, f"sha256:{unpacked.hexdigest()}"


def _split_tar(pack: IO[bytes], size: int) -> Iterator[bytes]:
    yield _make_header(_PATH, size)
    yield from iter(partial(pack.read, _PIECE), b"")
    index = _dump_json({"triton": []})
    yield bytes(-size % tarfile.BLOCKSIZE) + _make_header(_INDEX_PATH, len(index)) + index
    yield bytes(-len(index) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)


def _make_header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def _list_versions(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in sorted(value.items()):
            yield from _list_versions(f"{name}.{key}", each)
    elif value is not None and value != "":
        yield name, str(value)


def _describe_image(unpacked: str, size: int, made_with: Mapping[str, Any]) -> dict[str, Any]:
    labels = {
        f"{_LABEL}/entry-count": "1",
        f"{_LABEL}/cache-size-bytes": str(size),
        f"{_LABEL}/summary": _dump_json({"targets": _list_targets(str(made_with.get("gpu") or ""))}).decode(),
    }
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(str(made_with.get("machine")), "amd64")
    rootfs = {"type": "layers", "diff_ids": [unpacked]}
    return {"architecture": architecture, "os": "linux", "config": {"Labels": labels}, "rootfs": rootfs}


def _list_targets(gpus: str) -> list[dict[str, Any]]:
    """List what MCV compares with the node's GPUs, for these architectures with commas between them."""
    found: list[dict[str, Any]] = []
    for gpu in filter(None, gpus.split(",")):
        cuda = re.fullmatch("sm_([0-9]+)[a-z]?", gpu)
        if cuda:
            found.append({"backend": "cuda", "arch": cuda[1], "warp_size": 32})
        elif gpu.startswith("gfx"):
            found.append({"backend": "hip", "arch": gpu.partition(":")[0], "warp_size": 64})
    return found


# --- what a registry has, unverified


def _read_unverified_layer(manifest: bytes, reference: Reference) -> tuple[str, int]:
    """Read the digest of the one layer, and its size in bytes. Raises RegistryError."""
    with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError):
        (layer,) = json.loads(manifest)["layers"]
        kind, digest, size = layer["mediaType"], layer["digest"], layer["size"]
        if kind in _LAYERS and _DIGEST.fullmatch(digest) and type(size) is int and size >= 0:
            return digest, size
    raise RegistryError(f"{reference} is refused: it is no pack of safecache, which is an image of one layer")


def _unwrap_unverified(layer: IO[bytes], pack: IO[bytes], max_bytes: int, shown: str) -> None:
    """Write to ``pack`` the pack, which is the first file of this layer. Raises RegistryError."""
    pieces = _inflate_unverified(layer, shown)
    head = b""
    while len(head) < tarfile.BLOCKSIZE:
        head += next(pieces)
    try:
        member = tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "strict")
    except (tarfile.HeaderError, ValueError):
        raise RegistryError(f"{shown} is refused: its layer is no tar") from None
    if member.name != _PATH or member.type != tarfile.REGTYPE or not 0 <= member.size <= max_bytes:
        allowed = f"of at most {write_size(max_bytes)}"
        raise RegistryError(
            f"{shown} is refused: it is no pack of safecache, whose layer begins with {_PATH} {allowed}"
        )
    left, piece = member.size, head[tarfile.BLOCKSIZE :]
    while left:
        pack.write(piece[:left])
        left -= min(left, len(piece))
        piece = next(pieces) if left else b""


def _inflate_unverified(layer: IO[bytes], shown: str) -> Iterator[bytes]:
    """Yield what this holds; raises RegistryError for what is no gzip, and where it ends."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        while not unpacker.eof and (piece := unpacker.unconsumed_tail or layer.read(_PIECE)):
            if content := unpacker.decompress(piece, _PIECE):
                yield content
    except zlib.error:
        raise RegistryError(f"{shown} is refused: its layer is no gzip") from None
    raise RegistryError(f"{shown} is refused: its layer ends too early")
