"""Clipping under AxoNN: the norm is one process's, each number counted once, and its sums are in
the ledger and in the prediction. Ranks that start from other numbers do not pass `verify`."""

from dataclasses import replace

import pytest
from test_axonn import CLUSTERS, KNOBS, axonn
from tiny import TINY, UNTIED, assert_equal

import tpviz as tv

CLIP = 0.05  # the tiny model's gradient is some thirty times that
GRIDS = [
    (1, 1, 1, 1),
    (2, 1, 1, 1),
    (1, 2, 1, 1),
    (1, 1, 2, 1),
    (1, 1, 1, 2),
    (2, 2, 1, 1),
    (2, 1, 2, 1),
    (1, 2, 2, 1),
    (2, 2, 2, 1),
    (2, 1, 2, 2),
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_equals_one_process_that_clips(grid):
    """Every gradient, and the parameters after two steps, of torch's own clipping."""
    assert_equal(axonn(grid, clip=CLIP), TINY if sum(grid) % 2 else UNTIED)


def test_it_matters():
    """A model that clips is not the one that does not, unless its norm is small enough."""
    strategy = axonn((2, 1, 2, 1))
    plain, clipped, high = (
        tv.run(s, TINY, steps=3, progress=False, memory=False).meta["losses"]
        for s in (strategy, replace(strategy, clip=1e-7), replace(strategy, clip=1e3))
    )
    assert plain == high
    assert plain != clipped


@pytest.mark.parametrize("workload", [TINY, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("grid", [(2, 1, 1, 1), (1, 2, 2, 1), (2, 2, 2, 1), (3, 1, 2, 1)], ids=str)
def test_the_norm_is_that_of_one_process(grid, workload):
    import torch

    from tpviz.schemes.gpt.program import batch_of, reference_program

    if 3 in grid:  # a number of ranks that is no power of two
        workload = replace(workload, hidden=18, heads=3, vocab=33)
    workload = replace(workload, dtype="float64")
    reference = reference_program(workload)
    reference.step(batch_of(workload, 0))
    expected = float(torch.nn.utils.clip_grad_norm_(reference.module.parameters(), CLIP))
    assert expected > 2 * CLIP
    strategy = axonn(grid, clip=CLIP)
    found = tv.launch(_norm, strategy, workload, world_size=strategy.world_size)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(expected, rel=1e-13)


def _norm(strategy, workload):
    import torch

    from tpviz.schemes.gpt.program import batch_of

    mesh = tv.Mesh(strategy.axes).device_mesh()
    program = strategy.build(workload, mesh, torch.float64)
    program.step(batch_of(workload, 0))
    return float(program.norm)


# -- what it sends ---------------------------------------------------------------------------------
@pytest.mark.parametrize("knobs", KNOBS[:5], ids=str)
def test_sums_are_in_ledger_and_prediction(knobs):
    wide, grid = replace(TINY, batch=32), (2, 2, 2, 1)
    strategy, plain = axonn(grid, clip=CLIP, **knobs), axonn(grid, **knobs)
    program = tv.capture(strategy, wide)
    assert program.trace(0).ledger() == strategy.ledger(wide)

    def sent(s):
        return sum(row.payload_bytes for row in s.ledger(wide))

    assert sent(strategy) - sent(plain) == 3 * 4  # a number each over z, y and x
    for cluster in CLUSTERS:
        trace = tv.simulate(strategy, wide, cluster, capture=program, contention=False)
        assert tv.predict(strategy, wide, cluster).step_time == pytest.approx(
            trace.step_time, rel=1e-9
        )


def test_a_norm_below_zero_is_refused():
    with pytest.raises(ValueError, match="clip=-1"):
        tv.AxoNN(clip=-1.0)


# -- ranks that start from other numbers -----------------------------------------------------------
class OtherSeeds(tv.AxoNN):
    """Rank 1 draws its initial numbers from another seed, as when each rank seeds itself."""

    def build(self, workload, mesh, dtype=None, device="cpu", **options):
        import torch.distributed as dist

        seed = workload.seed + (dist.get_rank() == 1)
        return super().build(replace(workload, seed=seed), mesh, dtype, device, **options)


@pytest.mark.parametrize("axis", ["x", "y", "z", "data"])
def test_other_seeds_are_found(axis):
    """Whichever axis the two ranks lie along: a cut weight's parts, or two replicas."""
    strategy = OtherSeeds(**dict.fromkeys(("x", "y", "z", "data"), 1) | {axis: 2})
    found = tv.verify(strategy, TINY, steps=1, progress=False)
    assert not found.ok
    assert found.errors["outputs"] > 1e-3
    assert found.ledger_ok


class OtherBias(tv.AxoNN):
    """One replica of one bias is another on the last rank."""

    def build(self, workload, *args, **options):
        import torch
        import torch.distributed as dist

        program = super().build(workload, *args, **options)
        if dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                program.named["blocks.1.mlp.down.bias"].add_(1e-3)
        return program


@pytest.mark.parametrize("grid", [(2, 1, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)], ids=str)
def test_one_replica_that_differs_is_found_and_named(grid):
    found = tv.verify(OtherBias(*grid), TINY, steps=1, progress=False)
    assert not found.ok
    parameters = {n: e for n, e in found.errors.items() if n.startswith("parameter ")}
    assert parameters["parameter blocks.1.mlp.down.bias"] > 9e-4
