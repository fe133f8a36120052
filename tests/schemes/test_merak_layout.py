"""Layouts of a pipeline's stages: Megatron-LM's words for them, balanced ones, and real ranks with
them: one process's numbers, exact ledgers, the simulation's times, the tracked memory."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import TINY, assert_equal
from together import together

import tpviz as tv
from tpviz.core.schedules import schedule
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.merak.budget import keeps
from tpviz.schemes.pipeline.memory import memory_of
from tpviz.schemes.pipeline.split import balanced, counts, written

DEEP = replace(TINY, layers=6)
UNTIED = replace(DEEP, tied=False)
LLAMA = replace(UNTIED, kv_heads=2, ffn=40, gated=True, norm="rms", rotary=True, bias=False)
WIDE_HEAD = replace(DEEP, vocab=16 * 60)
"""Its head has as many FLOPs as several blocks."""


# -- the words -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "layout, expected",
    [
        ("EtL", (1,)),
        ("Ett|ttL", (2, 2)),
        ("Et*2 | (t*4|)*2, t*2 L", (2, 4, 4, 2)),
        ("Et*3|(tt|)*29,t|L", (3, *[2] * 29, 1, 0)),  # DeepSeek-V3's, t for its m
        ("E|t|(tt|t)*2L", (0, 1, 2, 3, 1)),
        ("E|*3,t*12L", (0, 0, 0, 12)),
        ("E,(t,t)*2,|t|L", (4, 1, 0)),
    ],
)
def test_what_megatron_writes(layout, expected):
    assert counts(layout) == expected
    assert tv.Merak(layout=layout).layout == tv.Merak(layout=expected).layout == written(expected)


@given(st.lists(st.integers(0, 70), min_size=1, max_size=40))
def test_written_and_read_again(numbers):
    text = written(numbers)
    assert counts(text) == tuple(numbers)
    assert written(counts(text)) == text == tv.Merak(layout=text).layout
    plain = "E" + "|".join("t" * n for n in numbers) + "L"
    assert counts(plain) == tuple(numbers) and len(text) <= len(plain) + 6 * text.count("(")


ITEMS = st.tuples(st.sampled_from("t|"), st.integers(1, 4))
GROUPS = st.tuples(st.lists(ITEMS, min_size=1, max_size=3), st.integers(1, 4))


@given(st.lists(GROUPS, max_size=5), st.booleans())
def test_repetitions_are_unrolled(groups, commas):
    """Texts are made together with what they mean."""
    text, meant = ["E"], "E"
    for items, times in groups:
        inner = "".join(letter + f"*{n}" * (n > 1) for letter, n in items)
        text.append(f"({inner})*{times}")
        meant += "".join(letter * n for letter, n in items) * times
    layout = ("," if commas else "").join([*text, "L"])
    assert counts(layout) == tuple(stage.count("t") for stage in f"{meant}L".split("|"))


@pytest.mark.parametrize(
    "layout, message",
    [
        ("Ett|tm|L", "m is a layer of multi-token prediction, which a tv.GPT does not have"),
        ("uneven", "'uneven' is no layout: use even, balanced, counts such as"),
        ("Ett|(tt)L", r"'\(tt\)L' is no layout"),
        ("E((t|)*2)*2L", "is no layout"),
        ("Et*0|tL", "a repetition in layout='Et\\*0|tL'=0 is too small: the least .* is 1"),
        ("Et*5000L", "5000 is too large: the most that works is 1024"),
        ("tt|ttL", "must have one E"),
        ("|Ett|L", "must have one E"),
        ("Ett|EtL", "must have one E"),
        ("Ett|ttL|", "must have one E"),
        ((2, -1), "blocks of a stage in layout=-1 is too small"),
        ((), "layout has no stage"),
        ((2.5, 2), "blocks of a stage in layout must be a whole number, not 2.5"),
        (4, "layout must be a text, not 4"),
    ],
)
def test_bad_words(layout, message):
    with pytest.raises(ValueError, match=message):
        tv.Merak(layout=layout)


@pytest.mark.parametrize(
    "knobs, message",
    [
        (
            {"layout": (2, 2, 2)},
            r"layout='Ett\|tt\|ttL' has 3 stages, pp=2 with schedule='1f1b' has 2: "
            "use pp=3, or a layout of 2 stages",
        ),
        (
            {"layout": (2, 2, 2), "schedule": "zb_v"},
            "has 3 stages, pp=2 with schedule='zb_v' has 4: use a layout of 4 stages",
        ),
        (
            {"layout": (5, 2)},
            r"layout='Et\*5\|ttL' has 7 blocks, layers=6: use layers=7, or layout='Ettt\|tttL'",
        ),
    ],
)
def test_layouts_that_do_not_fit(knobs, message):
    with pytest.raises(ValueError, match=message):
        tv.Merak(**{"schedule": "1f1b", **knobs}).check(DEEP)


def test_what_is_offered_works():
    tv.Merak(schedule="1f1b", layout="Ettt|tttL").check(DEEP)
    tv.Merak(pp=3, schedule="1f1b", layout=(2, 2, 2)).check(DEEP)


def test_balanced_needs_a_block_for_each_stage():
    with pytest.raises(ValueError, match="layers=6 are fewer than the 8 stages"):
        tv.Merak(pp=8, microbatches=8, layout="balanced").check(DEEP)


def test_a_module_of_ones_own_has_no_layout():
    import torch

    model, x = torch.nn.Linear(2, 2), torch.ones(4, 2)
    with pytest.raises(ValueError, match=r"layout='EtL' is about the blocks of a tv\.GPT"):
        tv.parallelize(model, tv.Merak(layout="EtL"), example_inputs=x)


# -- what is balanced ----------------------------------------------------------------------------
def slowest(found, rank_of, block, head):
    cost = [0.0] * len(block)
    for stage, rank in enumerate(rank_of):
        cost[rank] += found[stage] * block[rank]
    cost[rank_of[-1]] += head
    return max(cost)


RANKS = {"1f1b": 3, "interleaved_1f1b": 2, "zb_v": 2}


@pytest.mark.parametrize("name", RANKS)
@pytest.mark.parametrize("head", [0.0, 0.4, 1.0, 2.5, 7.0])
@pytest.mark.parametrize("slow", [1.0, 1.25])
def test_balanced_is_best_of_all(name, head, slow):
    """By trying every layout of 8 blocks."""
    order = schedule(name, RANKS[name], 4)
    block = (slow, *[1.0] * (order.ranks - 1))
    found = balanced(8, tuple(order.rank_of), block, head)
    least = [int(0 < s < order.stages - 1) for s in range(order.stages)]
    layouts = [
        tried
        for tried in product(range(9), repeat=order.stages)
        if sum(tried) == 8 and all(n >= low for n, low in zip(tried, least))
    ]
    assert found in layouts
    best = min(slowest(tried, order.rank_of, block, head) for tried in layouts)
    assert slowest(found, order.rank_of, block, head) == pytest.approx(best, rel=1e-12)


def test_balanced_counts_the_head():
    """A block as many FLOPs as the head and the loss's stage has one less; by hand: 8 blocks and a
    head of 2 on 2 ranks are 5 each."""
    *block, head = kernels(DEEP)
    both = 2 * sum(k.flops for layer in block for k in layer)
    vocab = both * DEEP.vocab // sum(k.flops for k in head)  # or just less, never more
    w = replace(DEEP, layers=8, vocab=vocab)
    two = tv.Merak(schedule="1f1b", recompute="none", layout="balanced")
    assert two.layout_of(w) == "Et*5|tttL"
    assert two.layout_of(replace(w, batch=64)) == "Et*5|tttL"
    assert replace(two, layout="even").layout_of(w) == "Et*4|t*4L"
    # recomputed blocks cost 4 forwards, the head 3: 6 + 2 of 3/4
    assert replace(two, recompute="full").layout_of(replace(w, layers=10)) == "Et*6|t*4L"
    several = replace(two, schedule="interleaved_1f1b")
    assert [len(b) for b in several.blocks(w)] == [2, 2, 3, 1]  # ranks: 2 + 3, 2 + 1 + head
    v = replace(two, schedule="zb_v")  # the first and the last stage are on one rank
    assert [len(b) for b in v.blocks(w)] == [2, 2, 3, 1]


def test_balanced_is_faster_where_the_head_is_large():
    even = tv.Merak(schedule="1f1b", recompute="none", microbatches=8)
    w, cluster = replace(WIDE_HEAD, hidden=256, seq=256, vocab=8192), tv.clusters.nvlink_pairs()
    times = [
        tv.predict(replace(even, layout=layout), w, cluster).step_time
        for layout in ("even", "balanced")
    ]
    assert times[1] < 0.9 * times[0]


# -- real ranks ----------------------------------------------------------------------------------
CASES = [
    (tv.Merak(schedule="1f1b", layout=(2, 4)), DEEP),
    (tv.Merak(schedule="1f1b", recompute="none", layout=(0, 6), dp=2), DEEP),
    (tv.Merak(schedule="gpipe", layout=(6, 0), tp=2), LLAMA),
    (tv.Merak(schedule="interleaved_1f1b", layout="E|t*4|t|tL"), DEEP),
    (tv.Merak(schedule="interleaved_1f1b", layout="Et|t*3|t*2|L", tp=2, subpipeline=3), UNTIED),
    (tv.Merak(layout="balanced", tp=2, subpipeline=2), WIDE_HEAD),
    (tv.Merak(pp=4, schedule="1f1b", layout=(3, 3, 0, 0)), DEEP),
    (tv.Merak(pp=4, schedule="zb_h1", recompute="none", layout=(0, 0, 6, 0)), DEEP),
    (tv.Merak(pp=4, microbatches=8, layout=(1, 2, 2, 1), recompute="stage_aware"), LLAMA),
    (tv.Merak(schedule="zb_v", recompute="none", layout="balanced"), WIDE_HEAD),
    (tv.Merak(schedule="dualpipe_v", layout=(0, 3, 3, 0)), UNTIED),
]
CASES = [(s, replace(w, batch=2 * s.dp * s.microbatches)) for s, w in CASES]
PARAMETERS = pytest.mark.parametrize("strategy, w", CASES, ids=[s.short for s, _ in CASES])


@PARAMETERS
def test_equals_one_process(strategy, w):
    assert_equal(strategy, w, among=CASES)


@PARAMETERS
def test_ledgers_and_times_are_those_of_the_simulation(strategy, w):
    w = replace(w, hidden=1024, ffn=w.ffn and 2560, seq=256)
    cluster = tv.clusters.dgx("A100-SXM-80GB", 8)
    strategy.check(w)
    capture = tv.capture(strategy, w)
    for rank in range(strategy.world_size):
        assert capture.ledger(rank) == strategy.ledger_of(w, rank), rank
    real = replace(cluster, device=replace(cluster.device, pointwise="eager", launch=5e-6))
    for box in (cluster, real):
        simulated = tv.simulate(strategy, w, box, capture=capture, contention=False).step_time
        assert tv.predict(strategy, w, box).step_time == pytest.approx(simulated, rel=1e-9)


def test_the_layout_written_out_is_the_same_strategy():
    for strategy, w in CASES:
        same = replace(strategy, layout=strategy.layout_of(w))
        assert same.blocks(w) == strategy.blocks(w) and same.layout_of(w) == same.layout
        assert [n for blocks in same.blocks(w) for n in blocks] == list(range(w.layers))
        for name in w.parameter_shapes():
            assert same.stage_of(name, w) == strategy.stage_of(name, w)


LARGE = tv.GPT(layers=6, hidden=64, heads=4, seq=64, batch=16, vocab=256)
EXACT = ("parameters", "gradients", "optimizer")
MEMORY = [
    tv.Merak(schedule="1f1b", recompute="none", layout=(2, 4)),
    tv.Merak(schedule="1f1b", recompute="none", layout=(0, 6)),
    tv.Merak(schedule="1f1b", recompute="none", layout=(6, 0)),
    tv.Merak(schedule="interleaved_1f1b", layout="E|t*4|t*2|L"),
    tv.Merak(pp=4, schedule="zb_h1", recompute="none", layout=(0, 0, 6, 0)),
]


@pytest.fixture(scope="module")
def tracked():
    """{strategy: a recorded step}."""
    return together(lambda s: tv.run(s, LARGE, steps=1, progress=False), MEMORY)


@pytest.mark.parametrize("s", MEMORY, ids=lambda s: s.short)
def test_memory_of_each_rank(s, tracked):
    """States to the byte; activations, at least of the rank that has most, as derived."""
    total = {}
    for rank in range(s.world_size):
        derived, peaks = memory_of(s, LARGE, rank), tracked[s].memory(rank).peaks
        assert {k: derived[k] for k in EXACT} == {k: peaks.get(k, 0) for k in EXACT}
        total[rank] = derived["activations"], peaks["activations"]
    derived, peak = max(total.values())
    assert derived == pytest.approx(peak, rel=0.12), total


def test_budgets_heed_the_layout():
    w = replace(LARGE, layers=32)
    s = tv.Merak(pp=4, microbatches=8, schedule="1f1b", layout=(0, 12, 12, 8))
    assert keeps(s, w)[0] == 1.0 and keeps(s, w)[-1] == 0.0
    most = replace(s, recompute="none").memory(w).total
    assert s.within(w, most).keep == 1.0
    assert s.least_memory(w).total == s.memory(w)["parameters"] * 4


# -- where a strategy goes -----------------------------------------------------------------------
def test_a_knob_like_others():
    from tpviz.views.widgets.knobs import Knobs

    knobs = Knobs(tv.Merak)
    knobs.controls["layout"].value = "Ett|ttL"
    made = tv.Merak(**knobs.values())
    assert made.layout == "Ett|ttL"
    assert "layout='Ett|ttL'" in made.short and "layout" not in tv.Merak().short
    assert eval(made.short, {"Merak": tv.Merak}) == made


def test_sliders_stop_at_what_the_layout_takes():
    from tpviz.views.plans.fitting import Fitting

    fitting = Fitting(replace(DEEP, batch=8), tv.Merak(schedule="1f1b"), None, ranks=8)
    assert fitting.stops["pp"] == [1, 2, 3, 4, 5, 6]
    fitting.move({"layout": "Ett|t*4L"})
    assert fitting.stops["pp"] == [1, 2] and fitting.values["layout"] == "Ett|t*4L"
    fitting.move({"layout": "even"})
    assert fitting.stops["pp"] == [1, 2, 3, 4, 5, 6]


def test_schedules_are_drawn_of_it():
    from tpviz.views.widgets.schedule_sources import of_strategy

    s = tv.Merak(schedule="1f1b", recompute="none", layout=(1, 5))
    [panel] = of_strategy(s, "none", DEEP, tv.clusters.nvlink_pairs()).panels
    line = panel.timeline
    spans = [sum(map(float.__sub__, line.end[r], line.start[r])) for r in range(2)]
    assert spans[1] > 4 * spans[0]


def test_a_run_with_an_empty_stage_is_drawn():
    from tpviz.views.widgets.schedule_sources import of_strategy

    s = tv.Merak(pp=4, schedule="1f1b", layout=(3, 3, 0, 0))
    trace = tv.run(s, DEEP, steps=1, progress=False)
    [panel] = of_strategy(s, "none", DEEP, tv.clusters.laptop(4), trace).panels
    assert panel.measured
    assert [bool(bars) for bars in panel.measured.bars] == [True, True, False, True]
    assert panel.measured.idle[2] == panel.measured.makespan
    assert panel.memory[2]["parameters"] == 0


SHARDED = [
    (tv.Merak(dp=2, schedule="1f1b", zero=zero, **knobs), replace(DEEP, batch=16))
    for zero, knobs in (
        (1, {"layout": (2, 4)}),
        (1, {"pp": 4, "layout": (3, 3, 0, 0)}),
        (2, {"layout": (0, 6)}),
        (2, {"tp": 2, "sp": True, "layout": "balanced"}),
        (3, {"pp": 4, "layout": (6, 0, 0, 0)}),
    )
]


@pytest.mark.parametrize("strategy, w", SHARDED, ids=[s.short for s, _ in SHARDED])
def test_zero_shards_what_a_stage_has(strategy, w):
    assert_equal(strategy, w, among=SHARDED)
    w = replace(w, hidden=1024, seq=256)
    capture, cluster = tv.capture(strategy, w), tv.clusters.dgx("A100-SXM-80GB", 8)
    for rank in range(strategy.world_size):
        assert capture.ledger(rank) == strategy.ledger_of(w, rank), rank
    simulated = tv.simulate(strategy, w, cluster, capture=capture, contention=False).step_time
    assert tv.predict(strategy, w, cluster).step_time == pytest.approx(simulated, rel=1e-9)
