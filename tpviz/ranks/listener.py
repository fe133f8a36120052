"""``tpviz doctor --listen``: lets one caller who has the key examine this host, then ends.

Bound to one address; `keyed` says what strangers get, which is nothing.
"""

import secrets
import threading
from typing import Any

from .examine import close_doors, do, interfaces
from .keyed import Channel, KeyedServer, NoProofError, call

__all__ = ["LIMIT", "PORT", "Examiner", "Listener", "NoProofError"]

PORT = 29499
LIMIT = 600.0  # seconds that a listener waits
_PATIENCE = 60.0  # seconds between two messages


class Examiner:
    """``ask = Examiner(address, port, key)``; ``ask(what, *args)`` is `examine.do` on the host that
    listens there; ``ask.close()`` ends it, and the listener.

    Raises ``OSError`` and `NoProofError` as `keyed.call` does.
    """

    def __init__(self, address: str, port: int, key: str, limit: float = 5.0):
        self.channel = call(address, port, key.encode(), limit)
        self.channel.connection.settimeout(_PATIENCE)

    def __call__(self, what: str, *args: Any) -> Any:
        """The answer. Raises ``RuntimeError`` with what was wrong on the other host."""
        self.channel.send([what, *args])
        good, value = self.channel.receive()
        if not good:
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        """Hang up."""
        self.channel.connection.close()


class Listener(KeyedServer):
    """Listens on one address of this host; ``key`` is new. Raises ``ValueError`` for no address of
    its own, and for all of them; ``OSError`` if the port is taken."""

    def __init__(self, address: str, port: int = PORT):
        self.done = threading.Event()
        own = interfaces()
        if not address or address in ("0.0.0.0", "::", "*"):
            said = ", ".join(f"{at} ({name})" for name, at in own.items()) or "one of this host"
            raise ValueError(f"{address!r} is every address of this host: listen on one, {said}")
        super().__init__((address, port), secrets.token_urlsafe(12).encode())

    def serve(self, channel: Channel, question: Any) -> None:
        """Do what the caller asks, until it hangs up."""
        channel.connection.settimeout(_PATIENCE)
        try:
            while True:
                try:
                    channel.send([True, do(*question)])
                except (TypeError, ValueError) as error:
                    channel.send([False, str(error)])
                question = channel.receive()
        finally:
            close_doors()
            self.done.set()

    def wait(self, limit: float = LIMIT) -> bool:
        """Whether a caller with the key came and was served within ``limit`` seconds."""
        with self:
            threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
            served = self.done.wait(limit)
            self.shutdown()
        return served
