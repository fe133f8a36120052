"""Made-up but plausible traces for the tests of the views: tensor x data parallel steps."""

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.trace import Event, Trace


def synthetic_trace(
    axes: dict[str, int] | None = None,
    layers: int = 3,
    steps: int = 2,
    seed: int = 0,
    memory: bool = True,
) -> Trace:
    """A step per ``steps``: per layer a matmul and a waited-for all_reduce on tp, then a bucket
    all_reduce on dp that overlaps with the backward pass. Times in ms, a little jitter per rank."""
    axes = axes or {"dp": 2, "tp": 2}
    mesh, events, memories = Mesh(axes), [], {}
    for rank in range(mesh.size):
        rng = np.random.default_rng(seed * 1000 + rank)
        writer = _Rank(mesh, rank, rng)
        for step in range(steps):
            writer.step(step, layers)
        events += writer.events
        memories[rank] = writer.memory
    events = [e._replace(id=i) for i, e in enumerate(events)]
    waits = {(e.rank, e.axis, e.seq): e.id for e in events if e.kind == "comm"}
    events = [
        e._replace(waits_for=waits[e.rank, e.axis, e.seq], seq=-1, axis="")
        if e.kind == "wait"
        else e
        for e in events
    ]
    meta = {
        "badge": "this machine, gloo",
        "world_size": mesh.size,
        "strategy": "Megatron(tp=2)",
        "workload": "GPT(layers=3)",
        "mesh": {"axes": axes},
        "losses": [5.5, 5.25],
    }
    return Trace.from_events(events, {**meta, "memory": memories} if memory else meta)


class _Rank:
    """Writes one rank's events on its own clock ``t`` (seconds)."""

    def __init__(self, mesh, rank, rng):
        self.mesh, self.rank, self.rng, self.t = mesh, rank, rng, 0.0
        self.events, self.seq = [], {}
        self.memory = {
            "time": [],
            "parameters": [],
            "gradients": [],
            "optimizer": [],
            "activations": [],
        }

    def work(self, name, phase, ms, layer="", flops=10**7):
        end = self.t + ms * 1e-3 * self.rng.uniform(0.85, 1.15)
        self.add(kind="compute", name=name, phase=phase, layer=layer, end=end, flops=flops)
        self.t = end + 2e-5

    def comm(self, axis, name, phase, ms, layer="", wait=True):
        members = self.mesh.group(self.rank, axis)
        seq = self.seq[axis] = self.seq.get(axis, -1) + 1
        end = self.t + ms * 1e-3
        size = 2 * (len(members) - 1) / len(members)
        self.add(
            kind="comm",
            lane=f"comm/{axis}",
            name=name,
            phase=phase,
            layer=layer,
            axis=axis,
            seq=seq,
            members=",".join(map(str, members)),
            bytes=65536,
            wire_bytes=65536 * size,
            end=end,
        )
        if wait:
            self.add(
                kind="wait",
                name=f"wait {name}",
                phase=phase,
                layer=layer,
                axis=axis,
                seq=seq,
                end=end,
            )
            self.t = end + 1e-5
        return end, seq

    def step(self, step, layers):
        begin, self.number, inner = self.t, step, self.mesh.names[-1]
        for i in range(layers):
            self.work("mm", "forward", 1.0, f"block.{i}")
            self.comm(inner, "all_reduce", "forward", 0.6, f"block.{i}")
            self.sample(parameters=4e6, optimizer=8e6, activations=1e6 * (i + 1))
        for i in reversed(range(layers)):
            self.work("mm", "backward", 2.0, f"block.{i}")
            end, seq = self.comm(inner, "all_reduce", "backward", 0.6, f"block.{i}", wait=False)
            self.work("mm", "recompute" if i == 1 else "backward", 0.4, f"block.{i}")
            if end > self.t:
                self.add(
                    kind="wait",
                    name="wait all_reduce",
                    phase="backward",
                    axis=inner,
                    seq=seq,
                    end=end,
                )
                self.t = end
            self.sample(
                parameters=4e6,
                gradients=4e6 * (layers - i) / layers,
                optimizer=8e6,
                activations=1e6 * i,
            )
            if len(self.mesh.names) > 1 and i % 2 == 0:
                last = self.comm(self.mesh.names[0], "all_reduce", "sync", 1.2, wait=False)
        if len(self.mesh.names) > 1 and last[0] > self.t:
            self.add(
                kind="wait",
                name="wait all_reduce",
                phase="sync",
                axis=self.mesh.names[0],
                seq=last[1],
                end=last[0],
            )
            self.t = last[0]
        self.work("adamw", "optimizer", 0.7)
        self.sample(parameters=4e6, optimizer=8e6)
        self.add(kind="step", lane="step", name=f"step {step}", start=begin, end=self.t)

    def add(self, **fields):
        self.events.append(
            Event(**{"rank": self.rank, "start": self.t, "step": self.number, **fields})
        )

    def sample(self, **kinds):
        self.memory["time"].append(self.t)
        for kind in list(self.memory)[1:]:
            self.memory[kind].append(int(kinds.get(kind, 0)))


def large_trace(events: int, ranks: int = 8, per_step: int = 375, seed: int = 0) -> Trace:
    """About ``events`` events in steps of ``per_step`` on every rank: a kernel, an all-reduce
    issued in it that outlasts it, and the wait for that, over and over."""
    turns = per_step // 3
    steps = max(1, round(events / (ranks * (3 * turns + 1))))
    rng, shape = np.random.default_rng(seed), (ranks, steps, turns)
    work, wait = rng.uniform(20e-6, 200e-6, shape), rng.uniform(0, 60e-6, shape)
    begin = np.zeros((ranks, steps * turns))
    begin[:, 1:] = np.cumsum((work + wait).reshape(ranks, -1), axis=1)[:, :-1]
    begin = begin.reshape(shape)
    rank, step, turn = (index.reshape(-1) for index in np.indices(shape))
    work_end, wait_end = ((begin + t).reshape(-1) for t in (work, work + wait))
    begin, issue = begin.reshape(-1), (begin + 0.6 * work).reshape(-1)
    phase = np.where(turn < turns // 3, "forward", "backward")
    layer = np.char.add("blocks.", (turn % 12).astype(str))
    one = np.ones(rank.size, np.int64)
    ids = np.arange(rank.size) * 3
    blank = {name: np.full(rank.size, default) for name, default in Event()._asdict().items()}
    common = {**blank, "rank": rank, "step": step, "phase": phase, "layer": layer}
    group = {
        "axis": np.full(rank.size, "tp"),
        "bytes": one * 65536,
        "wire_bytes": one * 114688.0,
        "members": np.full(rank.size, ",".join(map(str, range(ranks)))),
        "seq": turn,
    }
    parts = [
        {
            **common,
            "id": ids,
            "name": np.full(rank.size, "mm"),
            "start": begin,
            "end": work_end,
            "flops": one * 10**6,
        },
        {
            **common,
            **group,
            "id": ids + 1,
            "lane": np.full(rank.size, "comm/tp"),
            "kind": np.full(rank.size, "comm"),
            "name": np.full(rank.size, "all_reduce"),
            "start": issue,
            "end": wait_end,
            "seq": step * turns + turn,
        },
        {
            **common,
            "id": ids + 2,
            "kind": np.full(rank.size, "wait"),
            "name": np.full(rank.size, "wait all_reduce"),
            "start": work_end,
            "end": wait_end,
            "waits_for": ids + 1,
        },
    ]
    first = turn == 0
    marks = {name: column[first] for name, column in common.items()}
    spans = wait_end.reshape(shape)
    marks |= {
        "id": rank.size * 3 + np.arange(ranks * steps),
        "kind": np.full(ranks * steps, "step"),
        "lane": np.full(ranks * steps, "step"),
        "start": begin[first],
        "end": spans[:, :, -1].reshape(-1),
        "phase": np.full(ranks * steps, ""),
    }
    columns = {name: np.concatenate([p[name] for p in [*parts, marks]]) for name in blank}
    return Trace(columns, {"badge": "this machine, gloo", "world_size": ranks})
