"""A registry of container images: blobs and manifests, sent and fetched as the OCI's distribution specification has it.

What it answers is taken for hostile: bounded, and compared with its digest while it arrives. A password or token goes
to the registry and to the place of tokens that it names, and never along with a redirect. By requests, with the logins
that docker's own library finds. Neither client of registries for Python fits: oras-py 0.2.43 and python-dxf 12.1.1 read
manifests of any size and send the token to wherever an upload is directed, and oras-py holds a layer in memory,
compares no digest and waits without limit.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.cookiejar
import ipaddress
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import docker.auth
import docker.errors
import requests
import urllib3

from safecache._version import __version__
from safecache.errors import RegistryError
from safecache.files import parallel

__all__ = ["DIGEST", "OCI_MANIFEST", "Blob", "Reference", "Registry", "digest_of", "parse"]

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# As the specification asks of registries; theirs of tokens and errors are a few hundred bytes.
_MOST_OF_MANIFEST, _MOST_OF_ANSWER = 4 << 20, 64 << 10
_PIECE = 1 << 20
# Seconds: to connect, and between two arrivals; and before each further try.
_TIMES = (10.0, 60.0)
_WAITS = (0.5, 2.0, 5.0)
# What a body may take in all: so many seconds, and one more for each of these bytes.
_PATIENCE, _SLOWEST = 60.0, 10_000
_HOPS = 5
_LONGEST_NAME = 255

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"oci://(?P<host>{_HOST})/(?P<name>{_NAME}(?:/{_NAME})*)"
    rf"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@(?P<digest>{DIGEST.pattern}))?"
)
_DOCKER_HUB = "docker.io"


class Reference(NamedTuple):
    """``digest``: of the manifest, "" if only its tag is given."""

    host: str
    name: str
    tag: str
    digest: str

    @property
    def shown(self) -> str:
        """As it is written, without ``oci://``."""
        return f"{self.host}/{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse(text: str) -> Reference:
    """The reference ``oci://HOST/NAME:TAG`` or ``…@sha256:…``.

    Raises RegistryError, which does not show the text: that may have a password in it.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        form = "oci://REGISTRY/REPOSITORY:TAG or …@sha256:…, without a user or password (docker login keeps those)"
        raise RegistryError(f"this is no reference of the form {form}")
    host, name, tag, digest = match.group("host", "name", "tag", "digest")
    if host == _DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    return Reference(host, name, tag or ("" if digest else "latest"), digest or "")


class Blob(NamedTuple):
    """``size``: in bytes."""

    digest: str
    size: int


def digest_of(content: bytes) -> str:
    """As a registry names it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


_Body = bytes | IO[bytes] | None
T = TypeVar("T")


class _Broken(RegistryError):
    """The connection, and not what came over it: worth another try."""


class Registry:
    """One repository of a registry. Methods raise RegistryError, which names the host and holds no secret.

    ``plain``: over HTTP without TLS. ``authorities``: a file of the certificates to trust in place of the system's.
    """

    def __init__(self, host: str, name: str, *, plain: bool = False, authorities: str = "") -> None:
        self.host, self._plain, self._authorities = host, plain, authorities
        server = "registry-1.docker.io" if host == _DOCKER_HUB else host
        self._base = f"{'http' if plain else 'https'}://{server}/v2/{name}/"
        self._authorization = ""
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": f"safecache/{__version__}", "Accept-Encoding": "identity"})
        self._session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
        # Else requests would send what ~/.netrc has for whatever host a redirect leads to.
        self._session.auth = lambda request: request

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def manifest(self, tag: str, kinds: str = OCI_MANIFEST) -> tuple[bytes, str] | None:
        """The manifest with this tag or digest, and its media type; None if there is none."""
        return self._tried(lambda: self._manifest(tag, kinds))

    def _manifest(self, tag: str, kinds: str) -> tuple[bytes, str] | None:
        what = f"the manifest {tag}"
        with self._asked("GET", self._base + f"manifests/{tag}", {"Accept": kinds}) as response:
            if response.status_code == 404:
                return None
            self._expect(response, 200, what)
            content = self._short(response, _MOST_OF_MANIFEST, what)
            kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
            stated = response.headers.get("Docker-Content-Digest", "")
        found = digest_of(content)
        if DIGEST.fullmatch(tag) and found != tag:
            raise RegistryError(f"{self.host} sent a manifest of digest {found} in place of {tag}")
        if DIGEST.fullmatch(stated) and found != stated:
            raise RegistryError(f"{self.host} sent a manifest of digest {found}, and says that it is {stated}")
        return content, kind

    def put_manifest(self, tag: str, content: bytes, kind: str = OCI_MANIFEST) -> str:
        """Store it under this tag or digest, in place of what has that tag; its digest."""
        digest, what = digest_of(content), f"the manifest {tag}"

        def put() -> str:
            url, headers = self._base + f"manifests/{tag}", {"Content-Type": kind}
            with self._asked("PUT", url, headers, content) as response:
                self._expect(response, 201, what)
                stated = response.headers.get("Docker-Content-Digest", digest)
            if stated != digest:
                raise RegistryError(f"{self.host} has stored {what} as another one than was sent")
            return digest

        return self._tried(put)

    def upload(self, blob: Blob, content: IO[bytes]) -> bool:
        """Send what ``content`` holds from its start, unless it is there already; whether it was sent."""
        return self._tried(lambda: self._upload(blob, content))

    def _upload(self, blob: Blob, content: IO[bytes]) -> bool:
        what = f"the blob {blob.digest}"
        with self._asked("HEAD", self._base + f"blobs/{blob.digest}") as response:
            if response.status_code == 200:
                return False
            self._expect(response, 404, what)
        with self._asked("POST", self._base + "blobs/uploads/") as response:
            self._expect(response, 202, what)
            place = self._elsewhere(response, what)
        place += ("&" if urlsplit(place).query else "?") + urlencode({"digest": blob.digest})
        headers = {"Content-Type": "application/octet-stream"}
        with self._asked("PUT", place, headers, content) as response:
            self._expect(response, 201, what)
        return True

    def download(self, blob: Blob, file: IO[bytes]) -> None:
        """Write it to ``file``, compared with its size and digest; resumed where the connection breaks.

        Raises OSError from ``file`` too. What has been written by then is of no use.
        """
        hasher, have = hashlib.sha256(), 0
        for wait in (*_WAITS, None):
            try:
                for piece in self._pieces(blob, have):
                    have += len(piece)
                    if have > blob.size:
                        raise RegistryError(f"{self.host} sends more of the blob {blob.digest} than {blob.size} bytes")
                    hasher.update(piece)
                    file.write(piece)
                if have < blob.size:
                    raise _Broken(f"{self.host} ended the blob {blob.digest} after {have} of {blob.size} bytes")
                break
            except _Broken:
                if wait is None:
                    raise
                time.sleep(wait)
        found = f"sha256:{hasher.hexdigest()}"
        if found != blob.digest:
            raise RegistryError(f"{self.host} sent a blob of digest {found} in place of {blob.digest}")

    def _pieces(self, blob: Blob, begin: int) -> Iterator[bytes]:
        """What follows the first ``begin`` bytes of it."""
        headers, what = {"Range": f"bytes={begin}-"} if begin else {}, f"the blob {blob.digest}"
        with self._asked("GET", self._base + f"blobs/{blob.digest}", headers) as response:
            from_there = begin and response.headers.get("Content-Range", "").startswith(f"bytes {begin}-")
            self._expect(response, 206 if from_there else 200, what)
            skipped = begin if not from_there else 0
            end = time.monotonic() + _PATIENCE
            while piece := self._read(response, _PIECE, end):
                end += len(piece) / _SLOWEST
                yield piece[skipped:]
                skipped = max(0, skipped - len(piece))

    def _tried(self, action: Callable[[], T]) -> T:
        for wait in _WAITS:
            try:
                return action()
            except _Broken:
                time.sleep(wait)
        return action()

    @contextlib.contextmanager
    def _asked(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: _Body = None
    ) -> Iterator[requests.Response]:
        """The answer to this request, its body still to be read, for this block; redirects of reads are followed."""
        knocked = False
        for _ in range(_HOPS):
            response = self._once(method, url, headers or {}, body)
            with contextlib.closing(response):
                if response.status_code == 401 and self._is_own(url) and not knocked:
                    knocked, self._authorization = True, self._login(response)
                elif response.status_code in (301, 302, 303, 307, 308) and method in ("GET", "HEAD"):
                    url = self._elsewhere(response, "what was asked for")
                else:
                    yield response
                    return
        raise RegistryError(f"{self.host} redirects without end")

    def _once(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | IO[bytes] | None
    ) -> requests.Response:
        sent = dict(headers)
        if self._authorization and self._is_own(url):
            sent["Authorization"] = self._authorization
        return self._request(method, url, headers=sent, data=body)

    def _request(self, method: str, url: str, **options: Any) -> requests.Response:
        verify, body = self._authorities or True, options.get("data")
        size = 0
        if body is not None and hasattr(body, "seek"):
            size = body.seek(0, os.SEEK_END)
            body.seek(0)

        def ask() -> requests.Response:
            return self._session.request(
                method, url, stream=True, allow_redirects=False, timeout=_TIMES, verify=verify, **options
            )

        try:
            # Their limits are for each arrival: headers could come for ever.
            return parallel.within(sum(_TIMES) + _PATIENCE + size / _SLOWEST, ask, "safecache-registry")
        except TimeoutError:
            raise RegistryError(f"{self._named(url)} sends too slowly to wait for the end") from None
        # Their texts have the URL in them, which may be signed.
        except requests.exceptions.SSLError as error:
            raise RegistryError(
                f"{self._named(url)} is not whom its certificate should show: {_innermost(error)}"
            ) from None
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            raise _Broken(f"{self._named(url)} cannot be reached: {_innermost(error)}") from None

    def _is_own(self, url: str) -> bool:
        """Whether this leads to the registry itself."""
        return urlsplit(url)[:2] == urlsplit(self._base)[:2]

    def _elsewhere(self, response: requests.Response, what: str) -> str:
        """Where its Location leads. Raises RegistryError unless what is asked there is as safe from others as here."""
        return self._checked(response.headers.get("Location", ""), what, response.url)

    def _named(self, url: str) -> str:
        place = urlsplit(url).netloc.rpartition("@")[2][:_LONGEST_NAME]
        return self.host if self._is_own(url) else f"{place}, where {self.host} directs to,"

    def _checked(self, place: str, what: str, here: str = "") -> str:
        try:
            url = urljoin(here, place)
            parts = urlsplit(url)
        except ValueError:
            raise RegistryError(f"{self.host} directs to what is no place for {what}") from None
        if parts.scheme != "https" and not (self._plain and parts.scheme == "http"):
            raise RegistryError(f"{self.host} directs to another place without TLS for {what}: this is not followed")
        if not parts.hostname or "@" in parts.netloc:
            raise RegistryError(f"{self.host} directs to a place that cannot be used for {what}")
        return url

    def _read(self, response: requests.Response, most: int, end: float) -> bytes:
        """What has arrived of the body, "" after it. Raises RegistryError if that is not before ``end``."""
        try:
            # As it was sent: what was compressed on the way would have no bounds, nor that digest.
            piece: bytes = response.raw.read1(most, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _Broken(f"{self._named(response.url)} broke off: {_innermost(error)}") from None
        if time.monotonic() > end:
            raise RegistryError(f"{self._named(response.url)} sends too slowly to wait for the end")
        return piece

    def _short(self, response: requests.Response, most: int, what: str) -> bytes:
        content, end = bytearray(), time.monotonic() + _PATIENCE
        while len(content) <= most and (piece := self._read(response, most + 1 - len(content), end)):
            content += piece
        if len(content) > most:
            raise RegistryError(f"{self.host}: {what} is larger than {most} bytes")
        return bytes(content)

    def _expect(self, response: requests.Response, status: int, what: str) -> None:
        found = response.status_code
        if found == status:
            return
        if found in (429, 500, 502, 503, 504):
            raise _Broken(f"{self._named(response.url)} cannot serve {what} now (HTTP {found})")
        remedy = f": docker login {self.host}" if found == 401 else ""
        raise RegistryError(f"{self._named(response.url)} refuses {what} (HTTP {found}{self._codes(response)}){remedy}")

    def _codes(self, response: requests.Response) -> str:
        """The codes of its error, if it gives any that can be shown."""
        with contextlib.suppress(RegistryError, ValueError, RecursionError, TypeError, KeyError):
            errors = json.loads(self._short(response, _MOST_OF_ANSWER, "an error"))["errors"]
            codes = [each["code"] for each in errors[:5] if re.fullmatch("[A-Z_]{1,40}", each["code"])]
            return "".join(f" {code}" for code in codes)
        return ""

    def _login(self, response: requests.Response) -> str:
        """The Authorization that it asks for: by the password itself, or by a token that is fetched for it."""
        scheme, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        login = self._credentials()
        if login:
            self._hide(self._base)
        if scheme.lower() == "basic" and login:
            return _basic(login)
        if scheme.lower() != "bearer":
            raise RegistryError(f"{self.host} asks for a login, and none is known: docker login {self.host}")
        return f"Bearer {self._token(requests.utils.parse_dict_header(rest), login)}"

    def _credentials(self) -> dict[str, Any]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the error tells of a helper that is not installed
                return docker.auth.load_config().resolve_authconfig(self.host) or {}
        except (docker.errors.DockerException, OSError, ValueError) as error:
            raise RegistryError(f"docker's logins cannot be read for {self.host} ({type(error).__name__})") from None

    def _hide(self, url: str) -> None:
        """Raises RegistryError where others could read a password that is sent there."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not _is_this_machine(parts.hostname or ""):
            raise RegistryError(f"the login for {self.host} is not sent to {urlsplit(url).netloc} without TLS")

    def _token(self, challenge: Mapping[str, str | None], login: Mapping[str, Any]) -> str:
        what = "a token"
        realm = self._checked(challenge.get("realm") or "", what)
        if login:
            self._hide(realm)
        asked = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        identity = login.get("IdentityToken") or login.get("identitytoken")
        if identity:
            form = {"grant_type": "refresh_token", "client_id": "safecache", "refresh_token": identity} | asked
            response = self._request("POST", realm, data=form)
        else:
            headers = {"Authorization": _basic(login)} if login else {}
            response = self._request("GET", realm, params=asked, headers=headers)
        with contextlib.closing(response):
            self._expect(response, 200, what)
            content = self._short(response, _MOST_OF_ANSWER, what)
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            found = json.loads(content)
            token = found.get("token") or found.get("access_token")
            if isinstance(token, str) and re.fullmatch(r"[!-~]+", token):
                return token
        raise RegistryError(f"{self._named(realm)} sent no token for {self.host}")


def _basic(login: Mapping[str, Any]) -> str:
    pair = f"{login.get('username') or login.get('Username')}:{login.get('password') or login.get('Password')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _is_this_machine(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name == "localhost"


def _innermost(error: BaseException) -> str:
    """What the system or the TLS library says: the libraries between put the URL before it."""
    seen: list[BaseException] = []
    left: list[object] = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseException) and each not in seen:
            seen.append(each)
            left += [getattr(each, "reason", None), each.__cause__, each.__context__, *each.args]
    for each in reversed(seen):
        said = getattr(each, "verify_message", None) or getattr(each, "strerror", None)
        if said:
            return str(said)
    return type(seen[-1]).__name__
