"""`tpviz doctor --hosts`: each fault, really made, is named with the line that mends it."""

import os
import re
import socket
import subprocess
import sys

import pytest
from bed import hosts

from tpviz.__main__ import main
from tpviz.ranks.doctor_hosts import opened, takes
from tpviz.ranks.listener import PORT, Examiner, Listener, NoProofError

DOCTOR = [sys.executable, "-m", "tpviz", "doctor"]


@pytest.fixture(scope="module")
def bed():
    with hosts(2, delay=0.001, clocks=[0, 1000]) as made:
        yield made


def examined(bed, here=(), there=(), listens=True, key=None):
    """(exit code, what is said) of the doctor on host0, with environments of both."""
    a, b = bed
    listener, printed = None, ""
    if listens:
        command = [*DOCTOR, "--listen", b.address]
        listener = b.popen(command, stdout=subprocess.PIPE, env=dict(there))
        lines = iter(listener.stdout.readline, "")
        printed = next(line for line in lines if line.startswith("key: ")).split()[1]
    try:
        doctor = a.popen(
            [*DOCTOR, "--hosts", "host1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(here),
        )
        said = doctor.communicate((key or printed) + "\n", timeout=60)[0]
        if listener and "wrong" not in (key or "") and "silent from" not in said:
            assert listener.wait(10) == 0  # its key is good for one caller
    finally:
        if listener:
            listener.kill()
            listener.communicate()
    return doctor.returncode, said


def test_hosts_without_a_fault(bed):
    code, said = examined(bed)
    assert code == 0, said
    assert "Nothing found that keeps ranks of these hosts apart." in said
    ahead, bound = re.search(r"clock of host1: \+([\d.]+) s \(within ([\d.]+) ms", said).groups()
    assert abs(float(ahead) - 1000) < 1e-3 + float(bound) / 1e3
    assert re.search(r"host1 -> host0 \(10.77.0.1\) port 29500: open", said)
    assert "on host1: GLOO_SOCKET_IFNAME=eth0 torchrun --nnodes 2 --node-rank 1" in said


def test_a_name_that_means_loopback_as_on_debian(bed):
    path = bed[1].path("/etc/hosts")
    text = path.read_text()
    path.write_text(text.replace(f"{bed[1].address} host1", "127.0.1.1 host1"))
    try:
        code, said = examined(bed)
        assert code == 1
        assert "host1: its own name means 127.0.1.1 there (a line of /etc/hosts" in said
        assert "on host1: export GLOO_SOCKET_IFNAME=eth0" in said
        assert examined(bed, there={"GLOO_SOCKET_IFNAME": "eth0"})[0] == 0  # mended
    finally:
        path.write_text(text)


def test_a_firewall_that_drops_is_told_from_nobody_who_listens(bed):
    bed[0].set(deaf=[29500])
    try:
        code, said = examined(bed)
    finally:
        bed[0].set(deaf=[])
    assert code == 1
    assert "host0: port 29500 is silent from host1 (10.77.0.2): a firewall drops" in said
    assert re.search(r"on host0: .*10\.77\.0\.2.*29500", said)
    code, said = examined(bed, listens=False)
    assert code == 1 and f"host1: nothing listens on port {PORT}" in said
    assert "on host1: tpviz doctor --listen host1" in said
    bed[1].set(deaf=[PORT])
    try:
        code, said = examined(bed)
    finally:
        bed[1].set(deaf=[])
    assert code == 1 and f"host1: port {PORT} is silent from 10.77.0.1" in said


def test_a_port_that_is_taken(bed):
    hold = "import socket, time; s = socket.create_server(('', 29500)); print(1); time.sleep(99)"
    with bed[0].popen([sys.executable, "-u", "-c", hold], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        code, said = examined(bed)
        other.kill()
    assert code == 1 and "host0: port 29500 of 10.77.0.1 cannot be had: address already" in said
    assert "torchrun --master-port 29501" in said


def test_versions_interfaces_settings_and_memory(bed):
    b = bed[1]
    stub = b.path("/tmp/other/torch-9.9.dist-info")
    stub.mkdir(parents=True)
    (stub / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    b.run(["mount", "-o", "remount,size=16M", "/dev/shm"])
    there = {"PYTHONPATH": "/tmp/other", "GLOO_SOCKET_IFNAME": "lo", "NCCL_P2P_DISABLE": "1"}
    try:
        code, said = examined(bed, there=there)
    finally:
        b.run(["mount", "-o", "remount,size=1G", "/dev/shm"])
    assert code == 1
    assert "host1: torch 9.9 there, 2." in said and "on host1: pip install torch==2." in said
    assert "host1: GLOO_SOCKET_IFNAME=lo is not eth0" in said
    assert "not in the way: host1: NCCL_P2P_DISABLE is 1 there, not set on host0" in said
    assert "on host1: unset NCCL_P2P_DISABLE" in said
    assert "not in the way: host1: /dev/shm has 16 MiB" in said


def test_another_key_is_refused(bed):
    code, said = examined(bed, key="wrong")
    assert code == 2 and "host1: " in said and "use the key that it printed" in said


# -- without hosts ---------------------------------------------------------------------------------
def test_strangers_get_nothing_and_stop_nothing():
    listener = Listener("127.0.0.1", 0)
    port, key = listener.server_address[1], listener.key.decode()
    import threading

    served = []
    waits = threading.Thread(target=lambda: served.append(listener.wait(60)))
    waits.start()
    silent = socket.create_connection(("127.0.0.1", port))  # says nothing, and stays
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(os.urandom(64))
            try:
                assert stranger.recv(1) == b""
            except ConnectionResetError:
                pass
    with pytest.raises(NoProofError):
        Examiner("127.0.0.1", port, "wrong")
    assert not served
    ask = Examiner("127.0.0.1", port, key)
    assert ask("resolve", ["127.0.0.1"]) == {"127.0.0.1": "127.0.0.1"}
    with pytest.raises(RuntimeError, match="'exit' is none of facts, "):
        ask("exit")
    ask.close()
    waits.join(10)
    assert served == [True]
    silent.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0"], "is every address of this host: listen on one, "),
        (["--listen", "127.0.0.1:0"], "is no host: write a name or an address, or NAME:PORT"),
        (["--listen", "192.0.2.1"], "cannot listen on 192.0.2.1, port 29499"),
        (["--hosts", "a:b"], "'a:b' is no host"),
        (["--hosts", "a", "--master-port", "0"], "master port 0: use 1 to 65535"),
    ],
)
def test_bad_words_are_told(arguments, words, capsys):
    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "exact", "taken"),
    [
        ("eth0", True, True), ("lo,eth0", True, True), ("eth", True, False),
        ("eth", False, True), ("^docker,lo", False, True), ("^eth", False, False),
        ("=eth", False, False), ("=eth0", False, True), ("ib", False, False),
    ],
)  # fmt: skip
def test_settings_of_interfaces_are_read_as_libraries_do(told, exact, taken):
    assert takes(told, "eth0", exact) == taken


def test_the_line_is_of_the_firewall_that_is_there():
    assert opened(["ufw", "nft"], "10.0.0.1", 80).startswith("ufw allow proto tcp from 10.0.0.1")
    assert "80-90" in opened(["nft", "iptables"], "10.0.0.1", "80:90")
    assert opened([], "10.0.0.1", 80) == "iptables -I INPUT -p tcp -s 10.0.0.1 --dport 80 -j ACCEPT"
