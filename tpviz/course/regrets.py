"""The exercises of notebook 08 on predictions of a few layouts: regret and rank correlation."""

from statistics import mean, median

import numpy as np

from tpviz.evidence.published.scoreboard import regret, spearman
from tpviz.verbs.ranking import kendall_tau

from .formula import Formula
from .told import told


def _tables(rng):
    """Predictions that are too fast and rank well, but pick the second or third fastest layout."""
    for size in (6, 7, 8, 9):
        measured = np.round(np.cumsum(rng.uniform(0.1, 0.4, size)) + rng.uniform(0.5, 1.5), 3)
        noisy = rng.uniform(0.5, 0.8) * measured * rng.uniform(0.8, 1.25, size)
        ranks = noisy.argsort().argsort()
        for layout, rank in ((int(rng.integers(1, 3)), 0), (0, 1)):
            other = int(np.flatnonzero(ranks == rank)[0])
            ranks[[layout, other]] = ranks[[other, layout]]
        predicted = np.round(np.sort(noisy) + 1e-3 * np.arange(size), 3)[ranks]
        order = rng.permutation(size)
        yield predicted[order].tolist(), measured[order].tolist()


def regrets(predicted: list[float], measured: list[float]) -> tuple[float, float]:
    """(regret of the fastest predicted layout, the expected one of a random layout), shares."""
    return regret(predicted, measured), mean(measured) / min(measured) - 1


def _regret_mistakes(predicted, measured):
    at, both = predicted.index(min(predicted)), regrets(predicted, measured)
    pick, best, usual = measured[at], min(measured), mean(measured)
    return {
        "you compare a predicted time": (min(predicted) / best - 1, 0.0),
        "that is the ratio": tuple(1 + r for r in both),
        "search does not know what": (0.0, both[1]),
        "pick's step is above": (best / pick - 1, ...),
        "regret is relative to the fastest": (1 - best / pick, 1 - best / usual),
        "regret is a share": tuple(r * best for r in both),
        "pick is where predicted": (measured[predicted.index(max(predicted))] / best - 1, ...),
        "random layout's regret": (..., mean(predicted) / min(predicted) - 1),
        "random layout's regret is relative": (..., usual / pick - 1),
        "not their median": (..., median(measured) / best - 1),
        "not the slowest": (..., max(measured) / best - 1),
        "you divided the pick's measured step": (pick / min(predicted) - 1, ...),
        "you divided the predicted step": (min(predicted) / pick - 1, ...),
        "pick's step is compared": (pick / usual - 1, ...),
        "both lists have the same layouts": (sorted(measured)[at] / best - 1, ...),
    }


REGRET = Formula(
    **told("beat_regret"),
    draw=_tables,
    solution=regrets,
    parts=("regret of the pick", "regret of a random layout"),
    mistakes=_regret_mistakes,
)


def _rank_mistakes(predicted, measured):
    n = len(predicted)
    orders = predicted.argsort(), measured.argsort()
    places = [order.argsort() for order in orders]
    squares = float(((places[0] - places[1]) ** 2).sum())

    def together(one, other):
        return float(np.corrcoef(one, other)[0, 1])

    scale = n * (n**2 - 1)
    return {
        "that correlates the indices that sort": together(*orders),
        "only one of the two lists": together(places[0], measured),
        "one list is in places": together(places[0], orders[1]),
        "that is the square": spearman(predicted, measured) ** 2,
        "in 1 - 6 sum d^2": 1 - squares / scale,
        "not n^2 or n^3": 1 - 6 * squares / n**3,
        "not n - 1": 1 - 6 * squares / (n * (n - 1)),
        "differences of places are squared": (
            1 - 6 * float(abs(places[0] - places[1]).sum()) / scale
        ),
        "that is the share of pairs": (
            (kendall_tau(predicted.tolist(), measured.tolist()) + 1) / 2
        ),
    }


RANK = Formula(
    **told("beat_rank"),
    draw=_tables,
    solution=lambda predicted, measured: spearman(predicted, measured),
    mistakes=lambda predicted, measured: {
        "that is pearson's correlation": float(np.corrcoef(predicted, measured)[0, 1]),
        "that is kendall's tau of pairs": kendall_tau(predicted, measured),
        "sign is wrong": -spearman(predicted, measured),
        **_rank_mistakes(np.array(predicted), np.array(measured)),
    },
)
