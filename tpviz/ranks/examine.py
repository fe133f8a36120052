"""What one host can say of itself and try, for `tpviz doctor --hosts`: no torch is loaded.

`do` calls these by name, on this host or at another's request. Doors are ports that wait for a
knock with their own word, bound to one address; whoever comes without it gets nothing.
"""

import fcntl
import os
import platform
import secrets
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import tpviz

from .hosts import host

SETTINGS = "NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "MASTER_"
FIREWALLS = "ufw", "firewall-cmd", "nft", "iptables"
_SIOCGIFADDR = 0x8915 if sys.platform == "linux" else 0xC0206921  # "give this one's address"
_doors: list[socket.socket] = []


def facts() -> dict[str, Any]:
    """Names, addresses, versions, cores, GPUs, bytes of shared memory, settings of libraries."""
    name, clock = host()
    shm = "/dev/shm"
    return {
        "name": name,
        "clock": clock,
        "interfaces": interfaces(),
        "addresses": addresses(),
        "node": platform.node(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "tpviz": tpviz.__version__,
        "cores": os.cpu_count(),
        "gpus": len(glob("/dev/nvidia[0-9]*")),
        "shm": shutil.disk_usage(shm).total if os.path.isdir(shm) else None,
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(SETTINGS)},
        "firewalls": [tool for tool in FIREWALLS if shutil.which(tool)],
    }


def _version(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def interfaces() -> dict[str, str]:
    """{interface: IPv4 address} of those that have one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                got = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(got[20:24])
    return found


def addresses() -> list[str]:
    """All IPv4 addresses; without psutil, which engines have, the first of each interface."""
    try:
        import psutil
    except ImportError:
        return [*interfaces().values()]
    entries = [entry for entries in psutil.net_if_addrs().values() for entry in entries]
    return [entry.address for entry in entries if entry.family == socket.AF_INET]


def resolve(names: Sequence[str]) -> dict[str, str | None]:
    """{name: IPv4 address, None where it has none}."""
    found: dict[str, str | None] = dict.fromkeys(names)
    for name in names:
        with suppress(OSError, UnicodeError):
            found[name] = socket.gethostbyname(name)
    return found


def route(address: str) -> str | None:
    """The address of this host from which it would speak to another; None without a way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect((address, 9))  # sends nothing
        return asked.getsockname()[0]
    return None


def clock() -> list[float]:
    """[``perf_counter``, time of the day], s."""
    return [time.perf_counter(), time.time()]


def open_door(address: str, port: int = 0) -> list[Any]:
    """[port, word] of a new door; [None, why not] where the port cannot be had."""
    try:
        door = socket.create_server((address, port), reuse_port=False)
    except OSError as error:
        return [None, os.strerror(error.errno) if error.errno else str(error)]
    word = secrets.token_hex(16)
    _doors.append(door)
    threading.Thread(target=_keep, args=(door, word.encode()), daemon=True).start()
    return [door.getsockname()[1], word]


def _keep(door, word):
    while True:
        try:
            caller = door.accept()[0]
        except OSError:  # closed
            return
        with caller, suppress(OSError):
            caller.settimeout(0.5)
            if secrets.compare_digest(caller.recv(64), word):
                caller.sendall(b"yes")


def close_doors() -> None:
    """Close all doors of this process."""
    while _doors:
        with suppress(OSError):
            _doors[-1].shutdown(socket.SHUT_RDWR)  # wakes up who accepts
        _doors.pop().close()


def knock(address: str, port: int, word: str | None, limit: float) -> str:
    """ "open", or what happened within ``limit`` seconds: "silent", "refused", other words. Without
    a word it is enough that somebody listens."""
    try:
        with socket.create_connection((address, port), timeout=limit) as door:
            if word is None:
                return "open"
            door.sendall(word.encode())
            return "open" if door.recv(3) == b"yes" else "answered by another program"
    except TimeoutError:
        return "silent"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return (os.strerror(error.errno) if error.errno else str(error)).lower()


_DONE = {f.__name__: f for f in (facts, resolve, route, clock, open_door, close_doors, knock)}


def do(what: str, *args: Any) -> Any:
    """The result of one of these functions, by name. Raises ``ValueError`` for another name."""
    if what not in _DONE:
        raise ValueError(f"{what!r} is none of {', '.join(_DONE)}")
    return _DONE[what](*args)
