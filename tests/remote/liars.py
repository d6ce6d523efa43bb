"""Servers that do what a remote may do when it fails: one way each, for every connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

# What each answers to whatever it is sent; None: nothing.
ANSWERS = {
    "silent": None,
    "garbage": b"\x00\xff<html>nobody here speaks that</html>\r\n",
    "endless": b"$99999999999\r\n",
    "full": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "locked": b"-NOAUTH Authentication required.\r\n",
    "moved": b"-MOVED 3999 127.0.0.1:1\r\n",
    "cut": b"",
}


class Liar:
    """Listens on a port of its own. ``asked``: how many connections it was asked something on."""

    def __init__(self, how: str) -> None:
        self.how, self.asked = how, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
            self.asked += 1
            if self.how == "drip":
                self._drip(connection)
            answer = ANSWERS[self.how]
            if answer == b"":
                return
            while answer is not None:
                connection.sendall(answer)
                if self.how == "endless":
                    answer = b"x" * (1 << 20)
                elif not connection.recv(1 << 16):
                    return
            time.sleep(600)

    @staticmethod
    def _drip(connection: socket.socket) -> None:
        connection.sendall(b"$1000000\r\n")
        while True:
            connection.sendall(b"x")
            time.sleep(0.1)

    def close(self) -> None:
        self.listener.close()


class Deaf(Liar):
    """A port at which connections are never accepted: the queue of those that wait is full."""

    def __init__(self) -> None:
        self.asked = 0
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        self.port = self.listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.waiting = []
        for _ in range(4):
            waits = socket.socket()
            waits.setblocking(False)
            waits.connect_ex(("127.0.0.1", self.port))
            self.waiting.append(waits)

    def close(self) -> None:
        for waits in self.waiting:
            waits.close()
        super().close()


# Every way in which such a server fails, if at all it listens.
HOW = [*ANSWERS, "drip", "deaf", "refused"]


def failing_as(how: str) -> Liar:
    """One that has been started, or for "refused" ended again."""
    server = Deaf() if how == "deaf" else Liar("silent" if how == "refused" else how)
    if how == "refused":
        server.close()
    return server
