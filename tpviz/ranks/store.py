"""Where ranks of several hosts meet: a store on rank 0's host, for those who have the world's key.

torch's own (``TCPStore``) answers everybody who reaches its port. Here both sides prove that they
have a key, which came with the job over the connections of ipyparallel (`keyed`), and the port is
closed to addresses of other hosts; so are, from before they are known, the ports on which gloo
listens, which ask nobody for a key. ``docs/adr/0072`` says what that keeps out, and what not.
"""

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

from . import keyed


class StoreServer(keyed.KeyedServer):
    """The values of one world, served on a free port of ``address`` until `close`, to `KeyedStore`.

    peers : addresses from which ranks may connect.
    """

    def __init__(self, address: str, key: bytes, peers: Sequence[str]):
        self._values: dict[str, str] = {}
        self._news, self._open = threading.Condition(), True
        super().__init__((address, 0), key)
        if peers:
            keyed.only_from(self.socket, peers)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more, and let nobody wait any longer."""
        with self._news:
            self._open = False
            self._news.notify_all()
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self):
        self.shutdown()  # waits for the thread that listens
        self.server_close()

    def serve(self, channel: keyed.Channel, question: Any) -> None:
        """Do one thing after another for a rank, until it hangs up."""
        while True:
            what, *args = question
            with self._news:
                value = _DONE[what](self, *args)
                self._news.notify_all()
            channel.send(value)
            question = channel.receive()

    # -- what a rank may ask; called with the lock -------------------------------------------------
    def _set(self, name, value):
        self._values[name] = value

    def _get(self, name):
        return self._values.get(name)

    def _wait(self, names, seconds):
        """Whether all are there within so many seconds."""
        until = monotonic() + seconds
        while not all(name in self._values for name in names):
            left = until - monotonic()
            if left <= 0 or not self._open:
                return False
            self._news.wait(min(left, threading.TIMEOUT_MAX))
        return True

    def _add(self, name, number):
        self._values[name] = str(int(self._values.get(name, "0")) + number)
        return int(self._values[name])

    def _compare_set(self, name, expected, wanted):
        have = self._values.get(name)
        if have == expected or (have is None and not expected):
            self._values[name] = wanted
        return self._values.get(name, expected)

    def _delete(self, name):
        return self._values.pop(name, None) is not None

    def _count(self):
        return len(self._values)


_DONE = {
    "set": StoreServer._set,
    "get": StoreServer._get,
    "wait": StoreServer._wait,
    "add": StoreServer._add,
    "compare_set": StoreServer._compare_set,
    "delete": StoreServer._delete,
    "count": StoreServer._count,
}


def joined(address: tuple[str, int], key: bytes, peers: Sequence[str]) -> Any:
    """A rank's end: a ``torch.distributed.Store`` at a `StoreServer`. Keep it as long as there are
    groups: torch holds what is C++ in it, and not the methods here.

    peers : addresses of hosts, to which sockets are closed but for theirs whose address is set.
    """
    import torch.distributed as dist  # the engine, which imports this module too, has no torch

    class KeyedStore(dist.Store):  # pyright: ignore[reportPrivateImportUsage]
        """Values of the world, as torch asks for them, from any thread: each has a connection, so
        that who waits for a value keeps nobody from setting it."""

        def __init__(self):
            super().__init__()
            self._own = threading.local()

        def _ask(self, what: str, *args: Any) -> Any:
            try:
                if not hasattr(self._own, "channel"):
                    self._own.channel = keyed.call(*address, key)
                self._own.channel.send([what, *args])
                return self._own.channel.receive()
            except OSError as error:
                at = f"{address[0]}:{address[1]}"
                raise ConnectionError(f"connection closed: the store at {at}: {error}") from None

        def set(self, name: str, value: str | bytes) -> None:
            if peers:
                _close_to_others(_bytes(value), peers)
            self._ask("set", name, _text(value))

        def get(self, name: str) -> bytes:
            self.wait([name])
            return _bytes(self._ask("get", name))

        def wait(self, names: Sequence[str], timeout: timedelta | None = None) -> None:
            own: Any = self
            limit = (own.timeout if timeout is None else timeout).total_seconds()
            if not self._ask("wait", list(names), limit):
                raise dist.DistStoreError(f"{', '.join(names)}: not set within {limit:g} s")

        def check(self, names: Sequence[str]) -> bool:
            return self._ask("wait", list(names), 0.0)

        def add(self, name: str, number: int) -> int:
            return self._ask("add", name, int(number))

        def compare_set(self, name: str, expected: str | bytes, wanted: str | bytes) -> bytes:
            return _bytes(self._ask("compare_set", name, _text(expected), _text(wanted)))

        def delete_key(self, name: str) -> bool:
            return self._ask("delete", name)

        def num_keys(self) -> int:
            return self._ask("count")

        def clone(self) -> "KeyedStore":
            return self  # each thread has a connection of its own as it is

    return KeyedStore()


def _text(value):
    """Bytes one by one as characters, which JSON can send."""
    return value if isinstance(value, str) else bytes(value).decode("latin-1")


def _bytes(text):
    return text.encode("latin-1") if isinstance(text, str) else bytes(text)


def _close_to_others(value, peers):
    """A rank tells others where it listens, as gloo does, in the form that the system has for an
    address: whoever is no peer must not reach that socket, since gloo would take him for one."""
    for entry in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(OSError, ValueError):
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as own:
                if own.family != socket.AF_INET:
                    continue
                host, port = own.getsockname()
                where = port.to_bytes(2, "big") + socket.inet_aton(host)
                if where in value and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    keyed.only_from(own, peers)
