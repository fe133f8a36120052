"""On one host: who connects to ports of ranks, with bytes of any kind, stops nothing."""

import os
import random
import socket
import threading
import time
from contextlib import suppress

import psutil
import pytest
import torch
import torch.distributed as dist

import tpviz as tv


def _work():
    sums = []
    for step in range(12):
        x = torch.full((1000,), float(dist.get_rank() + step))
        dist.all_reduce(x)
        sums.append(x[-1].item())
        if step % 4 == 0:
            group = dist.new_group([0, 2])
            if dist.get_rank() in (0, 2):
                dist.barrier(group=group)
        time.sleep(0.1)
    return sums


class _Strangers(threading.Thread):
    """Connects 100 times to each port on which a process of this one listens, once it is there."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen, self.over, self.came, self.told, self.held = set(), False, 0, b"", []

    def run(self):
        while not self.over:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    for entry in process.net_connections(kind="inet"):
                        if entry.status == "LISTEN" and entry.laddr not in self.seen:
                            self.seen.add(entry.laddr)
                            self._visit(entry.laddr)
            time.sleep(0.01)

    def _visit(self, at):
        for number in range(100):
            size = random.choice((0, 1, 8, 100, 5000)) if number else 1 << 20
            with suppress(OSError):
                caller = socket.create_connection(at, timeout=1)
                self.came += 1
                caller.settimeout(0)
                self.held.append(caller)  # silent, or with bytes
                with suppress(BlockingIOError):
                    caller.send(os.urandom(size))
                    self.told += caller.recv(100)
                if number % 10 == 1:
                    caller.shutdown(socket.SHUT_WR)


@pytest.mark.slow
def test_a_job_is_right_whoever_connects_and_ports_are_on_loopback_alone():
    tv.shutdown()  # so that ranks start under the eyes of strangers
    strangers = _Strangers()
    strangers.start()
    try:
        for backend in (None, "gloo"):
            found = tv.launch(_work, world_size=3, timeout=60, backend=backend)
            assert found == [[3.0 + 3 * step for step in range(12)]] * 3
    finally:
        strangers.over = True
        strangers.join(30)
        for caller in strangers.held:
            caller.close()
        tv.shutdown()
    assert strangers.came >= 600, "each rank has a port"
    assert strangers.told == b""
    assert {at.ip.removeprefix("::ffff:") for at in strangers.seen} == {"127.0.0.1"}
