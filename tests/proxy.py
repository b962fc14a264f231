"""A TCP proxy that cuts its connections after so many bytes: a server that dies in the middle of an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_READ_BYTES = 4096


class CuttingProxy:
    """Forwards connections to ``upstream`` (``host:port``), which may be away and come back.

    Attributes
    ----------
    address
        Where it listens, on a port of its own.
    sent_bytes
        What clients have sent through it so far.
    was_cut
        Set once what :meth:`cut_after` asked for has happened.
    """

    def __init__(self, upstream: str) -> None:
        host, port = upstream.rsplit(":", 1)
        self.upstream = (host, int(port))
        self.was_cut = threading.Event()
        self._lock = threading.Lock()
        self.sent_bytes = 0
        self._left: int | None = None
        self._die: Callable[[], None] = lambda: None
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, nbytes: int, die: Callable[[], None]) -> None:
        """Let ``nbytes`` more bytes from the server through; then call ``die`` and close every connection."""
        with self._lock:
            self._left, self._die = nbytes, die
            self.was_cut.clear()

    def close(self) -> None:
        """Stop listening and close every connection."""
        self._listener.close()
        self._drop()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self.upstream)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._sockets |= {client, server}
            for source, target, counted in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, target, counted), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_READ_BYTES):
                if counted and not self._may_pass(len(data)):
                    return
                if not counted:
                    with self._lock:
                        self.sent_bytes += len(data)
                target.sendall(data)
        _shut(target)

    def _may_pass(self, nbytes: int) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= nbytes
            if self._left >= 0:
                return True
            self._left, die = None, self._die
        die()
        self._drop()
        self.was_cut.set()
        return False

    def _drop(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _shut(one)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
