"""The hosts that other tests stand on are hosts: names, clocks, files, processes, links."""

import subprocess
import sys
import time

import pytest
from bed import hosts

PYTHON = [sys.executable, "-S", "-c"]
ECHO = """
import socket
with socket.create_server(("", 7000)) as server:
    print("listening", flush=True)
    while True:
        peer = server.accept()[0]
        while data := peer.recv(1 << 16):
            peer.sendall(data)
"""
PING = """
import socket, sys, time
try:
    with socket.create_connection((sys.argv[1], 7000), float(sys.argv[2])) as peer:
        trips = []
        for _ in range(20):
            begun = time.perf_counter()
            peer.sendall(b"x"); peer.recv(1)
            trips.append(time.perf_counter() - begun)
    print(min(trips))
except OSError as error:
    print(type(error).__name__)
"""


def echo(host):
    process = host.popen([*PYTHON, ECHO], stdout=subprocess.PIPE)
    assert process.stdout.readline() == "listening\n"
    return process


def ping(host, name, patience=0.5):
    return host.run([*PYTHON, PING, name, str(patience)]).stdout.strip()


def test_hosts_have_names_clocks_files_and_processes():
    now = "import os, time; print(time.perf_counter(), os.uname().nodename, os.getpid())"
    with hosts(2, clocks=[0, 1000]) as (a, b):
        said = [host.run([*PYTHON, now]).stdout.split() for host in (a, b)]
        assert [name for _, name, _ in said] == ["host0", "host1"]
        assert 1000 <= float(said[1][0]) - float(said[0][0]) < 1010
        assert all(int(pid) < 50 for *_, pid in said)
        a.write("/tmp/mine", "here")
        assert a.run(["cat", "mine"]).stdout == "here"
        assert b.run(["cat", "/tmp/mine"]).returncode == 1
        process = b.popen(["sleep", "100"])
        while "sleep 100" not in b.processes().values():
            time.sleep(0.01)
        process.terminate()
        assert process.wait(5) == -15 and b.processes() == {}
        with pytest.raises(subprocess.TimeoutExpired):
            b.run(["sleep", "100"], timeout=0.2)
        assert b.processes() == {}


def test_links_delay_lose_cut_and_drop():
    with hosts(3, delay=0.005) as bed:
        a, b, c = bed
        with echo(b) as server, echo(c) as other:
            assert 0.010 <= float(ping(a, "host1")) < 0.030
            assert 0.010 <= float(ping(a, "host2")) < 0.030
            bed.set(delay=0.0)
            assert float(ping(a, b.address)) < 0.009
            b.set(deaf=[7000])
            assert ping(a, "host1") == "TimeoutError"  # dropped, not refused
            assert float(ping(a, "host2")) < 0.009
            b.set(deaf=[])
            bed.set(loss=0.1)
            assert float(ping(a, "host1", patience=15)) < 0.5  # TCP sends again
            bed.set(loss=0.0)
            b.cut()
            assert ping(a, "host1") in ("TimeoutError", "OSError")
            b.set(cut=False)
            assert float(ping(a, "host1", patience=5)) < 0.5
            c.kill()
            assert other.wait(5) == -9
            assert ping(a, "host2") in ("TimeoutError", "OSError")
            server.terminate()
        assert ping(a, "host1") == "ConnectionRefusedError"


def test_a_name_may_resolve_as_it_does_on_debian():
    resolve = "import socket; print(socket.gethostbyname('host1'))"
    with hosts(2, names={1: {"host1": "127.0.1.1"}}) as (a, b):
        assert b.run([*PYTHON, resolve]).stdout == "127.0.1.1\n"
        assert a.run([*PYTHON, resolve]).stdout == f"{b.address}\n"


def test_nothing_is_left():
    with hosts(2) as bed:
        left = [bed.bridge, *(host.first for host in bed)]
        sleeper = bed[0].popen(["sleep", "100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        orphan = bed[1].run(["setsid", "-f", "sleep", "100"], stdout=subprocess.DEVNULL)
        assert orphan.returncode == 0 and len(bed[1].processes()) == 1
    assert sleeper.wait(5) == -9
    assert sleeper.stdin.closed and sleeper.stdout.closed
    assert all(process.poll() is not None for process in left)
