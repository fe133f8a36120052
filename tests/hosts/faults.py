"""Faults of ranks, engines, hosts and links, each at a moment of a job; and what comes of them.

    found = suffer(Fault("kill rank", "host2", "in a collective", 0.7, 3))
    assert not found.wrong

The caller, as a notebook would be, is on host0; host1 and host2 hold ranks 0, 1 and 2, 3. Each of
these clocks is 1000 s ahead of the one before.
"""

import json
import os
import queue
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import PIPE, STDOUT

from bed import Bed, Host, hosts
from engines import Engines

NAMED, ENDED = 10.0, 10.0  # seconds until a fault is named, and until all has ended then
LONG = 90.0  # seconds for what is no answer to a fault, such as a start on a busy machine
LIMIT = 8.0  # seconds that a job may take where nothing but its limit can end it
SLOW = 20_000  # bytes/s
HOSTS = {"host1": (0, 1), "host2": (2, 3)}
MOMENTS = "in a collective", "in compute", "at start", "between jobs"
KINDS = (
    "kill rank",
    "stop rank",
    "kill engine",
    "kill host",
    "cut link",
    "slow link",
    "interrupt",
    "kill caller",
    "kill controller",
)

CALLER = """
import json, os, signal, sys, time
import ipyparallel
import tpviz as tv

def total():
    import torch, torch.distributed as dist
    x = torch.ones(1000)
    dist.all_reduce(x)
    return x[0].item()

def collectives():
    total()
    tv.progress(0, 1, "begun")
    while True:
        total()

def compute():
    import torch, torch.distributed as dist
    total()
    tv.progress(0, 1, "begun")
    x = torch.ones(300, 300)
    end = time.monotonic() + 100
    while time.monotonic() < end:
        x = x @ x / 300
    dist.barrier()

def tell(**what):
    print("SAID " + json.dumps(what), flush=True)

def launch(what, timeout, progress=False):
    try:
        result = tv.launch(what, world_size=4, timeout=timeout, progress=progress)
        tell(result=result)
    except (RuntimeError, TimeoutError, KeyboardInterrupt, ValueError) as error:
        tell(kind=type(error).__name__, said=str(error))

def shown(done, total, text):
    if text == "begun":
        tell(begun=True)

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start without
_, file, moment, timeout = sys.argv
client = ipyparallel.Client(file)
client.wait_for_engines(2, timeout=60)
tv.use(client)
if moment != "at start":
    tv.launch(total, world_size=4)
tell(ready=True)
if moment != "between jobs":
    job = compute if moment == "in compute" else collectives
    launch(job, float(timeout), moment.startswith("in ") and shown)
for line in sys.stdin:
    if line == "end\\n":
        break
    launch(total, 20)
tv.use(None)
client.close()
tell(over=True)
"""


@dataclass
class Fault:
    """A fault of ``kind``, on a host (or its ``rank``), ``after`` so many seconds of a moment."""

    kind: str
    host: str
    moment: str
    after: float
    rank: int

    def __str__(self):
        where = {"kill rank": f"rank {self.rank} on {self.host}", "interrupt": "the caller"}
        where |= {
            "stop rank": where["kill rank"],
            "kill caller": "host0",
            "kill controller": "host0",
        }
        return f"{self.kind}, {where.get(self.kind, self.host)}, {self.after:.1f} s {self.moment}"


def draw(n: int, seed: int) -> list[Fault]:
    """Random faults, of all kinds about as many."""
    rnd, faults = random.Random(seed), []
    while len(faults) < n:
        for kind in rnd.sample(KINDS, len(KINDS)):
            host = rnd.choice(list(HOSTS))
            moments = MOMENTS[:3] if kind == "interrupt" else MOMENTS  # else it means no job
            after, rank = rnd.uniform(0.0, 3.0), rnd.choice(HOSTS[host])
            faults.append(Fault(kind, host, rnd.choice(moments), after, rank))
    return faults[:n]


@dataclass
class Outcome:
    """What came of a fault: s until it was named, until all had ended, what was said; wrongs."""

    named: float | None = None
    ended: float | None = None
    said: str = ""
    next: str = ""
    wrong: list[str] = field(default_factory=list)


class Caller:
    """The process on host0 and what it says, line by line."""

    def __init__(self, bed: Bed, engines: Engines, fault: Fault):
        limited = fault.kind in ("stop rank", "slow link")
        script = bed[0].write("/tmp/caller.py", CALLER)
        argv = [sys.executable, script, engines.client, fault.moment, LIMIT if limited else 60]
        self.process = bed[0].popen(argv, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
        self.lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self.printed = ""  # since it last told something
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put((time.monotonic(), line))
        self.lines.put((time.monotonic(), ""))

    def told(self, limit: float) -> dict:
        """What it tells next; "printed" is what it printed before, from "at" on (s). {} where it is
        late."""
        self.printed, until, began = "", time.monotonic() + limit, 0.0
        while True:
            try:
                at, line = self.lines.get(timeout=max(0.01, until - time.monotonic()))
            except queue.Empty:
                return {}
            if not line:  # it has ended
                return {}
            if line.startswith("SAID "):
                told = json.loads(line.removeprefix("SAID "))
                return told | {"printed": self.printed, "at": began or at}
            began = began or at * ("[tpviz] since" in line or "; without" in line)
            self.printed += line

    def tell(self, line: str) -> None:
        with suppress(BrokenPipeError):  # it has ended, as what it tells next will say
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()


def suffer(fault: Fault) -> Outcome:
    """Let new hosts suffer a fault."""
    with hosts(3, delay=0.001, clocks=[0, 1000, 2000]) as bed:
        engines = Engines(bed, bed.hosts[1:])
        try:
            return _Trial(bed, engines, fault).outcome()
        finally:
            engines.end()


class _Trial:
    def __init__(self, bed, engines, fault):
        self.bed, self.engines, self.fault = bed, engines, fault
        self.host = next(host for host in bed if host.name == fault.host)
        self.there = [*bed.hosts[1:]]  # that are not killed
        self.found = Outcome()
        self.caller = Caller(bed, engines, fault)

    def outcome(self) -> Outcome:
        found, fault, caller = self.found, self.fault, self.caller
        try:
            if not caller.told(LONG).get("ready"):
                found.wrong.append(f"did not get ready: {caller.printed}")
                return found
            self.quiet = {host.name: listening(host) for host in self.bed}
            if fault.moment.startswith("in ") and not caller.told(LONG).get("begun"):
                found.wrong.append(f"the job did not begin: {caller.printed}")
                return found
            self._inflict()
            begun = time.monotonic()
            if fault.kind == "kill caller":
                self._end(begun + 0.0)
            else:
                self._named(begun)
                self._next()
                caller.tell("end")
                if not caller.told(2 * ENDED).get("over"):
                    found.wrong.append(f"the caller did not end: {caller.printed}")
            self._nothing_left()
        finally:
            caller.process.kill()
            caller.process.wait()
        return found

    # -- the fault ---------------------------------------------------------------------------------
    def _inflict(self):
        fault = self.fault
        if fault.moment == "at start" and fault.kind.endswith("rank"):
            until = time.monotonic() + LONG
            while fault.rank not in ranks(self.host) and time.monotonic() < until:
                time.sleep(0.01)
        time.sleep(fault.after)
        if fault.kind.endswith("rank"):
            sign = {"kill rank": "-KILL", "stop rank": "-STOP"}[fault.kind]
            self.host.run(["kill", sign, ranks(self.host)[fault.rank]])
        elif fault.kind == "kill host":
            self.host.kill()
            self.there.remove(self.host)
        else:
            acts: Mapping[str, Callable[[], object]] = {
                "kill engine": self.engines.engines[fault.host].kill,
                "cut link": self.host.cut,
                "slow link": lambda: self.host.set(rate=SLOW),
                "interrupt": lambda: self.caller.process.send_signal(signal.SIGINT),
                "kill caller": self.caller.process.kill,
                "kill controller": lambda: self.bed[0].run(
                    ["pkill", "-KILL", "-f", "ipyparallel.controller"]
                ),
            }
            acts[fault.kind]()

    # -- what is said of it ------------------------------------------------------------------------
    def _named(self, begun):
        found, fault = self.found, self.fault
        if fault.moment == "between jobs":
            self.caller.tell("go")
        # a start of ranks is waited for, and its limit is its own; a slow one is no failure
        patience = LONG if fault.moment == "at start" and self._patient() else NAMED + 20
        told = self.caller.told(patience)
        found.named = told.get("at", time.monotonic()) - begun
        found.said = told.get("said", "") or told.get("printed", "") + str(told.get("result", ""))
        if not told:
            found.wrong.append(f"nothing was said: {self.caller.printed}")
            return
        if "result" in told and told["result"] != [4.0] * 4:
            found.wrong.append(f"a wrong result: {told['result']}")
        if found.named > NAMED and not (fault.moment == "at start" and self._patient()):
            found.wrong.append(f"named after {found.named:.1f} s")
        found.wrong += [f"{text!r} is not in what was said" for text in self._expected(told)
                        if not re.search(text, found.said)]  # fmt: skip
        started = fault.kind == "interrupt" and fault.moment == "at start"
        if "result" not in told and not started:  # those serve the next launch
            self._end(time.monotonic())

    def _patient(self):
        return self.fault.kind in ("stop rank", "slow link")

    def _expected(self, told):
        fault = self.fault
        known = fault.moment == "in a collective"
        call = ["all_reduce #"] if known else []
        if fault.kind == "interrupt":
            return ["on host1", "on host2", *call] if fault.moment != "at start" else ["stopped"]
        if fault.kind == "kill controller":
            return ["host1", "host2"]
        if fault.kind == "slow link":
            return [fault.host, *call] if "result" not in told else []
        if fault.kind.endswith("rank"):
            return [f"ranks? [0-9, ]*{fault.rank} on {fault.host}", *call]
        return [fault.host, *call]

    # -- what is left ------------------------------------------------------------------------------
    def _end(self, since):
        """Every rank has ended on every host, and no port is open for them, soon after."""
        # a start that is given up ends, with its files, as soon as torch has been loaded for it
        limit = LONG if self.fault.moment == "at start" else ENDED
        left = "?"
        while left and time.monotonic() < since + limit:
            left = "; ".join(filter(None, map(self._left, self.there)))
            time.sleep(0.1)
        self.found.ended = time.monotonic() - since
        if left:
            self.found.wrong.append(f"not ended: {left}")

    def _left(self, host):
        still = [f"rank {rank}" for rank in ranks(host)]
        still += [f"port {port}" for port in listening(host) - self.quiet[host.name]]
        still += [p.name for p in host.path("/tmp").glob("tpviz-*/ranks-*")]
        return f"{host.name} has {', '.join(still)}" if still else ""

    def _next(self):
        """The next launch works with what is left, or says what is missing."""
        self.caller.tell("go")
        told = self.caller.told(LONG)
        said = (told.get("printed", "") + told.get("said", "")).strip()
        right = told.get("result") == [4.0] * 4
        self.found.next = f"works{said and f': {said}'}" if right else said or "nothing"
        if not right and not (self.fault.kind == "kill controller" and "no engine" in said):
            self.found.wrong.append(f"the next launch: {told or self.caller.printed}")

    def _nothing_left(self):
        """Engines and the controller end: no process, file or socket is left on any host."""
        self.host.set(cut=False, rate=0.0) if self.host in self.there else None
        self.caller.process.kill()
        self.caller.process.wait()
        if self.fault.kind == "kill caller":  # its engines go on for another
            return
        for process in (*self.engines.engines.values(), self.engines.controller):
            process.terminate()
        until, left = time.monotonic() + 2 * ENDED, ["?"]
        while left and time.monotonic() < until:
            left = [f"{host.name}: {what}" for host in (self.bed[0], *self.there)
                    for what in _leavings(host)]  # fmt: skip
            time.sleep(0.2)
        if left:
            self.found.wrong.append(f"left: {'; '.join(left)}")


def _leavings(host: Host) -> list[str]:
    files = [*host.path("/dev/shm").iterdir()]
    files += [p for pattern in ("tpviz-*", "pymp-*") for p in host.path("/tmp").glob(pattern)]
    return [*host.processes().values(), *map(str, files), *map(str, listening(host))]


def ranks(host: Host) -> dict[int, int]:
    """{rank: its process's number on the host}, by the names of their output files."""
    found = {}
    for pid in host.processes():
        try:
            out = re.search(r"/ranks-[^/]+/out-(\d+)", os.readlink(host.path(f"/proc/{pid}/fd/1")))
        except OSError:
            continue
        if out:
            found[int(out[1])] = pid
    return found


def listening(host: Host) -> set[int]:
    """TCP ports at which somebody listens on a host."""
    with open(f"/proc/{host.pid}/net/tcp") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
