"""The recorder on unmodified PyTorch programs: same results, ledgers as theory says."""

import gc

import pytest
import torch
from programs import BATCH, HIDDEN, PIPELINES, PROGRAMS, dtensor_counts, mlp, plainly, recorded
from torch.utils.checkpoint import checkpoint

import tpviz as tv
from tpviz.ranks import memory

RANKS = 4
ITEM = 8  # float64


def every_program(run):
    """All programs one after another inside a rank; the world loses its axis name between them."""
    from tpviz.ranks import adapters

    results = {}
    for name in PROGRAMS:
        adapters.forget_axes()
        results[name] = run(name)
    return results


@pytest.fixture(scope="module")
def plain():
    return tv.launch(every_program, plainly, world_size=RANKS, backend="gloo")


@pytest.fixture(scope="module")
def traced():
    return tv.launch(every_program, recorded, world_size=RANKS)


def expected(name):
    linear_bytes = [p.numel() * ITEM for p in mlp().parameters()]
    activation = BATCH * HIDDEN * ITEM
    if name == "dtensor_tp":  # one all-reduce of the output, one of the input's gradient
        return [
            ("tp", "all_reduce", "forward", 1, activation, RANKS),
            ("tp", "all_reduce", "backward", 1, activation, RANKS),
        ]
    if name == "ddp":  # everything fits one bucket
        return [("world", "all_reduce", "sync", 1, sum(linear_bytes), RANKS)]
    if name == "fsdp2":  # weight and bias of each of the four Linears travel together
        layers = [a + b for a, b in zip(linear_bytes[::2], linear_bytes[1::2])]
        return [
            ("dp", collective, phase, 1, size, RANKS)
            for size in layers
            for collective, phase in (
                ("all_gather", "forward"),
                ("all_gather", "backward"),
                ("reduce_scatter", "backward"),
            )
        ]
    raise KeyError(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_equal_those_on_plain_gloo(plain, traced, name):
    for rank in range(RANKS):
        loss, gradients = plain[rank][name]
        traced_loss, traced_gradients, _ = traced[rank][name]
        assert traced_loss == loss
        assert all(torch.equal(a, b) for a, b in zip(traced_gradients, gradients, strict=True))


@pytest.mark.parametrize("name", ["dtensor_tp", "ddp", "fsdp2"])
def test_ledger_equals_theory_on_every_rank(traced, name):
    for rank in range(RANKS):
        assert traced[rank][name][2].ledger().diff(tv.Ledger.of(expected(name))) == []


@pytest.mark.skipif(not PIPELINES, reason="torch 2.9's own pipelining fails on gloo")
def test_pipeline_ledger(traced):
    microbatches, stage_bytes = 4, BATCH // 4 * HIDDEN * ITEM
    for rank in range(RANKS):
        ledger = traced[rank]["one_f_one_b"][2].ledger()
        neighbours = (rank > 0) + (rank < RANKS - 1)
        for direction in ("send", "recv"):
            assert ledger.total(collective=direction)[:2] == (
                neighbours * microbatches,
                neighbours * microbatches * stage_bytes,
            )


def test_dtensor_ledger_equals_comm_debug_mode(traced):
    counted = tv.launch(dtensor_counts, world_size=RANKS)
    for rank in range(RANKS):
        assert sum(counted[rank].values()) == traced[rank]["dtensor_tp"][2].ledger().total()[0]
        assert set(counted[rank]) == {"c10d_functional.all_reduce"}


@pytest.mark.parametrize("name", ["dtensor_tp", "ddp"])
def test_flops_are_counted(traced, name):
    """2 m k n for each Linear forward, twice that backward; in DDP the input needs no gradient."""
    trace = traced[0][name][2]
    linear = 2 * BATCH * HIDDEN * 4 * HIDDEN
    if name == "dtensor_tp":
        assert trace["flops"].sum() == 2 * 3 * linear / RANKS
    else:
        assert trace["flops"].sum() == 4 * 3 * linear - linear


@pytest.mark.parametrize("name", PROGRAMS)
def test_events_are_consistent(traced, name):
    for rank in range(RANKS):
        trace = traced[rank][name][2]
        events = {e.id: e for e in trace}
        assert trace["rank"].tolist() == [rank] * len(trace)
        assert (trace["end"] >= trace["start"]).all()
        assert set(trace["kind"]) >= {"compute", "comm", "step"}
        step = trace.select(kind="step")
        assert (trace["start"] >= step["start"][0]).all()
        assert (trace.select(kind="compute")["end"] <= step["end"][0]).all()
        for wait in trace.select(kind="wait"):
            source = events[wait.waits_for]
            assert source.kind == "comm"
            assert source.seq == wait.seq
            assert wait.end >= source.start


def test_ranks_agree_on_sequence_numbers(traced):
    for name in ("dtensor_tp", "ddp", "fsdp2"):
        seen = [
            [(e.name, e.members, e.seq) for e in traced[r][name][2].select(kind="comm")]
            for r in range(RANKS)
        ]
        assert all(s == seen[0] for s in seen)


def test_layers_and_phases():
    layers = tv.launch(_layers, world_size=1)[0]
    names = [f"layers.{i}" for i in range(3)]
    assert layers["forward"] == names
    assert layers["backward"] == names[::-1]
    assert layers["recompute"] == names[:1]
    assert "optimizer" in layers


class Checkpointed(torch.nn.Module):
    """An MLP whose first layers are computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(1)

    def forward(self, x):
        return self.layers[2](checkpoint(self.layers[:2], x, use_reentrant=False))


def _layers():
    """{phase: layers in the order in which they computed}."""
    model = Checkpointed()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with tv.record(detail="all") as rec, rec.step():
        model(torch.ones(BATCH, HIDDEN, dtype=torch.float64)).sum().backward()
        optimizer.step()
    found = {}
    for e in rec.trace.select(kind="compute"):
        layers = found.setdefault(e.phase, [])
        if e.name in ("addmm", "mm", "gelu", "gelu_backward") and e.layer not in layers:
            layers.append(e.layer)
    return found


def test_memory_of_a_step_is_exact():
    kinds, model_bytes = tv.launch(_memory, world_size=1)[0]
    assert kinds["parameters"] == [model_bytes, model_bytes]
    assert kinds["gradients"] == [model_bytes, 0]
    assert (
        kinds["optimizer"][1] == 2 * model_bytes + 8 * 4
    )  # two moments, and a float32 step count each
    assert kinds["activations"][0] > kinds["activations"][1]


def _memory():
    """{kind: [peak, last]} of a step that frees its gradients, and the bytes of the model."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.ones(BATCH, HIDDEN, dtype=torch.float64)

    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    with tv.record(memory=True) as rec, rec.step():
        step()
    series = rec.trace.meta["memory"][0]
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return {k: [max(v), v[-1]] for k, v in series.items() if k != "time"}, size


def test_async_collective_is_stamped_when_it_ends_not_when_waited_for():
    for comm_end, wait_start in tv.launch(_late_wait, world_size=2):
        assert comm_end < wait_start


def _late_wait():
    import time

    torch.distributed.barrier()  # both begin, so neither waits for the other to come
    with tv.record() as rec:
        work = torch.distributed.all_reduce(torch.ones(1000), async_op=True)
        time.sleep(0.5)
        work.wait()
    (comm,), (wait,) = rec.trace.select(kind="comm"), rec.trace.select(kind="wait")
    return comm.end, wait.start


def test_a_stream_behind_its_host_does_not_begin_what_the_host_saw_end():
    """CUDA's events are late by what the GPU has queued; the host stamps the end of gloo's work."""
    for start, end in tv.launch(_late_stream, world_size=2):
        assert start == end


def _late_stream():
    import time

    from tpviz.ranks import clock, recorder

    class Late(clock.HostClock):
        now = staticmethod(lambda: time.perf_counter() + 1)

        def seen(self):
            return time.perf_counter()

    recorder.host_or_device_clock, ours = Late, recorder.host_or_device_clock
    try:
        with tv.record() as rec:
            work = torch.distributed.all_reduce(torch.ones(1000), async_op=True)
            time.sleep(0.2)
            work.wait()
    finally:
        recorder.host_or_device_clock = ours
    (comm,) = rec.trace.select(kind="comm")
    return comm.start, comm.end


def test_tensors_staged_through_the_host_give_the_same_numbers():
    """What CUDA tensors on a shared GPU go through, here forced on CPU tensors."""
    assert tv.launch(_staged, world_size=2) == [
        [3.0, [0.0, 1.0], 1.0, 0],
        [3.0, [0.0, 1.0], 1.0, 1],
    ]


def _staged():
    import os

    import torch.distributed as dist

    os.environ["TPVIZ_STAGE"] = "1"
    try:
        rank = dist.get_rank()
        total, parts, mine = torch.tensor(rank + 1.0), torch.empty(2), torch.empty(1)
        dist.all_reduce(total)
        dist.all_gather([parts[:1], parts[1:]], torch.tensor([float(rank)]))
        dist.reduce_scatter(mine, [torch.ones(1) * 0.5, torch.ones(1) * 0.5])
        if rank == 0:
            dist.send(torch.ones(1), 1)
        sender = dist.recv(torch.zeros(1)) if rank else 1  # from anyone
    finally:
        del os.environ["TPVIZ_STAGE"]
    return [total.item(), parts.tolist(), mine.item(), 1 - sender]


class Objects(list):
    """The collector's list; while it is read, C++ lets go of its tensors."""

    def __iter__(self):
        for each in super().__iter__():
            yield each
            holders.clear()


holders = []


def test_tensors_that_cpp_frees_while_they_are_listed(monkeypatch):
    weight = torch.ones(3, requires_grad=True)
    kept, freed = torch.full((3,), 2.0), torch.full((3,), 3.0)
    ids = id(kept), id(freed)
    holders[:] = [weight * kept, weight * freed]  # each holds its factor for the backward pass
    del kept, freed
    found = {id(o): o for o in gc.get_objects() if id(o) in ids}
    objects = Objects(found[i] for i in ids)
    del found
    monkeypatch.setattr(memory.gc, "get_objects", lambda: objects)
    tensors, states = memory._alive(fake=False)
    assert tensors[0].tolist() == [2.0] * 3 and states == []
