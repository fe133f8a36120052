"""Closed forms of schedules: makespan, bubble and activations in flight, where they are exact.

p ranks, m microbatches, v stages on each rank; f, b, r seconds of forward, backward and recompute
of one microbatch on one stage, w the part of b that is for the weights. Stages are equal, messages
cost nothing. With f' = f + b + r:

=====================  ==============================================================  ============
schedule               makespan                                                        where exact
=====================  ==============================================================  ============
gpipe, 1f1b            (m + p - 1) f'                                                  always
early_recompute        m f' + (p - 1)(f + b)                                           A
last_no_recompute      m f' + (p - 2)(f + b) + max(0, b - r) + max(0, f - r)           m >= 3, A
shifted_critical_path  m f' + (p - 2)(f + b) + max(0, b - f - r)                       B
                       + max(0, min(b - 2r, f - r)) + max(0, f - r)
interleaved_1f1b       v m f' + (p - 1) f'                                             always
zb_h1                  v m f' + (p - 1)(f' - 2w)                                       r = 0, C
zb_v                   2 m f' + (p - 1) f                                              r = 0, D
dualpipe_v             2 m f' + (p - 1)(f' - 2w), pairs in turn                        r = 0, E
                       2 m f' + (p - 1)(f' + b - 3w), overlapped                       r = 0, E
=====================  ==============================================================  ============

A: r <= f. B: r = f <= b or f + r <= b. C: m >= p, w <= f, w <= b - w.
D: m >= 2p - 1, f = w = b - w. E: f = b - w >= w. With recompute the last three are left to the
clock: some of it hides in their bubbles.

Sources: the first rows are standard (arXiv 1811.06965, 2104.04473); Merak's three are derived, from
its released code; zb_h1 is (p - 1)(F + B - 2W) of the zero-bubble authors (arXiv 2401.10241), the
overlapped one (PP/2 - 1)(F&B + B - 3W) of DeepSeek's README, with PP = 2p and F&B = f + b. That for
pairs in turn, zb_v's fill and all ranges are derived: exact on the clock over random sizes.

>>> makespan("shifted_critical_path", 4, 8, recompute=1.0), makespan("1f1b", 4, 8, recompute=1.0)
(38.0, 44.0)
>>> in_flight("shifted_critical_path", 4, 8)
(4, 3, 3, 1)
"""

from math import isclose

from tpviz.core.checks import one_of


def makespan(
    name: str,
    ranks: int,
    microbatches: int,
    forward: float = 1.0,
    backward: float = 2.0,
    recompute: float = 0.0,
    weight: float | None = None,
    chunks: int | None = None,
    overlapped: bool = False,
) -> float | None:
    """The makespan of a schedule by its closed form, in seconds, or None outside of its range.

    The table above has the forms and their sources; Merak's three are derived from the code that
    its authors (arXiv 2206.04959) released.

    forward, backward, recompute, weight : seconds of one microbatch on one stage; backward is
    without recompute, ``recompute=0`` means none, weight is by default half of ``backward``.
    chunks : stages on each rank. overlapped : of DualPipeV's pairs, as for `clock.timeline`.
    """
    p, m, f, b, r = ranks, microbatches, forward, backward, recompute
    w, v = b / 2 if weight is None else weight, _chunks(name, chunks)
    each = f + b + r
    if name in ("gpipe", "1f1b", "interleaved_1f1b"):
        return (v * m + p - 1) * each
    if name in SPLIT:
        extra = None if r else SPLIT[name](p, m, f, b, w, overlapped)
        return None if extra is None else v * m * each + (p - 1) * extra
    if p == 1:
        return m * (each if name == "early_recompute" else f + b)
    if r > f:
        return None
    if name == "early_recompute":
        return m * each + (p - 1) * (f + b)
    common = m * each + (p - 2) * (f + b) + max(0.0, f - r)
    if name == "last_no_recompute":
        return common + max(0.0, b - r) if m >= 3 else None
    if (isclose(r, f) and f <= b) or f + r <= b:
        return common + max(0.0, b - f - r) + max(0.0, min(b - 2 * r, f - r))
    return None


def bubble(
    name: str,
    ranks: int,
    microbatches: int,
    forward: float = 1.0,
    backward: float = 2.0,
    recompute: float = 0.0,
    weight: float | None = None,
    chunks: int | None = None,
    overlapped: bool = False,
) -> tuple[float, ...] | None:
    """Per rank, the part of `makespan` in which it is idle, in seconds; None outside its range."""
    span = makespan(
        name, ranks, microbatches, forward, backward, recompute, weight, chunks, overlapped
    )
    if span is None:
        return None
    plain, again = (
        microbatches * _chunks(name, chunks) * x for x in (forward + backward, recompute)
    )
    last = name in ("last_no_recompute", "shifted_critical_path")
    return tuple(
        span - plain - (0.0 if last and rank == ranks - 1 else again) for rank in range(ranks)
    )


def in_flight(
    name: str, ranks: int, microbatches: int, chunks: int | None = None
) -> tuple[int, ...]:
    """Per rank, the most microbatches, times stages, whose activations are held at once.

    From forward to the end of backward, of the weights' where that is split (derived; 1F1B, ZB-H1
    and ZB-V as their papers say, DualPipeV as DeepSeek's README: p + 1 microbatches of two chunks,
    where its p counts the ranks of both directions).
    """
    p, m, v = ranks, microbatches, _chunks(name, chunks)
    if name == "gpipe":
        held = [m] * p
    elif name == "interleaved_1f1b":
        held = [(v - 1) * p + 2 * (p - 1 - s) + 1 for s in range(p)]
    elif name == "zb_h1":
        held = [v * p] * p
    elif name == "zb_v":
        held = [min(m, 2 * p - 1 - s) + min(m, s + 1) for s in range(p)]
    elif name == "dualpipe_v":
        held = [2 * p + 1] * p
    else:
        held = [p - s for s in range(p)]
        if name == "shifted_critical_path" and p > 1:
            held[p - 2] = 3
    return tuple(min(x, m * v) for x in held)


def _zb_h1(p, m, f, b, w, overlapped):
    return f + b - 2 * w if m >= p and w <= f and w <= b - w else None


def _zb_v(p, m, f, b, w, overlapped):
    return f if m >= 2 * p - 1 and isclose(f, w) and isclose(f, b - w) else None


def _dualpipe_v(p, m, f, b, w, overlapped):
    if not (isclose(f, b - w) and f >= w):
        return None
    return f + 2 * b - 3 * w if overlapped else f + b - 2 * w


SPLIT = {"zb_h1": _zb_h1, "zb_v": _zb_v, "dualpipe_v": _dualpipe_v}
"""{schedule: seconds that each rank but one adds, or None}; nothing is recomputed."""


def _chunks(name, chunks):
    from . import SCHEDULES

    one_of("schedule", name, SCHEDULES)
    return SCHEDULES[name].chunks[1] if chunks is None else chunks
