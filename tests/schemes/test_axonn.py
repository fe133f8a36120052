"""AxoNN's 4D algorithm equals one process in float64 on every grid, sends what the formula says to
the byte, takes what simulation says, and refuses what cannot be."""

from dataclasses import replace

import pytest
from grids import axonn, grids
from tiny import TINY, UNTIED, assert_equal, captured, named
from together import together

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level

GRIDS = [*grids(1, 2, 4), (2, 2, 2, 1), (1, 2, 2, 2)]
OVERLAPS = [(), ("oar",), ("ors",), ("oag",), ("oar", "ors", "oag")]
# The whole product of these, with all grids of 8, is in bench/sweep_axonn.py.
KNOBS = [
    {},
    {"order": "yxz"},
    {"keep": False},
    {"recompute": True},
    {"accumulation": 4},
    {"overlap": ()},
    {"overlap": ("oag",), "keep": False, "recompute": True},
    {"overlap": ("ors",), "accumulation": 4, "order": "yxz"},
    {"overlap": ("oar",)},
]
WIDE = replace(TINY, batch=32)  # 8 ranks along z or data, 4 microbatches


CASES = [  # each grid once
    (axonn(grid, **KNOBS[k % len(KNOBS)]), replace(WIDE, tied=sum(grid) % 2 == 0))
    for k, grid in enumerate(GRIDS)
]


@pytest.mark.parametrize("strategy, workload", CASES, ids=named)
def test_equals_one_process(strategy, workload):
    assert_equal(strategy, workload, among=CASES)


def trained(strategy, workload, steps, **more):
    """`run` with nothing but the training."""
    return tv.run(strategy, workload, steps=steps, memory=False, progress=False, **more)


def test_overlaps_change_no_number():
    """Every rank adds in the same order, whenever it waits."""
    passes = [{"keep": True, "recompute": False}, {"keep": False, "recompute": True}]
    strategies = [
        [axonn((2, 1, 2, 1), overlap=overlap, **knobs) for overlap in OVERLAPS] for knobs in passes
    ]
    runs = together(lambda s: trained(s, TINY, 3), [*strategies[0], *strategies[1]])
    for group in strategies:
        losses = {tuple(runs[s].meta["losses"]) for s in group}
        assert len(losses) == 1, group


def test_three_steps_on_odd_sizes():
    odd = tv.GPT(layers=2, hidden=18, heads=3, seq=5, batch=4, vocab=33, mlp_ratio=3, tied=False)
    both = [(axonn((3, 1, 2, 1)), odd), (axonn((1, 3, 2, 1), keep=False), odd)]
    for strategy, workload in both:
        assert_equal(strategy, workload, steps=3, among=both)


# -- ledgers ---------------------------------------------------------------------------------------
def test_ledgers_of_run_and_capture_are_the_formulas():
    strategies = [axonn((2, 1, 2, 1), **knobs) for knobs in KNOBS]
    runs = together(lambda s: trained(s, WIDE, 2, warmup=0), strategies)
    for strategy, trace in runs.items():
        expected = strategy.ledger(WIDE)
        assert captured(strategy, WIDE).trace(0).ledger() == expected
        for step in (0, 1):  # the first step does not know yet what will be asked for next
            assert trace.ledger(step=step) == expected


@pytest.mark.parametrize("grid", [(2, 2, 2, 1), (2, 1, 2, 2), (4, 2, 1, 1), (1, 1, 4, 2)])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize(
    "recompute, keep, passes",
    [(False, True, 2), (False, False, 3), (True, True, 3), (True, False, 4)],
)
def test_closed_forms_of_a_block(grid, accumulation, recompute, keep, passes):
    """V_x, V_y, V_z of one block, elements on the wire of a rank, R forward passes (derived):
    2 (x-1)/x m h/(z y) (2R + 2), 2 (y-1)/y m h/(z x) (7R + 5), a (z-1)/z 12 h^2/(x y)."""
    w = replace(WIDE, dtype="float64")
    deeper = replace(w, layers=3)
    x, y, z, data = grid
    strategy = axonn(grid, recompute=recompute, keep=keep, accumulation=accumulation)
    rows, runs = w.batch * w.seq // data // z, 1 + recompute

    def block(axis):
        ledgers = (strategy.ledger(v) for v in (deeper, w))
        sent = [
            sum(r.wire_bytes for r in ledger if r.axis == axis and r.phase != "sync")
            for ledger in ledgers
        ]
        return (sent[0] - sent[1]) / 8

    statistics = 2 * (runs + 1) * 2 * rows * 2 * (y - 1) / y
    h = w.hidden
    assert block("x") == pytest.approx(2 * (x - 1) / x * rows * h / y * (2 * runs + 2), rel=1e-12)
    assert block("y") - statistics == pytest.approx(
        2 * (y - 1) / y * rows * h / x * (7 * runs + 5), rel=1e-12
    )
    assert block("z") + block("z_ahead") == pytest.approx(
        accumulation * passes * (z - 1) / z * 12 * h * h / (x * y), rel=1e-12
    )


def test_special_cases():
    """x alone sends what Megatron-LM does, data alone what one bucket of DDP does."""
    mine = [row[1:] for row in axonn((4, 1, 1, 1)).ledger(TINY)]
    assert mine == [row[1:] for row in tv.Megatron(tp=4).ledger(TINY)]
    ddp = tv.DataParallel(dp=4, bucket_mb=25.0)
    assert [row[1:] for row in axonn((1, 1, 1, 4)).ledger(TINY)] == [
        row[1:] for row in ddp.ledger(TINY)
    ]


# -- time ------------------------------------------------------------------------------------------
CLUSTERS = [
    Cluster(
        "slow links",
        Device({"float32": 1e6}, 1e9, 1e6),
        (Level("in", 2, 1e5, 2e5, 1e-3), Level("out", 4, 5e4, 1e5, 2e-3)),
    ),
    Cluster(
        "slow devices",
        Device({"float32": 1e5}, 1e9, 1e8),
        (Level("in", 4, 1e6, 2e6, 1e-4), Level("out", 2, 2e5, 3e5, 2e-4)),
        rings="single",
    ),
]


TIMED = [(2, 1, 2, 1), (1, 2, 2, 2), (1, 1, 4, 1), (2, 2, 1, 2)]


@pytest.mark.parametrize(
    "grid, knobs",
    [*((TIMED[0], knobs) for knobs in KNOBS), *((TIMED[1 + k % 3], KNOBS[k]) for k in range(9))],
    ids=str,
)
def test_equals_the_simulation(grid, knobs):
    """Every choice of knobs on two grids; `test_conformance` goes over the space."""
    strategy = axonn(grid, **knobs)
    program = captured(strategy, WIDE)
    for cluster in CLUSTERS:
        trace = tv.simulate(strategy, WIDE, cluster, capture=program, contention=False)
        assert tv.predict(strategy, WIDE, cluster).step_time == pytest.approx(
            trace.step_time, rel=1e-9
        )


# -- order of gathers ---------------------------------------------------------------------------
def test_no_gather_comes_unforeseen():
    found = tv.launch(
        lambda strategies: [_misses(s, WIDE) for s in strategies],
        [
            axonn((1, 1, 2, 1), **knobs)
            for knobs in ({}, {"keep": False}, {"recompute": True, "accumulation": 2})
        ],
        world_size=2,
    )
    assert found == [[(0, True)] * 3] * 2


def _misses(strategy, workload):
    import torch

    from tpviz.schemes.gpt.program import batch_of

    mesh = tv.Mesh(strategy.axes).device_mesh()
    program = strategy.build(workload, mesh, torch.float64)
    for step in range(3):
        program.step(batch_of(workload, step))
        program.optimizer_step()
    return program.depth.misses, len(program.depth.order) > 0


def test_a_step_after_one_that_failed():
    """Gradients that were under way when it failed are in no later step."""
    for strategy in (axonn((1, 1, 2, 1)), axonn((1, 1, 2, 1), accumulation=2, keep=False)):
        found = tv.launch(_after_failures, strategy, TINY, world_size=2, progress=False)
        assert max(map(max, found)) < 1e-14, found


def _after_failures(strategy, workload):
    """Errors of the gradients after a step that failed in its last microbatch's backward."""
    import torch

    from tpviz.schemes.gpt.program import batch_of, reference_program

    program = strategy.build(workload, tv.Mesh(strategy.axes).device_mesh(), torch.float64)
    reference, errors = reference_program(workload, torch.float64), []
    seen = []

    def fail(module, args, y):
        seen.append(y)
        if len(seen) % strategy.accumulation == 0:
            y.register_hook(lambda grad: 1 / 0)

    for step in range(2):
        batch = batch_of(workload, step)
        failing = program.module.blocks[0].register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            program.step(batch)
        failing.remove()
        program.step(batch), reference.step(batch)
        found = program.gradients()
        errors += [
            float((found[name] - expected).abs().max())
            for name, expected in reference.gradients().items()
        ]
    return errors


# -- bad input -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "knobs, change, message",
    [
        ({"x": 3}, {}, "heads=8 does not split evenly over x=3: use x=2 or 4"),
        ({"x": 3}, {"hidden": 24, "vocab": 36}, "use x=2 or 4, or heads=6 or 12"),  # divide hidden
        ({"x": 2}, {"vocab": 33}, "use x=1, or vocab=32 or 34"),  # 3 would not divide heads
        ({"y": 3}, {}, "hidden=16 does not split evenly over y=3: use y=2 or 4, or hidden=24"),
        ({"x": 1, "z": 5}, {"batch": 5}, "over z=5: use z=1"),  # 4 would not divide the batch
        ({"x": 1, "z": 3}, {}, "batch=8 does not split evenly over data * z * accumulation=3: use"),
        ({"x": 1, "z": 2, "accumulation": 8}, {}, "batch=8 does not split evenly"),
        ({"x": 8, "z": 32}, {"batch": 32, "vocab": 8}, "does not split evenly over z=32"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_named(knobs, change, message):
    strategy, workload = tv.AxoNN(**knobs), replace(UNTIED, **change)
    for ask in (strategy.check, strategy.ledger, lambda w: tv.run(strategy, w)):
        with pytest.raises(ValueError) as error:
            ask(workload)
        assert message in str(error.value)


def test_overlaps_that_are_none():
    for wrong in (3, None, ("oar", 1)):
        with pytest.raises(ValueError, match=r"overlap=\w+ is not possible: use 'oar', 'ors' or"):
            tv.AxoNN(overlap=wrong)
    with pytest.raises(ValueError, match="overlap='oax' is not possible"):
        tv.AxoNN(overlap=("oar", "oax"))


def test_data_parallelism_around_it_is_its_own_axis():
    """Of one stage of ZeRO, which it has; not twice."""
    assert tv.AxoNN() * tv.DataParallel(dp=2) == tv.DataParallel(dp=2) * tv.AxoNN()
    assert tv.AxoNN() * tv.DataParallel(dp=2) == tv.AxoNN(data=2)
    for grid, around in (({}, {"zero": 1}), ({"data": 2}, {})):
        with pytest.raises(ValueError, match=r"shares the batch itself: use AxoNN\(data=2\)"):
            tv.AxoNN(**grid) * tv.DataParallel(dp=2, **around)


@pytest.mark.parametrize("grid", [(2, 2, 2, 1), (1, 1, 4, 2)])
def test_ownership_is_of_pieces(grid):
    """What a mesh shows as a rank's own is what its program holds: pieces cover a weight once."""
    from tpviz.schemes.axonn.step import num_local_parameters
    from tpviz.schemes.ownership import ownership
    from tpviz.views.figures.mesh import mesh_scene, share

    strategy = axonn(grid)
    rows = ownership(strategy, TINY)
    notation = {r["name"].removeprefix("blocks.1."): r["notation"] for r in rows}
    assert notation["mlp.up.weight"].startswith("flat(W[") and "flat" not in notation["mlp.up.bias"]
    parts = mesh_scene(tv.Mesh(strategy.axes), rows)["parameters"]
    assert sum(round(share(p, 3) * p["elements"]) for p in parts) == sum(
        num_local_parameters(strategy, TINY)
    )
    x, y, z, _ = grid
    for p in parts:
        if "flat" in p["notation"]:
            assert len(p["blocks"]) == x * y * z
            assert sum(b["box"][2] * b["box"][3] for b in p["blocks"]) == pytest.approx(1)
    assert not any("flat" in row for row in ownership(axonn((2, 2, 1, 2)), TINY))
