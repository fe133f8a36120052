"""Fitting latency and bandwidth to measured times: T = hops * alpha + volume / B. NumPy alone.

>>> hops, volume = [2, 2, 2, 2], [1e3, 1e5, 1e6, 1e7]
>>> alpha, bandwidth = fit_line(hops, volume, [2 * 1e-4 + v / 1e9 for v in volume])
>>> round(alpha * 1e6), round(bandwidth / 1e6)
(100, 1000)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

LEAST_SHARE = 0.05
"""The share of the largest message's time that bytes have at least: where measured times do not
grow with size, a bandwidth cannot be told, and the fit gives the lowest that would not show."""
LEAST_STEPS = 4
"""Steps that tell the four numbers of a device's kernels."""


def fit_line(
    hops: ArrayLike, volume: ArrayLike, seconds: ArrayLike, rounds: int = 30
) -> tuple[float, float]:
    """(alpha in s, B in bytes/s) by robust least squares of the relative errors, both above 0.

    Huber's weights (k = 1.345, scale 1.4826 x median; Huber 1964), by reweighting: a single outlier
    does not move the line. hops, volume (bytes), seconds : one entry a point.

    Raises ``ValueError`` for fewer than two points or times that are not above 0.
    """
    hops, volume, seconds = (np.asarray(part, float) for part in (hops, volume, seconds))
    if len(seconds) < 2 or not (seconds > 0).all():
        raise ValueError(f"a fit needs two or more times above 0, not {seconds.tolist()}")
    rows = np.stack([hops, volume], 1) / seconds[:, None]
    largest = volume.argmax()
    least = LEAST_SHARE * seconds[largest] / volume[largest]
    weights = np.ones(len(seconds))
    for _ in range(rounds):
        alpha, beta = _bounded(rows, weights, least)
        error = np.abs(rows @ [alpha, beta] - 1)
        scale = max(1.4826 * np.median(error), 1e-12)
        weights = np.minimum(1, 1.345 * scale / np.maximum(error, 1e-12))
    return float(alpha), float(1 / beta)


def fit_kernels(
    steps: Sequence[tuple[Sequence[tuple[float, float, float]], float]], rounds: int = 30
) -> tuple[float, float, float, float]:
    """(c, u, b, s) of `Device.time` by robust least squares of the relative errors of whole steps.

    A kernel whose arithmetic takes a seconds at the full rate, and which reads and writes B bytes,
    takes max(c a + u b B, b B) + s: c is 1 / gemm_efficiency, u the share of traffic that is not
    hidden, b seconds of a byte, s the start-up time. steps : (kernels, measured seconds) of each;
    kernels : (how many, a, B). What decides in each kernel is found by turns.

    Raises ``ValueError`` for fewer than four steps or times that are not above 0.
    """
    seconds = np.array([taken for _, taken in steps], float)
    if len(seconds) < LEAST_STEPS or not (seconds > 0).all():
        raise ValueError(f"a fit needs four or more times above 0, not {seconds.tolist()}")
    tables = [np.array(kernels, float).T for kernels, _ in steps]
    found, weights = np.array([1.0, 0.0, 0.0, 0.0]), np.ones(len(seconds))
    for _ in range(rounds):
        rows = np.array([_decided(*table, *found) for table in tables]) / seconds[:, None]
        found = (found + _not_negative(rows, weights)) / 2  # halfway, or decisions go to and fro
        error = np.abs(rows @ found - 1)
        scale = max(1.4826 * np.median(error), 1e-3)
        weights = np.minimum(1, 1.345 * scale / np.maximum(error, 1e-12))
    c, exposed, hidden, startup = found.tolist()
    byte = exposed + hidden
    return c, exposed / byte if byte else 0.0, byte, startup


def _decided(count, arithmetic, traffic, c, exposed, hidden, _):
    """What a step has of (arithmetic that decides, traffic, such as arithmetic could have hidden,
    kernels): the factors of c, u b, (1 - u) b and s."""
    first = (arithmetic > 0) & (c * arithmetic >= hidden * traffic)
    parts = (arithmetic * first, traffic, traffic * ~first, np.ones(len(count)))
    return [(count * part).sum() for part in parts]


def _not_negative(rows, weights):
    """The weighted least squares of rows @ x = 1 with no x below 0: the best over all faces."""
    root, found = np.sqrt(weights)[:, None], []
    for face in range(1, 2 ** rows.shape[1]):
        chosen = [column for column in range(rows.shape[1]) if face >> column & 1]
        x = np.zeros(rows.shape[1])
        x[chosen] = np.linalg.lstsq(rows[:, chosen] * root, root[:, 0], rcond=None)[0]
        if (x >= 0).all():
            found.append(x)
    return min(found, key=lambda x: (weights * (rows @ x - 1) ** 2).sum())


def _bounded(rows, weights, least):
    """The weighted least squares of rows @ (alpha, beta) = 1 with alpha >= 0 and beta >= least."""
    root = np.sqrt(weights)[:, None]
    both = np.linalg.lstsq(rows * root, root[:, 0], rcond=None)[0]
    if both[0] >= 0 and both[1] >= least:
        return both
    latency, byte = rows.T
    slope = max((weights * byte).sum() / (weights * byte**2).sum(), least)
    rest = (weights * latency * (1 - byte * least)).sum() / (weights * latency**2).sum()
    edges = [np.array([0.0, slope]), np.array([max(rest, 0.0), least])]
    return min(edges, key=lambda edge: (weights * (rows @ edge - 1) ** 2).sum())
