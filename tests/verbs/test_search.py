"""Search: the space, the ranking and its reasons, what is rejected, and Kendall's tau."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.evidence import peers
from tpviz.schemes.knobs import knob
from tpviz.schemes.strategy import Strategy, register
from tpviz.verbs.room import need
from tpviz.verbs.search import kendall_tau, space
from tpviz.verbs.space import cells
from tpviz.verbs.why import because

W = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=8, vocab=256)
BOX = Cluster(
    "box",
    Device({"float32": 1e10}, 1e9, 1e12),
    (Level("fast", 2, 4e9, 4e9, 1e-6), Level("slow", 2, 1e8, 2e8, 1e-6)),
)


# -- the space ----
def test_space_has_every_class_and_product():
    found = list(space(W, 4))
    assert len(found) == len(set(found)) and {s.world_size for s in found} == {4}
    for strategy in (
        tv.Megatron(tp=4),
        tv.Megatron(tp=4, sp=True),
        tv.Megatron(tp=4, chunks=2),
        tv.DataParallel(dp=4, zero=3),
        tv.DataParallel(dp=4, bucket_mb=25.0),
        tv.Megatron(tp=2, sp=True) * tv.DataParallel(dp=2, zero=1),
        tv.Megatron(tp=4, accumulation=8, recompute="full"),
        tv.T3(tp=4, accumulation=4),
        tv.ATP(mesh=(2, 2), accumulation=2, recompute="selective"),
        tv.AxoNN(x=2, z=2, accumulation=4, recompute="full"),
        tv.DataParallel(dp=4, zero=3, accumulation=2, recompute="full"),
        tv.Megatron(tp=2) * tv.DataParallel(dp=2, zero=2, accumulation=4, recompute="full"),
    ):
        assert strategy in found
    usual = {cls for cls in tv.strategies().values() if cls.searched}
    asked = {tv.Pipeline, tv.Context, tv.Experts, tv.DiLoCo}  # tried only where they are asked for
    assert {type(s) for s in space(W, 1)} == usual == {*tv.strategies().values()} - asked
    layouts = [cell.strategy.axes for cell in cells(W, 1024)]
    assert {axes["tp"] for axes in layouts if "tp" in axes} == {2, 4, 8, 16, 32, 64}


def test_pipelines_are_as_people_run_them():
    """One stage, one sequence a microbatch, as many chunks as there are layers for, ZeRO 0 to 3."""
    w = replace(W, layers=12, batch=16)
    found = set(space(w, 4, tv.Merak))
    plain = {"schedule": "1f1b", "recompute": "none"}
    for strategy in (
        tv.Merak(pp=1, tp=2, dp=2, microbatches=8, sp=True, zero=1, **plain),
        tv.Merak(pp=1, dp=4, microbatches=1, zero=3, **plain | {"recompute": "full"}),
        tv.Merak(pp=2, dp=2, microbatches=8, zero=2, **plain),
        tv.Merak(pp=2, dp=2, microbatches=8, schedule="interleaved_1f1b", chunks=6, zero=1),
        tv.Merak(pp=4, microbatches=16, schedule="interleaved_1f1b", chunks=3, recompute="none"),
        tv.Merak(pp=4, microbatches=16, schedule="zb_h1", recompute="selective"),
    ):
        assert strategy in found, strategy


def test_space_of_what_is_given():
    one = tv.Megatron(tp=2)
    of = lambda given: list(space(W, 4, given))
    assert of([one]) == of(one) == [one]
    assert {type(s) for s in of(["Megatron"])} == {tv.Megatron}
    for alone in (tv.Megatron, "Megatron"):
        assert of(alone) == of([alone])
    assert of([tv.Megatron, "Megatron"]) == of(["Megatron"])
    with pytest.raises(ValueError, match="strategy='Megatrom' is not possible"):
        of(["Megatrom"])
    with pytest.raises(ValueError, match=r"strategies=7: give classes such as tv.Megatron, their "):
        of(7)
    with pytest.raises(ValueError, match="strategies has 7: give classes such as"):
        of([7])


def test_a_space_comes_from_the_knobs_unless_said():
    from tpviz.schemes import strategy as module

    @register
    class Odd(Strategy):
        """Two axes, a menu, a box and a number that is no axis."""

        rows: int = knob(1, help="", low=1, high=4)
        columns: int = knob(1, help="", low=1, high=8)
        order: str = knob("row", help="", choices=("row", "column"))
        fast: bool = knob(False, help="")
        ratio: float = knob(0.5, help="", low=0.0, high=1.0)

        @property
        def axes(self):
            return {"rows": self.rows, "columns": self.columns}

    del module._REGISTERED["Odd"]
    found = list(Odd.space(W, 8))
    assert {(s.rows, s.columns) for s in found} == {(1, 8), (2, 4), (4, 2)}
    assert len(found) == 3 * 2 * 2 and {s.ratio for s in found} == {0.5}
    assert found[0].short == "Odd(rows=1, columns=8)"
    for formula in ("cost", "memory"):
        with pytest.raises(NotImplementedError, match="Odd has no"):
            getattr(found[0], formula)(*[W, BOX][: 2 if formula == "cost" else 1])


# -- the ranking ----
def test_ranks_by_prediction():
    w = replace(W, batch=4)
    found = tv.search(w, BOX, simulate=False, world_size=2)
    times = [row.predicted for row in found.rows]
    assert times == pytest.approx(sorted(times)) and found.agreement == {}
    assert found.best == found.rows[0].strategy and found.formulas.untried == 0
    every, seen = by_hand(w, BOX, 2), found.formulas
    assert seen.looked_at == sum(1 for _ in space(w, 2))
    assert times[0] == pytest.approx(min(every.values()))
    assert all(every[row.strategy] == row.predicted for row in found.rows)


def by_hand(w, cluster, world_size):
    """{strategy: seconds} of every strategy of a space that is possible and fits."""
    found = {}
    for strategy in space(w, world_size):
        with suppress(ValueError):
            p = tv.predict(strategy, w, cluster)
            if p.fits:
                found[strategy] = p.step_time
    return found


MUCH = replace(W, hidden=128, seq=128)
NIC = replace(BOX, levels=(BOX.levels[0], Level("NIC", 2, 2e7, 2e7, 1e-6)))


def test_the_topology_decides_the_winner():
    """A slow NIC a pair: tp or shards inside, half the gradients across. On one fast link dp
    alone."""
    classes = [tv.Megatron, tv.DataParallel]
    found = tv.search(MUCH, NIC, classes, simulate=False)
    assert found.best.axes == {"replicate": 2, "shard": 2}
    assert next(row.strategy.axes for row in found.rows if "tp" in row.strategy.axes) == {
        "dp": 2,
        "tp": 2,
    }
    flat = replace(BOX, levels=(Level("all", 4, 4e9, 4e9, 0.0),))
    assert tv.search(MUCH, flat, classes, simulate=False).best.axes == {"dp": 4}


def test_simulation_reorders_the_top(monkeypatch):
    """Where it finds the reverse, the last of the top is first, and no two pairs agree."""
    plain = tv.search(W, BOX, [tv.Megatron], simulate=False)
    monkeypatch.setattr(
        "tpviz.verbs.search._simulated", lambda row: replace(row, simulated=1 / row.predicted)
    )
    found = tv.search(W, BOX, [tv.Megatron], top=3)
    assert [r.strategy for r in found.rows[:3]] == [r.strategy for r in plain.rows[2::-1]]
    assert [r.strategy for r in found.rows[3:]] == [r.strategy for r in plain.rows[3:]]
    assert found.agreement == {"predicted, simulated": {"tau": -1.0, "top": False, "rows": 3}}
    assert "tau -1.00 and another first." in found.describe()


def test_the_top_is_simulated():
    found = tv.search(W, BOX, [tv.Megatron, tv.DataParallel], top=3, seconds=None)
    top = found.rows[:3]
    assert all(row.simulated is not None for row in top)
    assert [r.simulated for r in top] == pytest.approx(sorted(r.simulated for r in top))
    assert top[0].step_time == top[0].simulated
    others = [row for row in found.rows[3:] if row.simulated is not None]
    assert len(others) <= 3  # the best of the other kinds
    agreement = found.agreement["predicted, simulated"]
    assert agreement["rows"] == 3 + len(others) and -1 <= agreement["tau"] <= 1
    assert "Kendall's tau" in found.describe()


@pytest.mark.filterwarnings("ignore:this emulated run")
def test_the_first_are_run():
    """Whether a busy machine overruns is not what is tested."""
    given = [tv.Megatron(tp=2), tv.DataParallel(dp=2, bucket_mb=25.0)]
    found = tv.search(W, BOX.scale_model(slow_motion=100), given, top=2, run=2, seconds=None)
    assert all(row.measured > 0 for row in found.rows)
    assert found.agreement["simulated, measured"]["rows"] == 2
    assert found.to_table()[0][1:4] == ["predicted (ranked)", "simulated", "measured"]
    assert all(found.to_table()[1])


# -- words ----
def test_words_say_why():
    given = [tv.ATP, tv.DataParallel, tv.T3]
    found = tv.search(MUCH, NIC, given, simulate=False)
    text = found.describe()
    assert text.startswith(f"{found.best.short} is the fastest of {len(found.rows)} strategies: ")
    assert "Against DataParallel(dp=4" in text and "Against T3(tp=4" in text
    assert " less in exposed communication on " in text and "predicted." in text
    assert repr(found) == repr(tv.search(MUCH, NIC, given, simulate=False))
    head, first, *_ = found.to_table()
    assert head[0] == "strategy" and first[0] == found.best.short
    assert "predicted (ranked)" in head and not {"simulated", "measured"} & {*head}
    assert "<td " in found._repr_html_()


def test_differences_sum_to_that_of_the_steps():
    a, b = (
        tv.predict(s, W, BOX)
        for s in (tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.Megatron(tp=4))
    )
    from tpviz.verbs.why import _differences

    assert sum(_differences(a, b).values()) == pytest.approx(b.step_time - a.step_time)
    assert because(a, b).startswith("it spends ") and "less in exposed communication on tp" in (
        because(a, b)
    )
    assert because(a, a) == "the formulas see no difference"
    assert because(b, a).endswith("because links are shared")


def test_a_single_kind_needs_no_rival():
    text = tv.search(W, BOX, [tv.Megatron], simulate=False).describe()
    assert "nothing of another kind fits." in text


def test_why_not_says_which_of_the_causes():
    whole = tv.Megatron(tp=1).memory(W).total
    box = replace(BOX, device=replace(BOX.device, memory=0.6 * whole))
    found = tv.search(W, box, [tv.Megatron, tv.DataParallel], simulate=False)
    best, last = found.rows[0], found.rows[-1]
    assert found.why_not(best.strategy).startswith(f"{best.strategy.short} is the first")
    text = found.why_not(last.strategy)
    assert f"is number {len(found.rows)} of {len(found.rows)}" in text and "it spends" in text
    assert "heads=4 does not split" in found.why_not(tv.Megatron(tp=3))
    tight = replace(box, device=replace(box.device, memory=0.2 * whole))
    heavy = tv.search(W, tight, [tv.Megatron, tv.DataParallel], simulate=False)
    assert "was not ranked for want of memory" in heavy.why_not(tv.DataParallel(dp=4))
    assert "was not in the space" in found.why_not(tv.T3(tp=4))
    slow = tv.Megatron(tp=4, accumulation=8, recompute="full")
    assert "was excluded by the lower bound of its time" in found.why_not(slow)
    with pytest.raises(ValueError, match=r"why_not needs a strategy such as tv.Megatron"):
        found.why_not("Megatron")


def test_zero_3_under_kernels_of_another_framework_has_a_word():
    w = tv.models.llama3("1B", batch=16)
    h100 = tv.clusters.dgx("H100-SXM-80GB", 8)
    plans = tv.DataParallel(dp=8, zero=3), tv.Merak(tp=2, pp=2, dp=2, schedule="1f1b")
    for framework, plan in zip(("Megatron-LM", "FSDP"), plans):
        cluster = tv.clusters.as_run_by(h100, framework)
        other = plans[plan is plans[0]]
        assert "FSDP" in tv.search(w, cluster, plan, simulate=False).describe()
        assert "FSDP" not in tv.search(w, cluster, other, simulate=False).describe()


# -- what does not fit ----
def test_rejected_say_why():
    found = tv.search(replace(W, batch=2), BOX, [tv.Megatron, tv.DataParallel], simulate=False)
    rejected = {r.strategy: r for r in found.rejected}[tv.DataParallel(dp=4)]
    assert rejected.cause == "sizes"
    assert "batch=2 does not split evenly over dp=4" in rejected.reason
    count = sum(r.count for r in found.rejected)
    assert f"{count} more were rejected because sizes do not divide." in found.describe()
    whole = tv.Megatron(tp=1).memory(W).total
    tight = replace(BOX, device=replace(BOX.device, memory=0.5 * whole))
    found = tv.search(W, tight, [tv.Megatron, tv.DataParallel], simulate=False)
    assert "memory" in {r.cause for r in found.rejected}
    assert all(row.prediction.fits for row in found.rows) and "for want of memory" in (
        found.describe()
    )


def test_nothing_fits():
    tiny = replace(BOX, device=replace(BOX.device, memory=1000.0))
    with pytest.raises(
        ValueError,
        match=r"none of \d+ strategies fits 4 ranks of box: \d+ of them "
        r"for want of memory, of which .* needs least, .* kB, and "
        "a device has 1 kB",
    ):
        tv.search(W, tiny, [tv.Megatron, tv.AxoNN], simulate=False)
    with pytest.raises(ValueError, match=r"sizes do not divide, as in .*: batch=7 does not"):
        tv.search(replace(W, batch=7), BOX, [tv.DataParallel])
    with pytest.raises(ValueError, match="no strategy to try on 4 ranks"):
        tv.search(W, BOX, [])
    with pytest.raises(ValueError, match="5 ranks do not fit the 4 devices"):
        tv.search(W, BOX, world_size=5)
    with pytest.raises(ValueError, match="run=6 is too large: the most that works is 5"):
        tv.search(W, BOX, run=6)


def test_what_has_no_formula_is_rejected():
    given = [tv.Megatron(tp=2), peers.FSDP2(dp=4)]
    found = tv.search(W, BOX, given, simulate=False)
    assert [row.strategy for row in found.rows] == given[:1]
    assert found.rejected == ((given[1], "FSDP2 has no formula of its memory", "no formula", 1),)
    assert "1 more were rejected because they have no formula." in found.describe()
    for peer, count in ((peers.DDP, 1), (peers.DTensorTP, 2)):  # DTensorTP also inside of dp
        found = tv.search(W, BOX, [tv.Megatron, tv.DataParallel, peer], simulate=False)
        assert [r.cause for r in found.rejected].count("no formula") >= count
    with pytest.raises(
        ValueError,
        match=r"none of 1 strategies fits 4 ranks of box: they have no "
        r"formula, as FSDP2\(dp=4\); tv.run, tv.simulate",
    ):
        tv.search(W, BOX, given[1:])
    with pytest.raises(ValueError, match=r"as in DataParallel\(dp=4.*\): batch=7 does not"):
        tv.search(replace(W, batch=7), BOX, [peers.DTensorTP(tp=4), tv.DataParallel])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((W, "x"), "second comes a cluster such as .*, not 'x'"),
        ((BOX, W), "first comes a workload such as .*, not <Cluster box"),
        (("x", BOX), "first comes a workload such as .*, not 'x'"),
    ],
)
def test_what_search_expects(arguments, message):
    with pytest.raises(ValueError, match=message):
        tv.search(*arguments)


def test_more_ranks_than_may_start_fail_before_simulation(monkeypatch):
    monkeypatch.setenv("TPVIZ_MAX_RANKS", "2")
    monkeypatch.setattr("tpviz.verbs.search._simulated", lambda row: pytest.fail("simulated"))
    for simulate in (True, False):
        with pytest.raises(ValueError, match="world_size=4 is more than the 2 ranks allowed"):
            tv.search(W, BOX, tv.Megatron, run=1, simulate=simulate)
    assert tv.search(W, BOX, tv.Megatron, simulate=False).best.world_size == 4


# -- Kendall's tau ----
@pytest.mark.parametrize(
    "a, b, tau",
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),  # 5 pairs agree, 1 does not
        ([1, 2, 3], [1, 1, 2], 2 / (3 * 2) ** 0.5),  # one tie in b
        ([1, 1], [2, 2], 1.0),
        ([1, 1], [1, 2], 0.0),
    ],
)
def test_kendall_by_hand(a, b, tau):
    assert kendall_tau(a, b) == pytest.approx(tau)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12))
def test_kendall_is_symmetric_and_turns_with_the_order(pairs):
    a, b = zip(*pairs)
    tau = kendall_tau(a, b)
    assert -1 <= tau <= 1 + 1e-12 and kendall_tau(b, a) == pytest.approx(tau)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert kendall_tau([-x for x in a], b) == pytest.approx(-tau)


def test_kendall_needs_two_rankings():
    for a, b in (([1], [1]), ([1, 2], [1, 2, 3])):
        with pytest.raises(ValueError, match="two rankings of the same"):
            kendall_tau(a, b)


def test_pipelines_around_any_tensor_parallelism_are_searched_where_they_are_given():
    w = replace(W, layers=4, batch=16)
    found = tv.search(w, tv.clusters.nvlink_pairs(pairs=4), tv.Pipeline, simulate=False)
    assert {type(s.inner) for s in space(w, 8, tv.Pipeline)} == {tv.ATP, tv.AxoNN, tv.T3}
    assert len({type(row.strategy.inner) for row in found.rows}) > 1
    best = found.best
    again = tv.search(w, tv.clusters.nvlink_pairs(pairs=4), [best], top=1, seconds=None)
    assert again.rows[0].simulated is not None


def test_products_are_searched_where_they_are_asked_for():
    """In 16 bits too, where states of a pipeline of any factor are bounded."""
    w = tv.GPT(layers=4, hidden=64, heads=8, seq=64, batch=16, vocab=64, dtype="bfloat16")
    for cls in (tv.Context, tv.Pipeline):
        found = tv.search(w, tv.clusters.nvlink_pairs(pairs=2), strategies=cls, seconds=2)
        assert cls in {type(f) for f in found.best.factors}


def test_parts_of_sequences_need_what_as_many_sequences_do():
    """A rank has as many tokens, and as many ranks share its states."""
    w = tv.models.llama3("8B", batch=16, seq=8192)
    node = tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", 8))
    short = replace(w, batch=64, seq=2048)
    for made, same in (
        (
            tv.Megatron(tp=2, sp=True) * tv.Context(cp=4) * tv.DataParallel(dp=1, zero=1),
            tv.Megatron(tp=2, sp=True) * tv.DataParallel(dp=4, zero=1),
        ),
        (
            tv.Context(cp=4) * tv.Pipeline(pp=2) * tv.DataParallel(dp=1, zero=1),
            tv.Pipeline(pp=2) * tv.DataParallel(dp=4, zero=1),
        ),
    ):
        assert need(made, w, node) == need(same, short, node)
