"""``tpviz cluster`` on two hosts and a notebook's: by SSH, by MPI over SSH, by a queue."""

import os
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from subprocess import DEVNULL

import pytest
from bed import end, hosts
from faults import listening

pytest.importorskip("ipyparallel")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OPTIONS = "-i /tmp/key -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR"
ENV = {"XDG_STATE_HOME": "/tmp/state"}
USE = """
import tpviz as tv
tv.use("tpviz")
def where():
    import os
    return os.environ["TPVIZ_HOST"] if "TPVIZ_HOST" in os.environ else os.uname().nodename
print(tv.launch(where, world_size=4))
assert tv.verify(tv.Megatron(tp=4), tv.GPT(layers=1, hidden=16, heads=4, batch=2, seq=8)).ok
"""
SLURM = """
ClusterName=bed
SlurmctldHost=host0
SlurmUser=root
AuthInfo=socket=/tmp/munge.sock
StateSaveLocation=/tmp/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=host[1-2] CPUs=1
PartitionName=all Nodes=ALL Default=YES
"""
MUNGED = "-F --force --socket=/tmp/munge.sock --key-file=/tmp/munge.key --seed-file=/tmp/seed"
MUNGED += " --pid-file=/tmp/munged.pid"
QUIET = {"stdout": DEVNULL, "stderr": DEVNULL}
SSHD_CONFIG = """
HostKey /tmp/hostkey
AuthorizedKeysFile /tmp/key.pub
ListenAddress {address}
StrictModes no
UsePAM no
PidFile none
"""


@contextmanager
def sshd(bed):
    """A listener for SSH on all hosts but the first, whose key opens them."""
    if not which("sshd"):
        pytest.skip("no sshd here (openssh-server)")
    os.makedirs("/run/sshd", exist_ok=True)
    home = bed[0]
    home.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/tmp/key"])
    started = []
    for host in bed.hosts[1:]:
        host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/tmp/hostkey"])
        host.write("/tmp/key.pub", home.path("/tmp/key.pub").read_text())
        config = host.write("/tmp/sshd", SSHD_CONFIG.format(address=host.address))
        started.append(
            host.popen([which("sshd"), "-D", "-f", config], stdout=DEVNULL, stderr=DEVNULL)
        )
    until = time.monotonic() + 10
    while not all(22 in listening(host) for host in bed.hosts[1:]):
        assert time.monotonic() < until, "sshd does not start"
        time.sleep(0.1)
    try:
        yield
    finally:
        end(started)


def tpviz(host, *words, env=ENV):
    done = host.run([sys.executable, "-m", "tpviz", *words], timeout=150, env=env)
    assert done.returncode == 0, done.stdout
    return done.stdout


def serves(bed, *words, env=ENV):
    """A cluster starts, is used and stops; nothing is left on any host."""
    state = env["XDG_STATE_HOME"]
    shared = not state.startswith("/tmp")
    before = [(host.processes().keys(), listening(host)) for host in bed]
    home = bed[0]
    said = tpviz(home, "cluster", "start", *words, env=env)
    assert "host1" in said and "host2" in said and "tv.use(client)" in said
    assert addresses(home)
    for host in bed:
        assert addresses(host) <= {host.address, "127.0.0.1"}, "no port on all interfaces"
        keys = [*host.path(state).rglob("security/*.json")]
        assert all(key.stat().st_mode & 0o077 == 0 for key in keys)
        assert len(keys) == (3 if host is home or shared else 0), "keys stay where they were made"
    script = home.write("/tmp/use.py", USE)
    used = home.run([sys.executable, script], timeout=150, env=env)
    assert used.returncode == 0, used.stdout
    assert "['host1', 'host1', 'host2', 'host2']" in used.stdout
    assert "host2" in tpviz(home, "cluster", "status", env=env)
    assert "stopped" in tpviz(home, "cluster", "stop", env=env)
    until, left = time.monotonic() + 15, "?"
    while left and time.monotonic() < until:
        left = [
            [line for pid, line in host.processes().items() if pid not in old]
            + [port for port in listening(host) - ports]
            + [*host.path("/tmp").glob("tpviz-*")]
            + [*host.path(state).rglob("*")]
            for host, (old, ports) in zip(bed, before)
        ]
        left = left if any(left) else None
        time.sleep(0.2)
    assert not left, left


def addresses(host):
    """Where the controller and engines listen on a host; queues and mpiexec have ports too."""
    held = set()
    for pid, line in host.processes().items():
        if line.split()[1:2] == ["-m"] and "ipyparallel" in line:  # not the mpiexec before it
            with suppress(OSError):
                held |= {os.readlink(fd) for fd in host.path(f"/proc/{pid}/fd").iterdir()}
    with open(f"/proc/{host.pid}/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    listen = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]
    return {".".join(map(str, reversed(bytes.fromhex(at.split(":")[0])))) for at in listen}


def test_by_ssh():
    with hosts(3, delay=0.001, clocks=[0, 1000, 2000]) as bed, sshd(bed):
        serves(bed, "--hosts", "host1,host2", f"--options={OPTIONS}")


def test_by_ssh_a_host_that_is_not_there_is_said_and_nothing_is_left():
    with hosts(2) as bed, sshd(bed):
        words = ["start", "--hosts", "host1,10.77.0.9", f"--options={OPTIONS} -oConnectTimeout=3"]
        done = bed[0].run([sys.executable, "-m", "tpviz", "cluster", *words], timeout=100, env=ENV)
        assert done.returncode == 2 and "engines did not start" in done.stdout, done.stdout
        assert not any("ipyparallel" in line for host in bed for line in host.processes().values())
        assert [*bed[0].path("/tmp/state").rglob("*")] == []


def test_by_mpi():
    if not which("mpiexec"):
        pytest.skip("no mpiexec here (MPICH or Open MPI)")
    with hosts(3, delay=0.001) as bed, sshd(bed):
        ssh = bed[0].write("/tmp/ssh", f'#!/bin/sh\nexec ssh {OPTIONS} "$@"\n')
        bed[0].path(ssh).chmod(0o755)
        options = f"-host host1,host2 -launcher-exec {ssh}"
        serves(bed, "--mpi", "2", f"--options={options}", "--ip", bed[0].address)


@contextmanager
def slurm(bed, env):
    """A queue: its controller on the first host, the others are its nodes."""
    if missing := [name for name in ("slurmctld", "slurmd", "munged", "srun") if not which(name)]:
        pytest.skip(f"no Slurm here: {', '.join(missing)}")
    key, started = secrets.token_hex(64), []
    for host in bed:
        host.path(host.write("/tmp/munge.key", key)).chmod(0o600)
        host.write("/tmp/slurm.conf", SLURM)
        started.append(host.popen([which("munged"), *MUNGED.split()], **QUIET))
    until = time.monotonic() + 20
    while not all(host.path("/tmp/munge.sock").exists() for host in bed):
        assert time.monotonic() < until, "munged does not start"
        time.sleep(0.1)
    for host in bed:
        daemon = "slurmd" if host.number else "slurmctld"
        started.append(host.popen([which(daemon), "-D"], env=env, **QUIET))
    while "idle" not in bed[0].run(["sinfo", "-h", "-o", "%T"], env=env).stdout:
        assert time.monotonic() < until + 40, bed[0].run(["sinfo"], env=env).stdout
        time.sleep(0.5)
    try:
        yield
    finally:
        end(started)


def which(name):
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def test_by_slurm():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:  # shared by hosts, as homes are
        env = {"XDG_STATE_HOME": home, "SLURM_CONF": "/tmp/slurm.conf"}
        with hosts(3, delay=0.001) as bed, slurm(bed, env):
            serves(bed, "--slurm", "2", "--ip", bed[0].address, "--options=--time=10", env=env)
