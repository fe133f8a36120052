"""Small traces written by hand, random ones, and a comparison that says where two traces differ."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tpviz.core.trace import Event, Trace
from tpviz.core.trace.columns import COLUMNS
from tpviz.core.trace.meta import META


def compute(rank: int, start: float, end: float, name: str = "mm", **more: Any) -> Event:
    return Event(rank=rank, name=name, start=start, end=end, **more)


def comm(
    rank: int,
    start: float,
    end: float,
    name: str = "all_reduce",
    axis: str = "tp",
    members: str = "0,1",
    seq: int = 0,
    **more: Any,
) -> Event:
    return Event(
        rank=rank,
        lane=f"comm/{axis}",
        kind="comm",
        name=name,
        start=start,
        end=end,
        axis=axis,
        members=members,
        seq=seq,
        **more,
    )


def wait(
    rank: int, start: float, end: float, waits_for: int, name: str = "wait all_reduce"
) -> Event:
    return Event(rank=rank, kind="wait", name=name, start=start, end=end, waits_for=waits_for)


def straggler() -> Trace:
    """Two ranks all-reduce; rank 1 computes four times as long and holds rank 0 up.

    rank 0  |mm 0-1|wait 1-5|mm 5-6|
    rank 1  |mm 0-2|slow 2-4|wait 4-5|mm 5-5.5|
    """
    return Trace.from_events(
        [
            compute(0, 0.0, 1.0),
            comm(0, 1.0, 5.0),
            wait(0, 1.0, 5.0, waits_for=1),
            compute(0, 5.0, 6.0, "after"),
            compute(1, 0.0, 2.0),
            compute(1, 2.0, 4.0, "slow"),
            comm(1, 4.0, 5.0),
            wait(1, 4.0, 5.0, waits_for=6),
            compute(1, 5.0, 5.5, "after"),
        ]
    )


def random_trace(seed: int, unit: float, ranks: int = 3, events: int = 60) -> Trace:
    """Computations end to end or apart; three communication lanes over them and each other."""
    random, rows = np.random.default_rng(seed), []
    for rank in range(ranks):
        time = 0.0
        for i in range(events):
            length = random.exponential(unit)
            rows.append(
                compute(rank, time, time + length, ("mm", "Memcpy_like", "SyncBatchNorm")[i % 3])
            )
            time += length + random.exponential(unit) * (random.random() < 0.5)
        for axis in ("tp", "dp", "pp"):
            time = random.random() * unit
            for i in range(events // 3):
                length = random.exponential(unit)
                rows.append(
                    comm(
                        rank,
                        time,
                        time + length,
                        axis=axis,
                        members="0,1,2",
                        seq=i,
                        bytes=96,
                        name=("all_reduce", "all_gather", "reduce_scatter")[i % 3],
                    )
                )
                time += length * random.random() + random.exponential(2 * unit)
    return Trace.from_events(rows)


def differences(a: Trace, b: Trace) -> list[str]:
    """Names of the columns in which two tables differ, exactly and in order; "meta" too."""
    return [n for n in COLUMNS if a[n].tolist() != b[n].tolist()] + ["meta"] * (a.meta != b.meta)


_text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
_small = st.integers(-1, 5)
_seconds = st.floats(0, 10, allow_nan=False)


@st.composite
def _events(draw):
    start, length = draw(_seconds), draw(_seconds)
    kind = draw(st.sampled_from(("compute", "compute", "comm", "comm", "wait", "step")))
    lane = {"comm": "comm/" + draw(st.sampled_from(("tp", "dp"))), "step": "step"}.get(
        kind, "compute"
    )
    return Event(
        rank=draw(st.integers(0, 3)),
        lane=lane,
        kind=kind,
        name=draw(_text),
        phase=draw(_text),
        layer=draw(_text),
        microbatch=draw(_small),
        chunk=draw(_small),
        step=draw(_small),
        start=start,
        end=start + length,
        flops=draw(st.integers(0, 2**60)),
        bytes=draw(st.integers(0, 2**60)),
        wire_bytes=draw(st.floats(0, 1e15)),
        axis=draw(_text),
        members=draw(st.sampled_from(("", "0,1", "0,1,2,3"))),
        seq=draw(_small),
        waits_for=draw(st.integers(-1, 12)),
    )


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | _text | st.floats(allow_nan=False),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_text, inside, max_size=3),
    max_leaves=6,
)
traces = st.builds(
    Trace.from_events,
    st.lists(_events(), max_size=12),
    st.dictionaries(_text.filter(lambda key: key not in META), _json, max_size=3),
)
