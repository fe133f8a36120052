"""The view of context parallelism: the blocks of the cut, and times of the clock, of simulations
and of runs."""

import re
from dataclasses import replace

import numpy as np
import pytest

import tpviz as tv
from tpviz.cluster.clock.fast import Clock
from tpviz.core.mesh import Mesh
from tpviz.core.step import Part
from tpviz.schemes.context.sequence import KINDS, SequenceCut
from tpviz.schemes.gpt.program import batch_of
from tpviz.verbs.run import program_here
from tpviz.views.figures.context import RANK_INKS, context_scene
from tpviz.views.films.context import PHASES, simulated, traced

W = tv.GPT(hidden=256, heads=8, kv_heads=4, seq=2048, batch=1, layers=1)
BOX = tv.clusters.nvswitch(8)
IN_PRODUCT = tv.Megatron(tp=2) * tv.Context(cp=2)
RINGS = [kind for kind in KINDS if kind != "ulysses"]


def blocks(svg):
    """{(rank, position, query chunk, key chunk)} of what is drawn; each once."""
    found = [
        (*map(int, (rank, position)), *map(int, pair.split(",")))
        for rank, position, pairs in re.findall(r"data-blocks='(\d+) (\d+) ([^']*)'", svg)
        for pair in pairs.split(" ")
    ]
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("cp", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", RINGS)
def test_blocks_drawn_are_those_of_the_cut(kind, cp):
    cut, workload = SequenceCut(cp, kind), tv.GPT(seq=96, layers=1)
    view = tv.ContextView(tv.Context(cp=cp, kind=kind), workload, BOX, against="none")
    for step in range(cp + 1):
        assert blocks(view.to_svg(step=step)) == {
            (rank, position, cut.chunks(rank)[i], cut.chunks(other)[j])
            for rank in range(cp)
            for position, other in enumerate(cut.passing(rank))
            for i, j, _ in cut.blocks(rank, other)
        }


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("strategy", [*(tv.Context(cp=4, kind=kind) for kind in KINDS), IN_PRODUCT])
def test_times_are_those_of_the_clock(strategy, phase):
    """The busiest rank's, to which all others are no later."""
    part, tp = strategy.local(W), strategy.layout.i
    program = strategy.sequence.operations(part, W.heads // tp, W.num_kv_heads // tp)
    mesh, device = Mesh(strategy.axes), strategy.device(W, BOX)
    clock = Clock.of(BOX, mesh, W.dtype, strategy.parent_axis, device)
    [segment] = clock.run([Part(phase, "", tuple(program[PHASES.index(phase)]))])
    film, last = simulated(strategy, W, BOX, phase), strategy.sequence.busiest()
    spans = [span for part in film.lanes[last] for span in part]
    took = max(span[1] for span in spans) - min(span[0] for span in spans)
    assert took == pytest.approx(segment.seconds, rel=1e-12)
    assert film.computing[last] == pytest.approx(segment.compute, rel=1e-12)
    assert film.exposed[last] == pytest.approx(segment.exposed["cp"], rel=1e-12)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("seq", [2048, 32768])  # messages take longer than blocks, and less
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_does_what_a_simulation_of_the_program_does(kind, seq, layers):
    strategy, w = tv.Context(cp=4, kind=kind), replace(W, seq=seq, layers=layers)
    trace = tv.simulate(strategy, w, BOX)
    for phase in PHASES:
        mine, its = simulated(strategy, w, BOX, phase), traced(trace, strategy.sequence, phase)
        assert mine.badge == its.badge == "simulated"
        for one, other in zip(mine.lanes, its.lanes, strict=True):
            np.testing.assert_allclose(one.computing, other.computing, atol=1e-9 * mine.seconds)
            ends = [sorted(span[1] for span in lane.messages) for lane in (one, other)]
            np.testing.assert_allclose(*ends, rtol=1e-9)
            assert one.end == pytest.approx(other.end, rel=1e-9)
        np.testing.assert_allclose(mine.exposed, its.exposed, atol=1e-9 * mine.seconds)


def test_contiguous_against_balanced_is_seen():
    """The rank with one block is idle most of the time; balanced ranks never are."""
    view = tv.ContextView(tv.Context(cp=4), against="ring")
    zigzag, ring = view.films
    assert max(zigzag.exposed) == 0 and len(set(zigzag.computing)) == 1
    assert ring.computing == sorted(ring.computing) and len(set(ring.computing)) == 4
    svg = view.to_svg()
    assert svg.count(">idle</text>") == 3
    assert view.picture.scene["facts"][2] == [
        "speedup over ring",
        f"{ring.seconds / zigzag.seconds:.2f}",
    ]
    rows = [dict(zip(view.to_table()[0], row)) for row in view.to_table()[1:]]
    assert [row["blocks"] for row in rows] == ["9"] * 4 + ["1", "2", "3", "4"]
    assert "ring takes" in view.describe().lower()


def test_keys_travel_to_the_rank_above():
    view = tv.ContextView(tv.Context(cp=4), against="none")
    for step in range(4):
        found = re.findall(r"data-message='(\d)-(\d)-(\d)'( data-path)?", view.to_svg(step=step))
        owners = [str((rank + step) % 4) for rank in range(4)]
        assert found == [
            (owner, str(rank), str((rank - 1) % 4), " data-path")
            for rank, owner in enumerate(owners)
            if step < 3
        ]
        kept = re.findall(r"data-keys='(\d)-(\d)'", view.to_svg(step=step))
        assert kept == [(owner, str(rank)) for rank, owner in enumerate(owners)]
    assert "Ring" not in view.picture.scene["words"][1]
    gathered = tv.ContextView(tv.Context(cp=4, kind="all_gather"), against="none")
    assert "data-path" not in gathered.to_svg()


def test_ulysses_exchanges_tokens_for_heads():
    view = tv.ContextView(tv.Context(cp=2, kind="ulysses"), against="none")
    owners = [re.findall(r"data-part='(\d),(\d) (\d)'", view.to_svg(step=n)) for n in range(4)]
    for step, column in enumerate((False, True, True, False)):
        assert all(owner == (c if column else r) for r, c, owner in owners[step])
        assert len(owners[step]) == 4
    assert ">0→1</text>" in view.to_svg(step=0)
    assert [row[2] for row in view.to_table()[1:]] == ["-", "-"]  # tokens and heads, no blocks


def test_knobs_move_it_and_what_does_not_work_is_said():
    view = tv.ContextView(against="none")
    view.controls["cp"].value = 8
    assert (view.strategy.cp, len(view.films[0].lanes)) == (8, 8)
    view.controls["seq"].value = 65536
    assert view.workload.seq == 65536 and "65,536 tokens" in view.describe()
    view.controls["against"].value = "ulysses"
    assert [film.cut.kind for film in view.films] == ["zigzag", "ulysses"]
    view.controls["phase"].value = "backward"
    assert repr(view) == (
        "<ContextView zigzag against Ulysses: 65,536 tokens over 8 ranks, step 1>"
    )
    assert view.error == ""
    with pytest.raises(ValueError, match="cp=16 ranks are more than the 8"):
        tv.ContextView(tv.Context(cp=16))
    with pytest.raises(ValueError, match=r"shows tv\.Context, not Megatron"):
        tv.ContextView(tv.Megatron(tp=2))
    for strategy, w in ((tv.Context(cp=2, ulysses=2), W), (None, tv.GPT(documents=(16, 16)))):
        with pytest.raises(ValueError, match="is shown: use ulysses=1, documents="):
            tv.ContextView(strategy, w)
    with pytest.raises(ValueError, match="needs a workload"):
        tv.ContextView(workload="large")
    with pytest.raises(ValueError, match="seq=30"):
        tv.ContextView(tv.Context(cp=4), tv.GPT(seq=30))
    with pytest.raises(TypeError, match="did you mean 'against'"):
        tv.ContextView(agains="ring")


def test_no_trace_is_of_a_sequence_that_is_not_cut():
    view = tv.ContextView(tv.Context(cp=1), W, BOX)
    with pytest.raises(ValueError, match="cp=1 cuts no sequence: use cp=2 or more"):
        view.measured(tv.simulate(view.strategy, W, BOX))


def test_a_trace_is_drawn_where_it_is_of_what_is_shown():
    strategy = tv.Context(cp=2, kind="ring")
    trace = tv.simulate(strategy, W, BOX)
    trace = replace(trace, meta=trace.meta | {"badge": "emulated"})
    view = tv.ContextView(strategy, W, BOX, against="none")
    view.measured(trace)
    assert view.picture.scene["badge"] == "emulated" and view.error == ""
    view.controls["kind"].value = "zigzag"
    assert view.picture.scene["badge"] == "simulated"
    with pytest.raises(ValueError, match="the trace is of another strategy"):
        view.measured(trace)
    view.measured(None)
    with pytest.raises(ValueError, match="no forward of an attention"):
        traced(trace.select(layer="head"), strategy.sequence)


def test_a_run_on_real_ranks_is_drawn():
    strategy, small = tv.Context(cp=2, kind="zigzag"), tv.GPT(seq=64, layers=1)
    film = traced(tv.run(strategy, small), strategy.sequence)
    for lane in film.lanes:
        assert {position for *_, position in lane.computing} == {0, 1}
        assert len(lane.messages) == 1
    assert all(end > start >= 0 for lane in film.lanes for start, end, _ in lane.computing)
    scene = context_scene([film], "a run")
    assert scene["badge"] == film.badge != "predicted"


def recorded():
    """A rank of a program that nobody told `tpviz.record` of."""
    strategy, small = tv.Context(cp=2, kind="ring"), tv.GPT(seq=64, layers=1)
    program, _ = program_here(strategy, small)
    with tv.record() as recorder:
        program.step(batch_of(small, 0))
    return recorder.trace


def test_a_recorded_program_is_drawn():
    trace, small = tv.Trace.merge(tv.launch(recorded, world_size=2)), tv.GPT(seq=64, layers=1)
    assert "strategy" not in trace.meta
    view = tv.ContextView(tv.Context(cp=2, kind="ring"), small, against="none")
    for phase in PHASES:
        view.controls["phase"].value = phase
        view.measured(trace)
        [film] = view.films
        assert view.picture.scene["badge"] == film.badge == trace.badge
        assert [len(lane.computing) for lane in film.lanes] == [1, 2]
    with pytest.raises(ValueError, match="of another world_size"):
        tv.ContextView(tv.Context(cp=4)).measured(trace)


def test_ranks_have_inks_of_their_own():
    assert len(set(RANK_INKS)) == len(RANK_INKS)
    assert "exposed" not in RANK_INKS and "axis3" not in RANK_INKS  # that of cp's messages


@pytest.mark.browser
def test_messages_travel_in_a_page(tab, tmp_path):
    view = tv.ContextView(autoplay=True)
    tab.emulate_media(reduced_motion="no-preference")
    tab.goto(view.to_html(tmp_path / "a.html").as_uri())
    message = tab.locator("[data-message='1-0-3']").first
    message.wait_for()
    before = message.get_attribute("transform")
    tab.wait_for_function(
        "before => document.querySelector(\"[data-message='1-0-3']\")"
        "?.getAttribute('transform') !== before",
        arg=before,
    )
    tab.locator("svg[role=application]").press("Home")
    tab.locator(".tpv-summary", has_text="step 0").first.wait_for()


@pytest.mark.browser
@pytest.mark.parametrize("cp", [2, 8])
def test_in_a_narrow_window_it_shrinks(tab, tmp_path, cp):
    tab.set_viewport_size({"width": 400, "height": 900})
    tab.goto(tv.ContextView(tv.Context(cp=cp)).to_html(tmp_path / "a.html").as_uri())
    tab.locator("[data-ready]").wait_for()
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 400


@pytest.mark.browser
def test_texts_of_every_step_are_legible(tab):
    from test_legible import PROBLEMS, SMALLEST

    for kind in KINDS:
        for cp in (2, 8):
            view = tv.ContextView(tv.Context(cp=cp, kind=kind), against="ring")
            for step in {0, 1, cp - 1, len(view.picture.scene["captions"]) - 1}:
                tab.set_content(view.to_svg(step=step))
                problems = "\n".join(tab.evaluate(PROBLEMS, [SMALLEST]))
                assert problems == "", (kind, cp, step)
