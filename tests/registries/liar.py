"""A registry over HTTP or TLS that serves what it is given, but for the answers that a test has it give in their place."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

OCI = "application/vnd.oci.image.manifest.v1+json"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle_one_request()

    def _serve(self):
        path = urlsplit(self.path).path
        self.sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.liar.asked.append((self.command, self.path, dict(self.headers)))
        for method, end, answer in self.server.liar.lies:
            if method == self.command and path.endswith(end):
                answer(self)
                return
        self.server.liar.honest(self)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def say(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Answer this, with ``Some_Name`` for the header Some-Name."""
        self.send_response(status)
        for name, value in ({"Content_Length": str(len(content))} | headers).items():
            if value:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

    def stream(self, piece: bytes, times: int, status: int = 200, **headers: str) -> None:
        """Answer with this piece so many times, and with no word of how much that is."""
        self.say(status, Content_Length="", Transfer_Encoding="chunked", **headers)
        with contextlib.suppress(OSError):
            for _ in range(times):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")

    def cut(self, content: bytes, size: int, status: int = 200, **headers: str) -> None:
        """Announce ``size`` bytes, send these, and hang up."""
        self.say(status, content, Content_Length=str(size), **headers)
        self.close_connection = True


class Liar:
    """``lies``: a method, the end of a path, and what to do then; ``asked``: what was asked for."""

    def __init__(self) -> None:
        self.lies, self.asked, self.content = [], [], {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.liar = self
        self._server.handle_error = lambda *_: None
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def with_tls(self, certificate: str, key: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{self.host}"

    def answer(self, method: str, end: str, do) -> None:
        self.lies.append((method, end, do))

    def honest(self, handler) -> None:
        parts = urlsplit(handler.path)
        name = parts.path.rpartition("/")[2]
        if handler.command == "POST":
            handler.say(202, Location=f"{parts.path}1")
        elif handler.command == "PUT":
            digest = f"sha256:{hashlib.sha256(handler.sent).hexdigest()}"
            stated = parse_qs(parts.query).get("digest", [digest])[0]
            self.content[stated] = handler.sent
            if "/manifests/" in parts.path:
                self.content[name] = handler.sent
            handler.say(201 if stated == digest else 400)
        elif name in self.content:
            handler.say(200, self.content[name], Content_Type=OCI if "/manifests/" in parts.path else "")
        else:
            handler.say(404, b'{"errors": [{"code": "NAME_UNKNOWN"}]}')

    def authorizations(self) -> list[str]:
        """All that was sent to it to be let in."""
        return [headers["Authorization"] for _, _, headers in self.asked if "Authorization" in headers]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
