"""HolisticTraceAnalysis, an independent reader, finds the overlap that we find."""

import gzip
import json
import logging

import numpy as np
import pytest
from trace_samples import comm, compute, random_trace, straggler, wait

import tpviz as tv
from tpviz.core.trace import Event, Trace
from tpviz.core.trace.analyses import length, merge, overlaps
from tpviz.files.hta import whole_microseconds

# HTA and the libraries it imports warn of their own affairs, and it forks with threads running.
pytestmark = pytest.mark.filterwarnings("ignore")


def _by_hta(folder):
    """{rank: overlap in percent} as HTA computes it."""
    logging.disable(logging.WARNING)
    try:
        from hta.trace_analysis import TraceAnalysis

        table = TraceAnalysis(trace_dir=str(folder)).get_comm_comp_overlap(visualize=False)
    finally:
        logging.disable(logging.NOTSET)
    return dict(zip(table["rank"].tolist(), table["comp_comm_overlap_pctg"].tolist()))


def _by_hand():
    """150 µs of communication, 50 of them covered; a wait, a step and badly named operators too."""
    us = 1e-6
    return Trace.from_events(
        [
            compute(0, 0, 100 * us, "Memcpy_like"),
            comm(0, 50 * us, 200 * us),
            wait(0, 100 * us, 200 * us, 1),
            Event(lane="step", kind="step", name="step 0", step=0, end=200 * us),
            compute(1, 0, 100 * us, "SyncBatchNorm"),
            comm(1, 0, 50 * us),
            comm(1, 60 * us, 90 * us, axis="dp"),
            compute(1, 150 * us, 180 * us, "dma"),
            compute(1, 180 * us, 181 * us, "nccl_lookalikeKernel"),
        ]
    )


SAMPLES = {
    "by hand": _by_hand(),
    "straggler": straggler(),
    "milliseconds": random_trace(1, 1e-3),
    "tens of microseconds": random_trace(2, 2e-5),
    "far from zero": Trace.from_events(
        e._replace(start=e.start + 4e5, end=e.end + 4e5) for e in random_trace(3, 1e-3, ranks=2)
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_hta_finds_the_same_overlap(tmp_path, name):
    trace = SAMPLES[name]
    found = _by_hta(trace.to_hta(tmp_path))
    assert found.keys() == overlaps(trace).keys()
    for rank, fraction in overlaps(trace).items():
        # HTA itself rounds to two decimals
        assert found[rank] == pytest.approx(100 * fraction, abs=0.01)


def test_the_hand_made_numbers():
    assert [round(100 * f, 2) for f in overlaps(_by_hand()).values()] == [33.33, 100.0]


def test_rounding_keeps_the_time_in_each_state():
    trace = random_trace(4, 1e-5, ranks=1, events=900)
    starts, ends = whole_microseconds(trace, 0)
    assert all(isinstance(start, int) for start in starts)
    kind, ends = trace["kind"], np.array(ends)
    assert (ends >= starts).all()
    assert np.abs(ends - 1e6 * trace["end"]).max() < 2.5
    for name in ("compute", "comm"):
        mask = kind == name
        exact = 1e6 * length(merge(trace["start"][mask], trace["end"][mask]))
        assert length(merge(np.array(starts)[mask], ends[mask])) == pytest.approx(exact, abs=1.5)


def test_our_importer_reads_the_folder_too(tmp_path):
    trace = SAMPLES["milliseconds"]
    loaded = tv.load_trace(trace.to_hta(tmp_path))
    assert loaded.meta["badge"] == "imported"
    assert loaded.ledger() == trace.ledger()
    assert loaded.lanes == trace.lanes
    assert overlaps(loaded) == pytest.approx(overlaps(trace), abs=1e-4)
    assert set(loaded["seq"][loaded["kind"] == "comm"].tolist()) == set(range(20))


def test_the_rank_stands_first_where_hta_looks_for_it(tmp_path):
    straggler().to_hta(tmp_path)
    text = gzip.decompress((tmp_path / "rank1.json.gz").read_bytes()).decode()
    assert text.index('"rank": 1') < text.index("traceEvents")
    assert json.loads(text)["distributedInfo"]["world_size"] == 2


def test_a_folder_with_other_traces_is_refused(tmp_path):
    (tmp_path / "rank7.json.gz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"other traces \(rank7.json.gz\)"):
        straggler().to_hta(tmp_path)
    with pytest.raises(ValueError, match="empty"):
        Trace.from_events([]).to_hta(tmp_path / "new")
