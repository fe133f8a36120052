"""``gather="block"``: a block's weights travel together, and nothing else is different.

Equal to one process, the numbers of ``gather="weight"`` to the bit, ledger and time as by formula,
every message foreseen, memory as tracked, and the film shows what is sent.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import prod

import pytest
from grids import axonn
from test_axonn import CLUSTERS, WIDE
from tiny import TINY, assert_equal

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.schemes.axonn.step import GatherWeight, Scatter, parts
from tpviz.views.figures import blocks
from tpviz.views.films.captions import LAYERS
from tpviz.views.widgets.grid import story

THIN = Cluster("thin wires", Device({"float32": 1e8}, 1e9, 1e9), (Level("all", 8, 1e5, 1e5, 1e-3),))
"""Kernels wait for gathers, so that it matters where one is asked for."""
CASES = [
    ((1, 1, 2, 1), {"keep": False}),
    ((2, 1, 2, 1), {"accumulation": 4}),
    ((1, 1, 4, 1), {"keep": False, "recompute": True, "overlap": ("oag",)}),
    ((1, 2, 2, 1), {"recompute": True, "order": "yxz", "clip": 0.05}),
    ((1, 1, 2, 2), {"keep": False, "accumulation": 4, "overlap": ()}),
    ((2, 2, 2, 1), {"keep": False, "order": "yxz", "overlap": ("ors",)}),
    ((1, 1, 4, 1), {"accumulation": 4, "recompute": True, "overlap": ("oar", "ors")}),
]


def block(sizes, **knobs):
    return axonn(sizes, gather="block", **knobs)


@pytest.mark.parametrize("sizes, knobs", CASES, ids=str)
def test_equals_one_process(sizes, knobs):
    assert_equal(block(sizes, **knobs), replace(WIDE, tied=bool(sizes[0] % 2)))


# -- beside gather="weight" ------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sizes, knobs",
    [
        ((2, 1, 2, 1), {"keep": False, "accumulation": 2}),
        ((1, 1, 4, 1), {"recompute": True, "overlap": ()}),
    ],
    ids=str,
)
def test_not_a_bit_is_different(sizes, knobs):
    """Gradients too: a message's parts are summed in the order of the ranks, wherever they lie."""
    both = [axonn(sizes, gather=gather, **knobs) for gather in ("weight", "block")]
    for same, nonzero in tv.launch(_same_bits, *both, TINY, world_size=both[0].world_size):
        assert same
        assert nonzero


def _same_bits(one, other, workload):
    """(whether all gradients of three steps are equal, and whether there are any)."""
    import torch

    from tpviz.schemes.gpt.program import batch_of

    mesh = tv.Mesh(one.axes).device_mesh()
    programs = [s.build(workload, mesh, torch.float32) for s in (one, other)]
    same, nonzero = True, True
    for step in range(3):
        for program in programs:
            program.step(batch_of(workload, step))
        for a, b in zip(*(program.named.values() for program in programs)):
            same &= torch.equal(a.grad, b.grad)
            nonzero &= bool(a.grad.any())
        for program in programs:
            program.optimizer_step()
    return same, nonzero


@pytest.mark.parametrize(
    "knobs, gathers",
    [
        ({}, 1),
        ({"keep": False}, 2),
        ({"recompute": True}, 2),
        ({"keep": False, "recompute": True}, 3),
    ],
    ids=str,
)
def test_as_many_bytes_in_a_fourth_of_the_messages(knobs, gathers):
    deeper = replace(WIDE, layers=3)

    def of_a_block(strategy):
        found = Counter()
        for sign, w in ((1, deeper), (-1, WIDE)):
            for row in strategy.ledger(w):
                if row.axis in ("z", "z_ahead") and row.phase != "sync":
                    found[row.collective, row.phase, "bytes"] += sign * row.wire_bytes
                    found[row.collective, "count"] += sign * row.count
        return found

    for sizes in ((1, 1, 4, 1), (2, 2, 2, 1)):
        own, together = of_a_block(axonn(sizes, **knobs)), of_a_block(block(sizes, **knobs))
        assert (together["all_gather", "count"], together["reduce_scatter", "count"]) == (
            gathers,
            1,
        )
        assert own == {key: n * 4 if "count" in key else n for key, n in together.items()}


def test_z_alone_sends_the_messages_of_fsdp():
    """Of a block: it gathers for forward, again for backward, and scatters, once each."""
    fsdp, mine = tv.DataParallel(dp=4, zero=3), block((1, 1, 4, 1), keep=False)

    def messages(strategy):
        found = Counter()
        for sign, w in ((1, replace(WIDE, layers=3)), (-1, WIDE)):
            for row in strategy.ledger(w):
                found[row.collective] += sign * row.count
        return +found

    assert messages(mine) == messages(fsdp) == {"all_gather": 2, "reduce_scatter": 1}
    assert messages(axonn((1, 1, 4, 1), keep=False)) != messages(fsdp)


def test_on_one_rank_along_z_it_is_the_same():
    assert block((2, 2, 1, 1)).ledger(TINY) == axonn((2, 2, 1, 1)).ledger(TINY)
    assert block((2, 2, 1, 1)).memory(TINY) == axonn((2, 2, 1, 1)).memory(TINY)


# -- ledger, time, order ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sizes, knobs",
    [((1, 1, 2, 1), {"keep": False, "overlap": overlap}) for overlap in ((), ("oag",))]
    + [
        ((2, 1, 2, 1), {"accumulation": 4}),
        ((1, 2, 2, 2), {"recompute": True}),
        ((1, 1, 4, 1), {"recompute": True, "keep": False, "accumulation": 2, "order": "yxz"}),
    ],
    ids=str,
)
def test_capture_is_the_formula_and_prediction_the_simulation(sizes, knobs):
    strategy = block(sizes, **knobs)
    program = tv.capture(strategy, WIDE)
    assert program.trace(0).ledger() == strategy.ledger(WIDE)
    for cluster in (CLUSTERS[0], THIN):
        trace = tv.simulate(strategy, WIDE, cluster, capture=program, contention=False)
        assert tv.predict(strategy, WIDE, cluster).step_time == pytest.approx(
            trace.step_time, rel=1e-9
        )


@pytest.mark.parametrize(
    "knobs", [{"keep": False}, {"recompute": True, "accumulation": 2}], ids=str
)
def test_every_message_is_foreseen_and_named(knobs):
    strategy = block((1, 1, 2, 1), **knobs)
    for misses, order, layers in tv.launch(_order, strategy, WIDE, world_size=2):
        assert misses == 0
        of_blocks = [ask for ask in order if ask[0].startswith("blocks.")]
        again = "backward" if "keep" in knobs else "recompute"
        assert (
            of_blocks
            == [
                ("blocks.0", "forward"),
                ("blocks.1", "forward"),
                ("blocks.1", again),
                ("blocks.0", again),
            ]
            * strategy.accumulation
        )
        assert layers == ["head", "blocks.1", "blocks.0", "embed"] * strategy.accumulation


def _order(strategy, workload):
    """(misses of four steps, order of the asks, layers of a step's scatters); between the steps the
    model is evaluated, which is not noted."""
    import torch

    from tpviz.schemes.gpt.program import batch_of

    program = strategy.build(workload, tv.Mesh(strategy.axes).device_mesh(), torch.float64)
    local = [rows[:4] for rows in batch_of(workload, 9)]
    for step in range(3):
        program.step(batch_of(workload, step))
        program.optimizer_step()
        with torch.no_grad():
            program.module(*local)
    with tv.record() as recorder, recorder.step():
        program.step(batch_of(workload, 3))
    order = [(unit.layer, phase) for unit, phase in program.depth.order]
    scatters = sorted(
        (e for e in recorder.trace if e.kind == "comm" and e.name == "reduce_scatter"),
        key=lambda e: e.start,
    )
    return program.depth.misses, order, [e.layer for e in scatters]


def test_a_step_after_one_that_failed():
    """In the middle of a block's backward: what it has gathered is in no later step."""
    found = tv.launch(_after_failure, block((1, 1, 2, 1), keep=False), TINY, world_size=2)
    assert max(found) < 1e-14, found


def _after_failure(strategy, workload):
    """Largest error of the gradients of the step after it."""
    import torch

    from tpviz.schemes.gpt.program import batch_of, reference_program

    program = strategy.build(workload, tv.Mesh(strategy.axes).device_mesh(), torch.float64)
    reference, batch = reference_program(workload, torch.float64), batch_of(workload, 0)

    def fail(module, args, y):
        y.register_hook(lambda grad: 1 / 0)

    failing = program.module.blocks[0].attention.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        program.step(batch)
    failing.remove()
    assert program.depth.begun  # gathered for four, used by two
    program.step(batch_of(workload, 0)), reference.step(batch)
    found = program.gradients()
    return max(
        float((found[name] - expected).abs().max())
        for name, expected in reference.gradients().items()
    )


# -- memory ----------------------------------------------------------------------------------------
W = tv.GPT(layers=3, hidden=64, heads=4, seq=32, batch=4, vocab=512, tied=False)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"keep": False, "overlap": ("oag",)},
        {"recompute": True, "overlap": ()},
        {"keep": False, "recompute": True, "overlap": ("oag",)},
    ],
    ids=str,
)
def test_memory_is_what_is_tracked(knobs):
    from test_memory_formulas import EXACT, peaks

    strategy = block((1, 1, 2, 1), **knobs)
    found, tracked = strategy.memory(W), peaks(strategy, W)
    assert {k: found[k] for k in EXACT} == {k: tracked[k] for k in EXACT}
    assert found["activations"] == pytest.approx(tracked["activations"], rel=0.04)


def test_a_blocks_weights_are_there_at_once():
    """By hand, backward of a block where weights are most: the message that was gathered again and
    the buffer of gradients, G each; the up projection's copy, its gradient; and with OAG the next
    message, beside this rank's part of it."""
    w = tv.GPT(layers=2, hidden=256, heads=4, seq=4, batch=4, vocab=64)
    G, up = 12 * 256**2 * 4, 4 * 256**2 * 4
    own, together = (
        axonn((1, 1, 2, 1), keep=False, recompute=True, overlap=("oag",), gather=gather).memory(w)[
            "activations"
        ]
        for gather in ("weight", "block")
    )
    assert own == pytest.approx(3.5 * up, rel=0.1)  # W, dW, half of one, and the next W
    assert together == pytest.approx(2 * G + 2 * up + 1.5 * G, rel=0.05)


# -- the film --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "sizes, knobs",
    [
        ((2, 2, 2, 1), {}),
        ((1, 1, 4, 2), {"keep": False}),
        ((2, 1, 2, 1), {"recompute": True}),
        ((1, 2, 2, 1), {"keep": False, "recompute": True, "accumulation": 2, "overlap": ()}),
    ],
    ids=str,
)
def test_the_walk_is_the_program(sizes, knobs):
    w = tv.GPT(layers=3, hidden=64, heads=16, seq=8, batch=64)
    found = story(block(sizes, **knobs), w)
    s, frames = found.strategy, found.frames
    sent = [
        (o.payload, type(o))
        for part in parts(s, w)
        for o in part.operations
        if part.layer.startswith("blocks.1.") and isinstance(o, GatherWeight | Scatter)
    ]
    moved = [f for f in frames if f.move and f.move.axis == "z" and f.phase != "sync"]
    kinds = {"all_gather": GatherWeight, "reduce_scatter": Scatter}
    assert [(f.move.payload, kinds[f.move.collective]) for f in moved] * s.accumulation == sent
    for frame, after in pairwise(frames):
        if frame in moved:
            numbers = prod(blocks.payload_of(frame).local(found.mesh.axes))
            assert numbers * w.itemsize == frame.move.payload
            whole = frame.move.collective == "all_gather"
            assert set(frame.weights.values()) == {"block" if whole else "piece"}
        if frame.product and frame.product[1].name in ("W", "Wᵀ"):
            assert frame.weights[frame.layer] == "block"
        if frame.phase == "forward" and after.phase == "recompute":
            assert set(frame.weights.values()) == {"block"}  # the last layer ends them all
            assert after in moved or set(after.weights.values()) == {"piece"}
    assert set(frames[-1].weights.values()) == set(frames[-1].gradients.values()) == {"piece"}
    ahead = {f.name for frame in frames for f in frame.in_flight if f.collective == "all_gather"}
    assert ahead <= {
        f"W of {what}"
        for what in (
            "all four",
            "all four, next block",
            "all four, block before",
            "qkv, next block",
        )
    }
    assert bool(ahead) == ("oag" in s.overlap)
    scene = blocks.blocks_scene(found, 1)
    assert len(scene["frames"]) == len(frames)


def test_the_message_by_hand():
    w = tv.GPT(layers=3, hidden=64, heads=16, seq=8, batch=64, mlp_ratio=3)
    found = story(block((2, 2, 2, 1), recompute=True, keep=False), w)
    first, last = found.frames[1], [f for f in found.frames if f.phase == "backward"][-2]
    assert blocks.sentence(first) == "W[H_y, 10H_xz] → all-gather over z → W[H_y, 10H_x]"
    assert blocks.symbols(first) == "10h²/(y x)"
    assert blocks.sentence(last).startswith("dW[H_y, 10H_x] partial over z → reduce-scatter over z")
    assert "all four weights" in first.words
    ours = next(f for f in found.frames if f.phase == "recompute" and f.in_flight).in_flight[0]
    assert (ours.layers, ours.name) == (LAYERS, "W of all four")  # backward gathers them once more


def test_a_foreign_model_has_no_blocks():
    import torch

    with pytest.raises(
        ValueError,
        match=r"gather='block' is not possible here: a model that is "
        r"not ours.*use gather='weight'",
    ):
        tv.parallelize(torch.nn.Linear(4, 4), tv.AxoNN(x=1, z=2, gather="block"))
    with pytest.raises(ValueError, match="gather='layer' is not possible: use 'weight' or 'block'"):
        tv.AxoNN(gather="layer")
