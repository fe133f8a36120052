"""A network in user space: one TAP device in each host's namespace, joined as by a switch.

    python bridge.py SECONDS PID:ADDRESS/PREFIX PID:ADDRESS/PREFIX ...

A port is the device of one host, numbered as given. Each line on standard input is a JSON object of
settings, {"port": number or null for all, "delay": seconds, "loss": share of frames, "rate":
bytes/s or 0, "cut": bool, "deaf": TCP ports that drop what comes in}; the answer to each is a line
"ok". A frame is delayed, lost and paced as it leaves the host that sends it. The bridge ends after
SECONDS, or when its input is closed.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

QUEUE_SECONDS = 0.2  # what waits at a link longer than this is dropped
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000


@dataclass
class Port:
    """The link of one host: its device, its settings, and when it is free to send again."""

    device: int
    delay: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    cut: bool = False
    deaf: list[int] = field(default_factory=list)
    free: float = 0.0


def tap(pid: int, address: str) -> int:
    """A file of a new device eth0 in the network namespace of a process, up, with this address."""
    home, there = (os.open(f"/proc/{p}/ns/net", os.O_RDONLY) for p in ("self", pid))
    _enter(there)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    for words in (f"addr add {address} dev eth0", "link set eth0 up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    _enter(home)
    os.close(home)
    os.close(there)
    return device


def _enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def tcp_port(frame: bytes) -> int:
    """The port to which a frame's TCP segment goes; 0 of any other frame (IPv4 alone has any)."""
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return 0
    header = 14 + 4 * (frame[14] & 15)
    return int.from_bytes(frame[header + 2 : header + 4])


class Bridge:
    """Frames in flight, and where the addresses of devices are."""

    def __init__(self, ports: list[Port]):
        self.ports, self.where = ports, {}
        self.under_way: list[tuple[float, int, int, bytes]] = []
        self.count = 0

    def take(self, number: int, frame: bytes, now: float) -> None:
        """A frame has left the host of a port: put it on its way to one port or to all others."""
        port = self.ports[number]
        to, source = frame[:6], frame[6:12]
        self.where[source] = number
        if port.cut or random.random() < port.loss:
            return
        begin = max(now, port.free)
        if port.rate:
            if begin - now > QUEUE_SECONDS:
                return
            begin = port.free = begin + len(frame) / port.rate
        others = [i for i in range(len(self.ports)) if i != number]
        for i in [self.where[to]] if to in self.where else others:
            self.count += 1
            heapq.heappush(self.under_way, (begin + port.delay, self.count, i, frame))

    def deliver(self, now: float) -> None:
        """Hand over what has arrived."""
        while self.under_way and self.under_way[0][0] <= now:
            _, _, number, frame = heapq.heappop(self.under_way)
            port = self.ports[number]
            if port.cut or (port.deaf and tcp_port(frame) in port.deaf):
                continue
            try:
                os.write(port.device, frame)
            except OSError:  # its host is gone, or takes no more
                pass

    def set(self, settings: dict[str, Any]) -> None:
        """Change one port, or all."""
        port = settings.pop("port")
        for one in self.ports if port is None else [self.ports[port]]:
            for name, value in settings.items():
                setattr(one, name, value)

    def run(self, seconds: float) -> None:
        """Until standard input is closed, or for so many seconds."""
        end, devices = time.monotonic() + seconds, {p.device: i for i, p in enumerate(self.ports)}
        while (now := time.monotonic()) < end:
            first = self.under_way[0][0] - now if self.under_way else 1.0
            for ready in select.select([0, *devices], [], [], max(0.0, min(first, 1.0)))[0]:
                if ready:
                    self._read(ready, devices[ready])
                elif line := sys.stdin.readline():
                    self.set(json.loads(line))
                    print("ok", flush=True)
                else:
                    return
            self.deliver(time.monotonic())

    def _read(self, device: int, number: int) -> None:
        for _ in range(64):
            try:
                frame = os.read(device, 2048)
            except OSError:  # no more, or the host is gone
                return
            self.take(number, frame, time.monotonic())


if __name__ == "__main__":
    hosts = [host.split(":") for host in sys.argv[2:]]
    bridge = Bridge([Port(tap(int(pid), address)) for pid, address in hosts])
    print("ok", flush=True)
    bridge.run(float(sys.argv[1]))
