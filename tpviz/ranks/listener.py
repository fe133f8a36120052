"""``tpviz doctor --listen``: lets one caller who has the key examine this host, then ends.

Bound to one address. Caller and listener prove to each other that they have the key, which is
never sent, and each message carries a proof of its own; nothing is secret in them. Whoever connects
without the key is sent nothing, and stops nothing: each caller has a thread, and two seconds.
"""

import hmac
import json
import secrets
import socket
import socketserver
import struct
import threading
from typing import Any

from .examine import close_doors, do, interfaces

PORT = 29499
LIMIT = 600.0  # seconds that a listener waits
_HELLO = 2.0  # seconds for a caller to prove that he has the key
_PATIENCE = 60.0  # seconds between two messages
_LONGEST = 1 << 20  # bytes of a message
_NONCE = 16


class NoProofError(ConnectionError):
    """The other side has another key, or is no part of this."""


def _proof(key, *parts):
    return hmac.digest(key, b"".join(struct.pack(">I", len(p)) + p for p in parts), "sha256")


def _exactly(connection, count):
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("the other side has closed the connection")
        data += more
    return data


class Channel:
    """JSON values over a connection, each with a proof of its sender and of its place in line."""

    def __init__(self, connection: socket.socket, key: bytes, sends: bytes, reads: bytes):
        self.connection, self.key = connection, key
        self.sent, self.read = [sends, 0], [reads, 0]

    def _next(self, way, body):
        way[1] += 1
        return _proof(self.key, way[0], struct.pack(">Q", way[1]), body)

    def send(self, value: Any) -> None:
        """Send a value that JSON holds."""
        body = json.dumps(value).encode()
        self.connection.sendall(struct.pack(">I", len(body)) + self._next(self.sent, body) + body)

    def receive(self) -> Any:
        """The next value. Raises `NoProofError` for one of somebody else."""
        (length,) = struct.unpack(">I", _exactly(self.connection, 4))
        if length > _LONGEST:
            raise NoProofError(f"a message of {length} bytes")
        proof, body = _exactly(self.connection, 32), _exactly(self.connection, length)
        if not hmac.compare_digest(proof, self._next(self.read, body)):
            raise NoProofError("a message of somebody who has not the key")
        return json.loads(body)


class Examiner:
    """``ask = Examiner(address, port, key)``; ``ask(what, *args)`` is `examine.do` on the host that
    listens there; ``ask.close()`` ends it, and the listener.

    Raises ``OSError`` as ``socket.create_connection`` does, and `NoProofError` if the keys differ.
    """

    def __init__(self, address: str, port: int, key: str, limit: float = 5.0):
        secret, mine = key.encode(), secrets.token_bytes(_NONCE)
        self.connection = socket.create_connection((address, port), timeout=limit)
        try:
            self.connection.sendall(mine + _proof(secret, b"caller", mine))
            theirs = _exactly(self.connection, _NONCE)
            if not hmac.compare_digest(_exactly(self.connection, 32), _proof(secret, mine, theirs)):
                raise NoProofError("it answers with another key")
        except (ConnectionError, TimeoutError) as error:
            self.close()
            raise NoProofError(str(error)) from None
        self.connection.settimeout(_PATIENCE)
        session = _proof(secret, b"session", mine, theirs)
        self.channel = Channel(self.connection, session, b"ask", b"say")

    def __call__(self, what: str, *args: Any) -> Any:
        """The answer. Raises ``RuntimeError`` with what was wrong on the other host."""
        self.channel.send([what, *args])
        good, value = self.channel.receive()
        if not good:
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


class _Caller(socketserver.BaseRequestHandler):
    server: "Listener"

    def handle(self) -> None:
        try:
            self._serve()
        except (OSError, ValueError):  # a stranger, or gone
            pass

    def _serve(self):
        connection, key = self.request, self.server.key
        connection.settimeout(_HELLO)
        theirs, mine = _exactly(connection, _NONCE), secrets.token_bytes(_NONCE)
        if not hmac.compare_digest(_exactly(connection, 32), _proof(key, b"caller", theirs)):
            return
        connection.sendall(mine + _proof(key, theirs, mine))
        channel = Channel(connection, _proof(key, b"session", theirs, mine), b"say", b"ask")
        question = channel.receive()  # who repeats another's hello comes no further
        connection.settimeout(_PATIENCE)
        try:
            while True:
                try:
                    channel.send([True, do(*question)])
                except (TypeError, ValueError) as error:
                    channel.send([False, str(error)])
                question = channel.receive()
        finally:
            close_doors()
            self.server.done.set()


class Listener(socketserver.ThreadingTCPServer):
    """Listens on one address of this host; ``key`` is new. Raises ``ValueError`` for no address of
    its own, and for all of them; ``OSError`` if the port is taken."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, address: str, port: int = PORT):
        self.key, self.done = secrets.token_urlsafe(12).encode(), threading.Event()
        own = interfaces()
        if not address or address in ("0.0.0.0", "::", "*"):
            said = ", ".join(f"{at} ({name})" for name, at in own.items()) or "one of this host"
            raise ValueError(f"{address!r} is every address of this host: listen on one, {said}")
        super().__init__((address, port), _Caller)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of strangers."""

    def wait(self, limit: float = LIMIT) -> bool:
        """Whether a caller with the key came and was served within ``limit`` seconds."""
        with self:
            threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
            served = self.done.wait(limit)
            self.shutdown()
        return served
