"""Clipping under AxoNN: the norm is one process's, each number counted once, and its sums are in
the ledger and in the prediction. Ranks that start from other numbers do not pass `verify`."""

from dataclasses import replace

import pytest
from grids import AXES
from test_axonn import CLUSTERS, axonn
from tiny import TINY, UNTIED, assert_equal, named
from together import together, verifications

import tpviz as tv

CLIP = 0.05  # the tiny model's gradient is some thirty times that
GRIDS = [
    (1, 1, 1, 1),
    (1, 1, 2, 1),
    (1, 1, 1, 2),
    (2, 2, 1, 1),
    (2, 1, 2, 1),
    (1, 2, 2, 1),
    (2, 2, 2, 1),
]


CASES = [(axonn(grid, clip=CLIP), TINY if sum(grid) % 2 else UNTIED) for grid in GRIDS]


@pytest.mark.parametrize("strategy, workload", CASES, ids=named)
def test_equals_one_process_that_clips(strategy, workload):
    """Every gradient, and the parameters after two steps, of torch's own clipping."""
    assert_equal(strategy, workload, among=CASES)


def test_it_matters():
    """A model that clips is not the one that does not, unless its norm is small enough."""
    strategy = axonn((2, 1, 2, 1))
    runs = together(
        lambda s: tv.run(s, TINY, steps=3, progress=False, memory=False),
        [replace(strategy, clip=clip) for clip in (0.0, 1e-7, 1e3)],
    )
    plain, clipped, high = (run.meta["losses"] for run in runs.values())
    assert plain == high
    assert plain != clipped


def test_the_norm_is_that_of_one_process():
    import torch

    from tpviz.schemes.gpt.program import batch_of, reference_program

    def expected(workload):
        reference = reference_program(workload)
        reference.step(batch_of(workload, 0))
        return float(torch.nn.utils.clip_grad_norm_(reference.module.parameters(), CLIP))

    cases = []
    for w in (replace(w, dtype="float64") for w in (TINY, UNTIED)):
        grids = (2, 1, 1, 1), (1, 2, 2, 1)
        cases += [(axonn(grid, clip=CLIP), w) for grid in grids]
        odd = replace(w, hidden=18, heads=3, vocab=33)  # ranks that are no power of two
        cases.append((axonn((3, 1, 2, 1), clip=CLIP), odd))
    norms = together(lambda case: tv.launch(_norm, *case, world_size=case[0].world_size), cases)
    for (_, workload), of_ranks in norms.items():
        assert len(set(of_ranks)) == 1
        norm = expected(workload)
        assert norm > 2 * CLIP
        assert of_ranks[0] == pytest.approx(norm, rel=1e-13)


def _norm(strategy, workload):
    import torch

    from tpviz.schemes.gpt.program import batch_of

    mesh = tv.Mesh(strategy.axes).device_mesh()
    program = strategy.build(workload, mesh, torch.float64)
    program.step(batch_of(workload, 0))
    return float(program.norm)


# -- what it sends ---------------------------------------------------------------------------------
@pytest.mark.parametrize("knobs", [{}, {"accumulation": 4, "order": "yxz"}], ids=str)
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


SEEDS = [OtherSeeds(**dict.fromkeys(AXES, 1) | {axis: 2}) for axis in AXES]
BIASES = [OtherBias(*grid) for grid in ((2, 1, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2))]
BROKEN = tuple((strategy, TINY) for strategy in (*SEEDS, *BIASES))


@pytest.mark.parametrize("strategy", SEEDS, ids=named)
def test_other_seeds_are_found(strategy):
    """Whichever axis the two ranks lie along: a cut weight's parts, or two replicas."""
    found = verifications(BROKEN, steps=1)[strategy, TINY]
    assert not found.ok
    assert found.errors["outputs"] > 1e-3
    assert found.ledger_ok


@pytest.mark.parametrize("strategy", BIASES, ids=named)
def test_one_replica_that_differs_is_found_and_named(strategy):
    found = verifications(BROKEN, steps=1)[strategy, TINY]
    assert not found.ok
    parameters = {n: e for n, e in found.errors.items() if n.startswith("parameter ")}
    assert parameters["parameter blocks.1.mlp.down.bias"] > 9e-4
