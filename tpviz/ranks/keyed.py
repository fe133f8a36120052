"""Connections of those who have a key: both sides prove it, and nobody else is told anything.

The key is never sent, and each message carries a proof of its own; nothing is secret in them.
Whoever connects without the key is sent nothing, and stops nothing: each caller has a thread, and
two seconds. On Linux a socket can also be closed to all but some addresses (`only_from`).
"""

import ctypes
import hmac
import json
import secrets
import socket
import socketserver
import struct
import sys
from collections.abc import Iterable
from typing import Any

_HELLO = 2.0  # seconds for a caller to prove that he has the key
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

    def __del__(self) -> None:
        self.connection.close()


def call(address: str, port: int, key: bytes, limit: float = 5.0) -> Channel:
    """A channel to a `KeyedServer`, got within ``limit`` seconds; it then waits without a limit.

    Raises ``OSError`` as ``socket.create_connection`` does, and `NoProofError` if the keys differ.
    """
    mine = secrets.token_bytes(_NONCE)
    connection = socket.create_connection((address, port), timeout=limit)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(mine + _proof(key, b"caller", mine))
        theirs = _exactly(connection, _NONCE)
        if not hmac.compare_digest(_exactly(connection, 32), _proof(key, mine, theirs)):
            raise NoProofError("it answers with another key")
    except (ConnectionError, TimeoutError) as error:
        connection.close()
        raise NoProofError(str(error)) from None
    connection.settimeout(None)
    return Channel(connection, _proof(key, b"session", mine, theirs), b"ask", b"say")


class _Caller(socketserver.BaseRequestHandler):
    server: "KeyedServer"

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
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(mine + _proof(key, theirs, mine))
        channel = Channel(connection, _proof(key, b"session", theirs, mine), b"say", b"ask")
        question = channel.receive()  # who repeats another's hello comes no further
        connection.settimeout(None)
        self.server.serve(channel, question)


class KeyedServer(socketserver.ThreadingTCPServer):
    """Listens on one (address, port) for callers with the key. Raises ``OSError`` if that cannot be
    had."""

    daemon_threads = allow_reuse_address = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, at: tuple[str, int], key: bytes):
        self.key = key
        super().__init__(at, _Caller)

    def serve(self, channel: Channel, question: Any) -> None:
        """Answer a caller's first question, and all others, in a thread of his own."""
        raise NotImplementedError

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of strangers."""


# -- who may connect at all ------------------------------------------------------------------------
_SO_ATTACH_FILTER = 26  # Linux
_SOURCE = 0xFFF0000C  # where a filter finds the IPv4 address that a packet comes from
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of the kernel's packet filters


def only_from(listening: socket.socket, addresses: Iterable[str]) -> None:
    """Let an IPv4 socket that listens hear nothing from other addresses than these, on Linux."""
    if sys.platform != "linux":
        return
    code = [(_LOAD, 0, 0, _SOURCE)]
    for address in addresses:
        (number,) = struct.unpack(">I", socket.inet_aton(address))
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, 0xFFFFFFFF)]  # unequal: skip one
    code.append((_RETURN, 0, 0, 0))  # of the packet, no byte is taken
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    what = struct.pack("HL", len(code), ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, what)
