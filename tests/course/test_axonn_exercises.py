"""What AxoNN's exercises are graded by: against captured programs, real ranks, and by hand."""

import sys

import cloudpickle
import numpy as np
import pytest

import tpviz as tv
from tpviz.course import axonn, axonn_grids, axonn_layers
from tpviz.course.formula import NEAR

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks cannot import this file

W = tv.GPT(layers=1, hidden=32, heads=8, seq=16, batch=8, vocab=64)
LAYERS = {
    "attention.qkv": (32, 96, False),
    "attention.out": (32, 32, True),
    "mlp.up": (32, 128, False),
    "mlp.down": (128, 32, True),
}


@pytest.mark.parametrize("grid", [(2, 2, 2, 1), (4, 1, 2, 1), (1, 4, 1, 2)], ids=str)
def test_bytes_of_a_layer_are_those_of_the_captured_one(grid):
    rows = tv.capture(axonn.strategy_of(grid), W).trace(0).select(kind="comm")
    for layer, (k, n, transposed) in LAYERS.items():
        sent = dict.fromkeys(axonn.GRID, 0)
        for event in rows:
            if event.layer == f"blocks.0.{layer}":
                sent[event.axis.removesuffix("_ahead")] += event.wire_bytes
        tokens = W.batch * W.seq // grid[3]
        found = axonn.layer_bytes(k, n, tokens, grid, transposed, W.itemsize)
        assert found[:3] == pytest.approx(tuple(sent.values())[:3], rel=1e-12)
        assert any(sent.values())


def test_data_sums_the_pieces():
    piece = 32 * 96 / (2 * 2 * 2)
    assert axonn.layer_bytes(32, 96, 64, (2, 2, 2, 4), False, 4)[3] == 2 * 3 / 4 * piece * 4


@pytest.mark.parametrize("order", ["xyz", "yxz"])
def test_ranks_are_where_the_answer_says_and_hold_what_it_says(order):
    grid = (2, 2, 2, 1)
    strategy = axonn.strategy_of(grid, order=order)
    for rank, (at, holds) in enumerate(tv.launch(_held, strategy, world_size=8, progress=False)):
        assert at == axonn._coords(grid, order, rank)
        for weight, whole in holds.items():
            coords = dict(zip(axonn.GRID, at))
            a, b, c, d, e, f = axonn._piece(strategy, W, weight, coords)
            shape = W.parameter_shapes()[f"blocks.0.{axonn.NAMES[weight]}.weight"]
            numbers = np.arange(np.prod(shape)).reshape(shape)
            assert np.array_equal(whole, numbers[a:b, c:d].flatten()[e:f])


def _held(strategy):
    """(coordinates, {weight: which numbers of the whole weight this rank has})."""
    import torch

    from tpviz.course.atp import NAMES
    from tpviz.schemes.gpt.program import own_part

    mesh = tv.Mesh(strategy.axes).device_mesh()
    at, found = tuple(mesh.get_local_rank(axis) for axis in ("x", "y", "z", "data")), {}
    program = strategy.build(W, mesh, torch.float64)
    initial = program.parameters()
    for weight, name in NAMES.items():
        name = f"blocks.0.{name}.weight"
        numbers = torch.arange(initial[name].numel()).view_as(initial[name])
        block = own_part(name, numbers, strategy.splits(W), mesh).flatten()
        mine = block.chunk(strategy.z)[at[2]]
        assert torch.equal(program.named[name], initial[name].flatten()[mine])
        found[weight] = mine.numpy()
    return at, found


def test_schemes_send_what_ours_of_that_name_send():
    small = axonn_grids._small()

    def plain(ledger):
        return [row[1:] for row in ledger]

    assert plain(axonn_grids.sent(axonn_grids.special("Megatron-LM", 8, 4))) == plain(
        tv.Megatron(tp=8).ledger(small)
    )
    assert plain(axonn_grids.sent(axonn_grids.special("DDP", 4, 4))) == plain(
        tv.DataParallel(dp=4, bucket_mb=25.0).ledger(small)
    )


def test_small_batches_take_x_and_y_and_large_ones_z_and_data():
    """The authors' rule, and the best are clearly best."""
    for question in axonn_grids.GRID_FOR.make(np.random.default_rng(0)):
        x, y, _, _ = question.answer
        assert (x * y > 4) == (question.arguments["workload"].batch < 100)
        assert min(x * y * z for x, y, z, _ in question.known) == axonn_grids.LEAST
        times = sorted(question.known.values())
        distinct = [t for t in times if t > 1.001 * times[0]]
        assert distinct[0] > 1.5 * (NEAR - 1) * times[0] + times[0]


def test_the_order_of_gathers_by_hand():
    """With recomputation and without keeping: a block forward again, then backward."""
    names = [f"blocks.{k}.{layer}" for k in (0, 1) for layer in LAYERS]
    order, misses = axonn_layers.step_in_order(2, False, True)
    assert order == (
        "embed",
        *names,
        "head",
        "head",
        *names[4:],
        *reversed(names[4:]),
        *names[:4],
        *reversed(names[:4]),
    )
    assert misses == 0
    assert axonn_layers.step_in_order(2, False, True, order)[1] == 0
    swapped = list(order)
    swapped[3:5] = swapped[4:2:-1]
    assert axonn_layers.step_in_order(2, False, True, tuple(swapped))[1] == 2
