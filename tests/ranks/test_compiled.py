"""Programs of torch.compile are recorded as they run, with the numbers of the uncompiled ones."""

import warnings

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh

import tpviz as tv

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # Inductor's own

BATCH, WIDE, HIDDEN, ITEM = 2, 8, 4, 8
GEMM = 2 * BATCH * WIDE * HIDDEN  # FLOPs; two forward, three backward: the input needs no gradient
RANKS = 2
CLUSTER = tv.clusters.nvlink_pairs(pairs=1).scale_model(hidden=64, slow_motion=50)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture(autouse=True)
def compiler(monkeypatch, cache):
    """Fresh, with its files in a folder of these tests and no processes of its own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(HIDDEN, WIDE), nn.GELU(), nn.Linear(WIDE, HIDDEN)).double()


def train(module, called):
    """A step of forward and backward by ``called``; loss and gradients."""
    module.zero_grad()
    loss = called(torch.ones(BATCH, HIDDEN, dtype=torch.float64)).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def recorded(module, called, **options):
    with tv.record(**options) as recorder, recorder.step():
        found = train(module, called)
    return found, recorder.trace.select(kind="compute")


def compilations():
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    "backend, warm",
    [("eager", True), ("aot_eager", False), ("inductor", False), ("inductor", True)],
)
def test_what_is_compiled_is_recorded_and_compiled_once(backend, warm):
    module = model()
    plain, eager = recorded(module, module)
    called = torch.compile(module, backend=backend, fullgraph=True)
    if warm:
        train(module, called)
    for _ in range(2):
        found, kernels = recorded(module, called)
        torch.testing.assert_close(found, plain)
        assert kernels["flops"].sum() == eager["flops"].sum() == 5 * GEMM
        gemms = kernels.where(kernels["flops"] > 0)
        assert gemms["phase"].tolist() == ["forward"] * 2 + ["backward"] * 3
        assert set(gemms["layer"]) == {"Sequential"}
        fused = kernels.where(kernels["flops"] == 0)
        assert bool(len(fused)) == (backend == "inductor")
        assert {"forward", "backward"} >= set(fused["phase"])
        assert all(e.name.startswith("cpp_fused_") and e.bytes and e.end > e.start for e in fused)
    names = kernels["name"].tolist()
    torch.testing.assert_close(train(module, called), plain)
    assert compilations() == 1
    if backend == "inductor":  # of one forward, the bytes are known: GELU reads and writes
        gelu = kernels.select(name="cpp_fused_gelu_0")
        assert gelu["bytes"].tolist() == [2 * BATCH * WIDE * ITEM] and names.count("addmm") == 2


def test_all_operators_memory_and_emulation_see_compiled_code_too():
    module = model()
    called = torch.compile(module)
    plain = train(module, called)
    with torch.compiler.set_stance("fail_on_recompile"):
        for options in ({"detail": "all"}, {"memory": True}):
            found, kernels = recorded(module, called, **options)
            torch.testing.assert_close(found, plain)
            names = kernels["name"].tolist()
            assert "cpp_fused_gelu_0" in names and "gelu" not in names
            assert kernels["flops"].sum() == 5 * GEMM
        weights = sum(p.numel() for p in module.parameters()) * ITEM
        with tv.record(memory=True) as recorder:
            train(module, called)
    series = recorder.trace.meta["memory"][0]
    hidden = BATCH * WIDE * ITEM  # before GELU and after it: both are kept for the backward
    assert max(series["activations"]) - series["activations"][0] >= 2 * hidden
    assert max(series["gradients"]) >= weights
    assert max(series["activations"]) < 100_000  # the compiler's own fake tensors are none of it


def test_functions_breaks_and_optimizers_are_compiled_once_as_well():
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(x):
        hidden = module[1](module[0](x))
        torch._dynamo.graph_break()
        module[2](hidden).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    called, x = torch.compile(step, backend="eager"), torch.ones(BATCH, HIDDEN).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: of record_function in compiled optimizers
        for _ in range(2):
            called(x)
    before = compilations(), counters["frames"]["total"]
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            with tv.record() as recorder, recorder.step():
                called(x)
            assert recorder.trace["flops"].sum() == 5 * GEMM
        called(x)
    assert (compilations(), counters["frames"]["total"]) == before


def test_eager_programs_are_as_before_a_recording():
    call, hooks = nn.Module.__call__, torch.nn.modules.module._has_any_global_hook()
    with pytest.raises(ZeroDivisionError), tv.record():
        raise ZeroDivisionError
    with tv.record():
        assert nn.Module.__call__ is not call
        assert not torch.nn.modules.module._has_any_global_hook()
    assert nn.Module.__call__ is call and not hooks
    assert not torch._dynamo.callback_handler.start_callbacks


def tensor_parallel():
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    return parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def data_parallel():
    return nn.parallel.DistributedDataParallel(model())


def steps(make, compiled):
    """In a rank: results of each of several steps, plain, recorded and emulated; and the traces."""
    module = make()
    called = torch.compile(module, backend="aot_eager") if compiled else module
    results, traces = [train(module, called)], []
    for cluster in (None, CLUSTER) if compiled else ():
        for _ in range(2):
            with tv.record(cluster=cluster) as recorder, recorder.step():
                results.append(train(module, called))
        traces.append(recorder.trace)
    results += [train(module, called)]
    return [[getattr(t, "full_tensor", lambda t=t: t)() for t in r] for r in results], traces


def every(compiled):
    from tpviz.ranks import adapters

    found = []
    for make in (tensor_parallel, data_parallel):
        adapters.forget_axes()
        found.append(steps(make, compiled))
    return found


@pytest.mark.filterwarnings("ignore:this emulated run is not faithful")  # the machine may be busy
def test_compiled_ranks_have_the_numbers_of_plain_gloo_and_an_exact_ledger():
    plain = tv.launch(every, False, world_size=RANKS, backend="gloo")
    ours = tv.launch(every, True, world_size=RANKS, timeout=120)
    for rank in range(RANKS):
        for (found, _), (expected, _) in zip(ours[rank], plain[rank]):
            assert len(found) == 6
            for result in found:
                torch.testing.assert_close(result, expected[0])
    sums = {  # DTensor sums the output of the two layers, DDP all gradients
        0: ("tp", "all_reduce", "forward", 1, BATCH * HIDDEN * ITEM),
        1: ("world", "all_reduce", "sync", 1, ITEM * sum(p.numel() for p in model().parameters())),
    }
    for program, row in sums.items():
        for traces in zip(*(rank[program][1] for rank in ours)):
            trace = tv.Trace.merge(traces)
            assert [tuple(r)[:5] for r in trace.ledger()] == [row]
            gemms = trace.where(trace["flops"] > 0)
            assert gemms["flops"].tolist() == [GEMM // (1 if program else RANKS)] * 5 * RANKS
