"""``study``: the numbers of the verbs, gains, words, charts, what is refused, one emulated run."""

import doctest
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from plain_chart import assert_plain

import tpviz as tv
from tpviz.cluster.clock import replay
from tpviz.core import charts, tables
from tpviz.core.charts import unit_of
from tpviz.core.trace.faithful import badge_words
from tpviz.evidence import peers, study
from tpviz.evidence.study import KINDS, Outcome, Study, Variant, outcome
from tpviz.ranks.bar import viewer
from tpviz.views.figures.chart_svg import LEGIBLE
from tpviz.views.figures.svg import image
from tpviz.views.figures.tokens import TEXT

W = tv.GPT(layers=1, hidden=32, heads=4, seq=16, batch=4, vocab=64)
NODE = tv.clusters.nvswitch(4)
VARIANTS = {
    "1D": tv.Megatron(tp=4),
    "chunked": tv.ATP(mesh=(2, 2), chunks=2),
    "both": tv.Megatron(tp=2) * tv.DataParallel(dp=2),
    "grid": tv.AxoNN(x=2, z=2),
}


@pytest.fixture(scope="module")
def found():
    return tv.study(VARIANTS, W, NODE, ("simulated", "predicted"))


def test_numbers_are_those_of_the_verbs(found):
    assert found.sources == ("predicted", "simulated") and found.cluster is NODE
    for label, strategy in VARIANTS.items():
        predicted, simulated = (found.outcome(label, source) for source in found.sources)
        p = tv.predict(strategy, W, NODE)
        assert predicted.step == p.step_time and predicted.badge == p.badge == "predicted"
        assert predicted.waits == pytest.approx(sum(p.exposed.values()))
        trace = tv.simulate(strategy, W, NODE)
        assert simulated.step == trace.step_time and simulated.badge == trace.badge
        assert simulated.waits == pytest.approx(trace.exposed_communication())
        assert simulated.step == pytest.approx(predicted.step, rel=1e-9)
        assert set(simulated.exposed) <= set(strategy.axes), "queues count as their axis"
        for axis, seconds in predicted.exposed.items():
            assert simulated.exposed.get(axis, 0.0) == pytest.approx(seconds, abs=1e-12)
    assert found.outcome("grid").exposed["z"] > 0


def test_gains_are_over_the_first_variant(found):
    assert found.speedup("1D") == 0 and found.speedup("1D", over="grid") != 0
    first, other = (found.outcome(label).step for label in ("1D", "chunked"))
    assert found.speedup("chunked") == first / other - 1
    steps = {label: one.step for label, one in found.times["simulated"].items()}
    assert found.best("simulated") == min(steps, key=steps.get)


def test_table_and_words(found):
    table = found.to_table()
    assert table[0][:5] == ["variant", "source", "step", "gain", "exposed"]
    assert set(table[0][5:]) == {f"on {axis}" for axis in found.axes}
    assert len(table) == 1 + 2 * len(VARIANTS) and {len(row) for row in table} == {len(table[0])}
    assert table[1][:2] == ["1D", "predicted"] and table[1][3] == "+0.0 %"
    words = found.describe()
    assert words.startswith("4 variants on NVSwitch node. Predicted: 1D ")
    assert "Simulated: 1D " in words and "Not faithful" not in words
    assert f"{found.best()} fastest" in repr(found) and repr(found).endswith("predicted>")
    assert "<td>chunked</td>" in found._repr_html_()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_plain_and_says_what_it_shows(found, kind, theme):
    draw = lambda theme: found.to_svg(theme, kind=kind)
    assert_plain(found.scene(kind=kind), draw, theme, found.badges, found.describe())


def test_bars_and_stacks_are_the_numbers(found):
    steps = [one.step for times in found.times.values() for one in times.values()]
    unit, scale = unit_of(steps)
    one, other = found.figure(kind="bars").data
    assert [one.name, other.name] == ["predicted", "simulated"] and list(one.x) == [*VARIANTS]
    assert np.concatenate([one.y, other.y]) * scale == pytest.approx(steps)
    assert one.marker.pattern.shape != other.marker.pattern.shape  # not by colour alone
    figure = found.figure(kind="exposed")
    assert figure.layout.annotations[0].text.startswith(f"simulated step ({unit}), ")
    *stacks, other = figure.data
    assert [t.name for t in stacks] == ["kernels", *(f"waiting for {a}" for a in found.axes)]
    assert sum(np.array(t.y) for t in stacks) * scale == pytest.approx(steps[4:])
    assert len({t.marker.pattern.shape for t in stacks}) == len(stacks)
    assert (other.name, other.x) == ("predicted", stacks[0].x)  # marks on the same stacks
    assert np.array(other.y) * scale == pytest.approx(steps[:4])


def test_entries_of_a_legend_are_never_alike():
    """Of strategies whose axes have one usual colour, as tp and x; and of more axes than these."""
    axes = ("tp", "dp", "pp", "x", "y", "z", "data", "cp")
    for shown in (axes[:4], axes):
        times = {"predicted": Outcome(1.0, dict.fromkeys(shown, 0.1))}
        rows = (Variant("all", tv.Megatron(tp=2), times),)
        svg = Study(W, NODE, rows).to_svg(theme="light", kind="exposed")
        inks = re.findall(r"data-name='waiting for \w+'><g>.*?class='f-(\w+)", svg, re.S)
        assert len(set(inks)) == len(inks) == len(shown)
        assert svg.count("fill='url(#tpv-") >= 2 * len(shown)


def test_a_notebook_shows_the_chart_with_its_table(found):
    data = found._repr_mimebundle_()
    assert data["text/plain"] == repr(found) and data["image/svg+xml"] == found.to_svg()
    html = data["text/html"]
    assert image(found.to_svg(), found.describe(), LEGIBLE) in html
    assert "<summary>as a table</summary><table" in html and "<script" not in html
    exposed = found.show(kind="exposed")
    assert exposed.rows is found.rows and exposed.to_svg() == found.to_svg(kind="exposed")
    assert exposed.show(kind="bars").to_svg() == found.to_svg() != exposed.to_svg()
    assert exposed.to_svg(kind="bars") == found.to_svg(theme="auto")
    with pytest.raises(ValueError, match="kind='pie' is not possible"):
        found.show(kind="pie")
    assert found.figure("dark", kind="exposed").layout.font.color == TEXT["dark"]
    with pytest.raises(ValueError, match="theme='page' is not possible: use 'light' or 'dark'"):
        found.figure("page")


def test_curves_over_a_knob():
    made = tv.study([tv.ATP(mesh=(2, 2), chunks=n) for n in (1, 2, 4)], W, NODE, "predicted")
    assert [row.label for row in made.rows] == [row.strategy.short for row in made.rows]
    exposed, step = (drawn := made.figure(kind="curve", knob="chunks")).data
    assert drawn.layout.xaxis.type != "log"
    assert exposed.x == step.x == (1, 2, 4)
    for trace, what in ((exposed, "waits"), (step, "step")):
        seconds = [getattr(one, what) for one in made.times["predicted"].values()]
        assert np.array(trace.y) / trace.y[0] == pytest.approx(np.array(seconds) / seconds[0])
    assert made.figure(kind="curve").data[0].x[0].startswith("ATP(")
    with pytest.raises(ValueError, match=r"knob='mesh' is the same in some variants \(\(2, 2\)"):
        made.figure(kind="curve", knob="mesh")
    with pytest.raises(ValueError, match=r"knob='tp': ATP\(\) has none of that name"):
        made.figure(kind="curve", knob="tp")
    with pytest.raises(ValueError, match="kind='pie' is not possible: use 'bars', 'exposed' or"):
        made.figure(kind="pie")


def test_ranks_that_share_rows_count_as_many(monkeypatch):
    strategy, wide = VARIANTS["both"], tv.clusters.nvswitch_nodes(2, gpus=2)
    alone = outcome(tv.simulate(strategy, W, wide), strategy)
    monkeypatch.setattr(replay, "MOST", 0)
    shared = tv.simulate(strategy, W, wide)
    assert len(set(shared["rank"].tolist())) < len(shared.ranks)
    assert outcome(shared, strategy).exposed == pytest.approx(alone.exposed)


def test_what_has_no_formula_is_not_predicted():
    pair = {"ours": tv.Megatron(tp=2), "theirs": peers.DTensorTP(tp=2)}
    made = tv.study(pair, W, NODE, "predicted")
    assert "No formula, so not predicted: theirs." in made.notes()
    assert [row[0] for row in made.to_table()[1:]] == ["ours"]
    with pytest.raises(ValueError, match="theirs has no predicted times"):
        made.outcome("theirs")
    with pytest.raises(ValueError, match="none of these has a formula: use sources="):
        tv.study(peers.DTensorTP(tp=2), W, NODE, "predicted")


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_measured_on_real_ranks_with_the_badge_of_the_run():
    slow = tv.clusters.nvswitch(2).scale_model(hidden=128, slow_motion=30)
    made = tv.study({"tp": tv.Megatron(tp=2)}, W, slow, steps=2, progress=False)
    predicted, simulated, measured = made.rows[0].times.values()
    assert predicted.step == pytest.approx(simulated.step, rel=1e-9)
    assert measured.badge.startswith("emulated") and len(measured.repeats) == 2
    assert measured.faithful == ("not faithful" not in measured.badge)
    assert measured.step >= 0.98 * predicted.step and set(measured.exposed) == {"tp"}
    assert 0 < measured.waits < measured.step
    assert made.to_table()[-1][1] == measured.badge
    assert made.badges == ["predicted", "simulated", "emulated"]


def test_one_bar_shows_what_is_simulated_and_run(monkeypatch):
    def run(strategy, workload, cluster, progress, **options):
        viewer(progress)(1, 3, "training")
        return tv.simulate(strategy, workload, cluster)

    monkeypatch.setattr("tpviz.verbs.run.run", run)
    told, pair = [], {"1D": VARIANTS["1D"], "2D": tv.ATP(mesh=(2, 2))}
    tv.study(pair, W, NODE, steps=1, progress=lambda *report: told.append(report))
    first, second = ((n, 2, f"simulating {name}") for n, name in enumerate(pair))
    assert told == [first, (1, 3, "training"), second, (1, 3, "training")]


def test_runs_that_were_not_faithful_are_said(found):
    late = {"share": 0.3, "share_of_communication": 0.0, "events": ("mm",)}
    badge = f"emulated{badge_words(late)}"
    ran = Outcome(1.0, {"tp": 0.5}, faithful=False, badge=badge)
    first = replace(found.rows[0], times={**found.rows[0].times, "measured": ran})
    again = replace(found, rows=(first, *found.rows[1:]))
    assert again.late() == ["1D"] and "too short for this machine: 1D. More" in again.describe()
    assert again.to_table()[3][1] == badge and "not faithful (30 %" in badge
    assert again.badges == ["predicted", "simulated", "emulated"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sources": "guessed"}, "source='guessed' is not possible: use 'predicted', 'simulated'"),
        ({"sources": ()}, "sources is empty: give some of predicted, simulated, measured"),
        ({"variants": {}}, r"variants=\{\}: give variants in a list, or \{name: strategy\}"),
        ({"variants": 4}, "variants=4: give variants in a list"),
        ({"variants": "ATP"}, "variants='ATP': give variants in a list"),
        ({"variants": [tv.ATP]}, "variants has .*, which is no strategy"),
        (
            {"variants": [tv.ATP()] * 2},
            r"two variants are named 'ATP\(\)': give other names",
        ),
        ({"variants": [tv.Megatron(tp=3)]}, r"variant Megatron\(tp=3\): heads=4 does not split"),
        ({"variants": [tv.Megatron(tp=8)]}, "heads=4 does not split evenly over tp=8: use tp="),
        ({"variants": {"wide": tv.DataParallel(dp=8)}}, "variant wide: .*8|batch=4 does not"),
        ({"workload": NODE}, "second comes a workload"),
        ({"cluster": W}, "third comes a cluster"),
        ({"steps": 0}, "steps=0 is too small"),
    ],
)
def test_refused(change, message):
    given = {"variants": VARIANTS, "workload": W, "cluster": NODE, **change}
    with pytest.raises(ValueError, match=message):
        tv.study(**given)


def test_memory_that_does_not_fit_is_refused_before_anything_is_simulated():
    small = replace(NODE, device=replace(NODE.device, memory=1e4))
    assert tv.study(VARIANTS, W, small, "predicted").rows
    with pytest.raises(ValueError, match=r"variant 1D: Megatron\(tp=4\) needs .* has 10 kB"):
        tv.study(VARIANTS, W, small, "simulated")


@pytest.mark.parametrize("module", [charts, study, tables])
def test_examples(module):
    done = doctest.testmod(module)
    assert done.attempted and not done.failed


def test_a_late_run_is_said_with_its_numbers_alone(monkeypatch):
    """No warning beside the note: with warnings as errors, it is a study like any other."""
    late = tv.simulate(VARIANTS["1D"], W, NODE)

    def run(*args, **options):
        warnings.warn("this emulated run is not faithful: 9 % of the step", stacklevel=1)
        return late

    monkeypatch.setattr("tpviz.verbs.run.run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [row] = study.ask({"1D": VARIANTS["1D"]}, W, NODE, ["measured"])
    assert row.times["measured"].step == late.step_time
