"""Merak's pipelines equal one process in float64, send what the formula says to the byte, take what
simulation says, and refuse what cannot be."""

from dataclasses import replace
from itertools import product

import pytest
from tiny import TINY, assert_equal

import tpviz as tv
from tpviz.core.schedules import SCHEDULES

DEEP = replace(TINY, layers=4)
UNTIED = replace(DEEP, tied=False)
PLACES = [(2, 1, 1), (2, 2, 1), (2, 1, 2), (4, 1, 1)]
RECOMPUTE = ("none", "full", "stage_aware")


def merak(place, **knobs):
    pp, tp, dp = place
    return tv.Merak(pp=pp, tp=tp, dp=dp, **{"microbatches": max(4, 2 * pp), **knobs})


def wide(strategy, w=DEEP):
    """A workload with two rows a microbatch, and blocks for all stages."""
    return replace(
        w, batch=2 * strategy.dp * strategy.microbatches, layers=max(w.layers, strategy.stages)
    )


# The whole product is in bench/sweep_merak.py; here every schedule meets a part of the rest.
CASES = [
    *(
        (PLACES[j % 4], name, RECOMPUTE[j % 3], (j + j // 4) % 4)
        for j, name in enumerate(SCHEDULES)
    ),
    ((2, 2, 2), "shifted_critical_path", "full", 3),
    ((4, 1, 2), "interleaved_1f1b", "none", 0),
]


@pytest.mark.parametrize("place, name, recompute, level", CASES, ids=str)
def test_equals_one_process(place, name, recompute, level):
    strategy = merak(place, schedule=name, recompute=recompute, subpipeline=level)
    assert_equal(strategy, wide(strategy, (DEEP, UNTIED)[level % 2]))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_give_the_same_bits(name):
    """Gradients are added up in the same order, whatever the order of the rest."""

    def losses(**knobs):
        strategy = tv.Merak(pp=2, microbatches=4, **knobs)
        return tv.run(strategy, DEEP, steps=3, memory=False, progress=False).meta["losses"]

    expected = losses(schedule="1f1b", recompute="none")
    assert losses(schedule=name, recompute="none") == expected
    assert losses(schedule=name, recompute="full") == expected


def test_odd_microbatches_blocks_and_halves():
    odd = replace(DEEP, layers=5, batch=6)
    for level in (1, 2, 3):
        assert_equal(tv.Merak(pp=2, tp=2, microbatches=2, schedule="1f1b", subpipeline=level), odd)
    assert_equal(tv.Merak(pp=2, tp=2, microbatches=6, schedule="gpipe", subpipeline=2), odd)


@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
def test_stage_aware(keep):
    strategy = tv.Merak(
        pp=2, tp=2, recompute="stage_aware", keep=keep, skip_last_allreduce=keep > 0
    )
    assert_equal(strategy, replace(DEEP, layers=8))


# -- what is sent, and how long it takes ---------------------------------------------------------
MODELS = [
    ((2, 2, 1), name, recompute, level)
    for (name, recompute), level in zip(product(SCHEDULES, RECOMPUTE), (0, 1, 2, 3) * 7)
][::5] + [((2, 1, 2), "1f1b", "full", 0), ((2, 1, 1), "zb_v", "none", 0)]


@pytest.mark.parametrize("place, name, recompute, level", MODELS, ids=str)
def test_ledgers_and_times_are_those_of_the_simulation(place, name, recompute, level):
    """Where a message takes no longer than a stage: others queue, which is in simulations alone."""
    cluster = tv.clusters.nvlink_pairs()
    strategy = merak(place, schedule=name, recompute=recompute, subpipeline=level)
    w = replace(wide(strategy, (DEEP, UNTIED)[level % 2]), hidden=1024, seq=256)
    capture = tv.capture(strategy, w)
    for rank in range(strategy.world_size):
        assert capture.ledger(rank) == strategy.ledger_of(w, rank)
    simulated = tv.simulate(strategy, w, cluster, capture=capture)
    assert tv.predict(strategy, w, cluster).step_time == pytest.approx(simulated.step_time, 1e-9)


# -- stage-aware recomputation -------------------------------------------------------------------
def test_kept_parts():
    """Section 4.2 of the reference: (n - 1) k is equal on all stages but the last."""
    for schedule, flight in (("1f1b", [4, 3, 2]), ("shifted_critical_path", [4, 3, 3])):
        strategy = tv.Merak(pp=4, recompute="stage_aware", keep=0.1, schedule=schedule)
        assert [(n - 1) * k for n, k in zip(flight, strategy.kept())] == pytest.approx([0.3] * 3)
        assert strategy.kept()[3] == 1.0


def test_kept_parts_where_ranks_have_several_stages():
    """By what the rank holds, n of clock's counts: (n - 1) k is equal unless all is kept. The last
    stage has more than one microbatch under way in GPipe, and in ZB-H1 until its weights' part."""
    for name, flight in (
        ("interleaved_1f1b", (11, 9, 7, 5)),
        ("zb_v", (8,) * 4),
        ("zb_h1", (4,) * 4),
        ("gpipe", (8,) * 4),
        ("dualpipe_v", (9,) * 4),
    ):
        strategy = tv.Merak(pp=4, microbatches=8, recompute="stage_aware", keep=0.2, schedule=name)
        order = strategy.schedule_of(replace(DEEP, layers=8))
        assert tuple(order.most_in_flight(rank) for rank in range(4)) == flight
        found = [(flight[rank] - 1) * k for rank, k in zip(order.rank_of, strategy.kept())]
        assert found[:-1] == pytest.approx([(flight[0] - 1) * 0.2] * (strategy.stages - 1))
        assert strategy.kept()[-1] == pytest.approx(0.2 if name in ("gpipe", "zb_h1") else 1.0)
    few = tv.Merak(pp=4, microbatches=2, recompute="stage_aware", keep=0.4, schedule="1f1b")
    assert few.kept() == [0.4, 0.4, 0.4, 1.0]
    one = tv.Merak(pp=4, microbatches=1, recompute="stage_aware", keep=0.0, schedule="1f1b")
    assert one.kept() == [1.0] * 4


def test_dropped_layers():
    w = replace(DEEP, layers=16)
    strategy = tv.Merak(pp=4, recompute="stage_aware", keep=0.25, schedule="1f1b")
    assert strategy.kept() == pytest.approx([0.25, 0.375, 0.75, 1.0])
    assert strategy.num_recomputed(w) == [3, 2, 1, 0]
    assert replace(strategy, recompute="full").num_recomputed(w) == [4, 4, 4, 4]
    assert replace(strategy, recompute="none").num_recomputed(w) == [0, 0, 0, 0]


# -- bad input -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "knobs, workload, message",
    [
        (
            {"pp": 4},
            {"layers": 3},
            "layers=3 are fewer than the 4 stages .*: use 2 stages, or layers=4",
        ),
        ({"microbatches": 3}, {}, r"batch=8 does not split evenly over dp\*microbatches=3"),
        ({"tp": 3}, {}, "heads=8 does not split evenly over tp=3"),
        ({"schedule": "2f2b"}, {}, "schedule='2f2b' is not possible: use 'gpipe'"),
        ({"pp": 4, "microbatches": 2}, {}, "microbatches"),
        ({"subpipeline": 4}, {}, "subpipeline=4 is not possible: use 0, 1, 2 or 3"),
        ({"recompute": "all"}, {}, "recompute='all' is not possible"),
    ],
)
def test_bad_input(knobs, workload, message):
    with pytest.raises(ValueError, match=message):
        tv.Merak(**knobs).check(replace(DEEP, **workload))


def test_no_data_parallelism_around_it():
    with pytest.raises(ValueError, match=r"Merak shares the batch itself: use Merak\(dp=2\)"):
        tv.Merak() * tv.DataParallel(dp=2)


def test_what_is_drawn_of_who_owns_what():
    """A parameter is where its stage is; both ends have the shared one."""
    from tpviz.schemes.ownership import ownership
    from tpviz.views.figures.mesh import mesh_scene, share

    strategy = tv.Merak(pp=2, tp=2, dp=1, schedule="1f1b")
    scene = mesh_scene(tv.Mesh(strategy.axes), ownership(strategy, DEEP))
    owned = {p["name"]: [share(p, rank) for rank in range(4)] for p in scene["parameters"]}
    assert owned["embed.token.weight"] == [0.5] * 4
    assert owned["blocks.0.mlp.up.weight"] == [0.5, 0.5, 0, 0]
    assert owned["blocks.3.norm1.weight"] == owned["norm.bias"] == [0, 0, 1, 1]
