"""Who has no key gets nothing from any port of hosts, and stops no job there."""

import json
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from bed import hosts

pytest.importorskip("ipyparallel")
from engines import cluster
from test_use_hosts import CLIENT

JOB = """
import time

def work():
    import torch, torch.distributed as dist
    sums = []
    for step in range(30):
        x = torch.full((1000,), float(dist.get_rank() + step))
        dist.all_reduce(x)
        sums.append(x[-1].item())
        if step % 10 == 0:  # more ports
            pair = dist.new_group([step // 10, 3])
            if dist.get_rank() in (step // 10, 3):
                dist.all_reduce(x, group=pair)
                sums.append(x[0].item())
        time.sleep(0.1)
    return sums

def expected(rank):
    sums = []
    for step in range(30):
        sums.append(6.0 + 4 * step)
        if step % 10 == 0 and rank in (step // 10, 3):
            sums.append((2 if step < 30 else 1) * sums[-1])
    return sums

print("ready", flush=True)
sys.stdin.readline()
for backend in (None, "gloo"):
    found = tv.launch(work, world_size=4, timeout=60, backend=backend)
    assert found == [expected(rank) for rank in range(4)], found
print("right")
"""
STRANGER = str(Path(__file__).parent / "stranger.py")
ZMQ_SAYS = "ff00000000000000"  # a ZeroMQ socket greets whoever comes, before it asks for proof


def listening(host):
    """{(address, port)} on which something of a host listens; of IPv6 the address as the system
    has it."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                at, _, port = fields[1].rpartition(":")
                if table == "tcp":
                    at = ".".join(str(int(at[i : i + 2], 16)) for i in (6, 4, 2, 0))
                found.add((at, int(port, 16)))
    return found


class Feeder(threading.Thread):
    """Tells strangers each port of hosts 0 and 1 that opens, until `stop`."""

    def __init__(self, bed, strangers):
        super().__init__(daemon=True)
        self.bed, self.strangers, self.seen, self.over = bed, strangers, set(), False

    def run(self):
        while not self.over:
            for host in self.bed.hosts[:2]:
                for at, port in listening(host):
                    if (host.number, at, port) not in self.seen:
                        self.seen.add((host.number, at, port))
                        for stranger, place in self.strangers:
                            if at == host.address or place is host:
                                stranger.stdin.write(f"{at} {port}\n")
                                stranger.stdin.flush()
            time.sleep(0.005)

    def stop(self):
        """What each stranger has found."""
        self.over = True
        self.join()
        return [
            json.loads(s.communicate(timeout=60)[0].splitlines()[-1]) for s, _ in self.strangers
        ]


@pytest.mark.slow
def test_a_job_is_right_whoever_connects_and_nothing_listens_everywhere():
    with ExitStack() as stack:
        bed = stack.enter_context(hosts(3, delay=0.001, clocks=[0, 1000, 2000]))
        file = stack.enter_context(cluster(bed, bed.hosts[:2]))
        script = bed[0].write("/tmp/script.py", CLIENT + JOB)
        job = bed[0].popen([sys.executable, script, file], stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        for line in job.stdout:
            if line == "ready\n":
                break
        # (where, what it sends): on hosts of the job, and on one that is none
        kinds = [(0, "random"), (1, "random"), (0, "silent"), (1, "huge"), (2, "forged")]
        strangers = [
            (
                bed[place].popen(
                    [sys.executable, STRANGER, kind, "20" if kind == "huge" else "100"],
                    stdin=PIPE, stdout=PIPE,
                ),
                bed[place],
            )
            for place, kind in kinds
        ]  # fmt: skip
        feeder = Feeder(bed, strangers)
        feeder.start()
        said, _ = job.communicate("go\n", timeout=150)
        found = feeder.stop()
    assert job.returncode == 0 and said.splitlines()[-1] == "right", said
    everywhere = [at for at in feeder.seen if at[1] == "0.0.0.0" or set(at[1]) <= {"0"}]
    assert not everywhere, "nothing listens on all interfaces"
    assert all(what["came"] >= 100 for what in found), found
    told = {answer[:16] for what in found for answer in what["told"].values()}
    assert told <= {ZMQ_SAYS}, "a stranger is told nothing"
