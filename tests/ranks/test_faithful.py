"""An emulated recording that was not faithful says so: in every badge, and once in a warning."""

import warnings

import pytest
import torch
import torch.distributed as dist

import tpviz as tv
from tpviz.core.trace import Event
from tpviz.core.trace.faithful import is_faithful, remark, unfaithful

FAST = tv.clusters.nvlink_pairs(pairs=1)  # at full speed: nothing here is as quick
LATE = {
    "seconds": 0.3,
    "share": 0.3,
    "share_of_communication": 0.0,
    "behind": 0.1,
    "events": ["mm (300.0 ms)"],
}


def trace(**meta):
    event = Event(kind="compute", name="mm", end=1.0)
    return tv.Trace.from_events([event], {"badge": "emulated", **meta})


def quietly_merged(*traces):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tv.Trace.merge(traces)


@pytest.mark.parametrize(
    "share, of_communication, words",
    [
        (0.02, 0.03, ""),
        (0.3, 0.0, "30 % of the step"),
        (0.0, 0.04, "4 % of the communication"),
        (0.3, 0.04, "30 % of the step"),
    ],
)
def test_one_rule_decides_and_speaks(share, of_communication, words):
    late = LATE | {"share": share, "share_of_communication": of_communication}
    assert is_faithful(late) == (words == "")
    assert words in unfaithful(late) and bool(unfaithful(late)) == bool(words)
    assert trace(late=late).badge == (
        f"emulated, not faithful ({words} late)" if words else "emulated"
    )


def test_merging_takes_the_worst_of_the_ranks_and_warns_once_in_the_caller():
    parts = [
        trace(late=LATE),
        trace(late=LATE | {"seconds": 0.2, "share": 0.4, "behind": 0.7}),
        trace(late=LATE | {"seconds": 0.1, "share_of_communication": 0.5}),
    ]
    with pytest.warns(UserWarning, match="not faithful.*slower motion helps") as seen:
        merged = tv.Trace.merge(parts)
    assert [warning.filename for warning in seen] == [__file__]
    late = merged.meta["late"]
    assert late["seconds"] == 0.3 and late["share"] == 0.4 and late["behind"] == 0.7
    assert late["share_of_communication"] == 0.5
    assert parts[0].meta["late"] == LATE  # a rank's own stays what it was


def test_a_notebook_shows_it_quietly(monkeypatch):
    """A badge and one sentence, and no warning in red; whoever ignores it is told nothing."""
    import IPython.display

    shown = []
    monkeypatch.setattr("tpviz.core.trace.faithful.in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    before = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        tv.Trace.merge([trace(late=LATE)])
    quietly_merged(trace(late=LATE))
    assert shown == [{"text/html": remark(LATE)}] and warnings.showwarning is before
    assert remark(LATE).count("This emulated run is not faithful: 30 % of the step") == 1
    assert "role='alert'" not in remark(LATE) and ">not faithful</span>" in remark(LATE)


def test_a_merge_of_faithful_ranks_is_silent():
    late = LATE | {"share": 0.01}
    assert tv.Trace.merge([trace(late=late), trace(late=late)]).badge == "emulated"


def test_pictures_files_and_texts_say_it(tmp_path):
    found = quietly_merged(trace(late=LATE))
    badge = "emulated, not faithful (30 % of the step late)"
    view = tv.Timeline(found)
    assert badge in view.to_svg() and badge in view.describe() and badge in repr(found)
    assert tv.load_trace(found.to_chrome(tmp_path / "t.json")).badge == badge


def small_sums(cluster, mark):
    """In a rank: sums much too quick for this machine, in a marked step or none; own warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with tv.record(cluster=cluster) as recorder:
            for _ in range(1 if mark else 10):
                if mark:
                    with recorder.step():
                        for _ in range(10):
                            dist.all_reduce(torch.ones(10))
                else:
                    dist.all_reduce(torch.ones(10))
    return recorder.trace, len(seen)


@pytest.mark.parametrize("mark", [True, False])
def test_a_foreign_program_on_ranks_is_called_unfaithful(mark):
    found = tv.launch(small_sums, FAST, mark, world_size=2)
    assert [warned for _, warned in found] == [0, 0]
    with pytest.warns(UserWarning, match="not faithful.*all_reduce") as seen:
        merged = tv.Trace.merge([part for part, _ in found])
    assert len(seen) == 1 and seen[0].filename == __file__
    assert merged.meta["late"]["share"] > 0.02 and "not faithful" in tv.Timeline(merged).describe()
    assert 0 < merged.meta["late"]["share_of_communication"] <= 1
    with pytest.warns(UserWarning, match="not faithful") as seen:
        whole = tv.run(tv.Megatron(tp=2), tv.GPT(layers=1), FAST, steps=1, memory=False)
    assert len(seen) == 1 and seen[0].filename == __file__ and "not faithful" in whole.badge
