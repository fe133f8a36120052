"""The exercises of notebook 08 on predictions of a few layouts: regret and rank correlation."""

from statistics import mean, median

import numpy as np

from tpviz.evidence.published.scoreboard import regret, spearman
from tpviz.verbs.ranking import kendall_tau

from .formula import Formula


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


def _pick(predicted, measured):
    return measured[predicted.index(min(predicted))]


REGRET = Formula(
    title="Read a regret table",
    prompt="Several layouts of one model were `predicted` and `measured`: two lists of seconds, in "
    "the same order. The search picks the layout that is predicted fastest. Return (its regret, "
    "the expected regret of a layout chosen at random): how much slower than the fastest measured "
    "layout, as a share.",
    starter="""def beat_regret(predicted, measured):
    pick = min(predicted)
    return pick / min(measured) - 1, 0.0""",
    concept="A regret compares measured times only. What is the prediction used for?",
    principle="Find where `predicted` is least, and take `measured` there; divide by the least "
    "measured. A random layout takes the mean of all.",
    shape="Two quotients with the same denominator, each minus 1.",
    success="A model may be twice too fast everywhere and have no regret; it may be right on "
    "average and pick badly. Errors and regret answer different questions.",
    draw=_tables,
    solution=regrets,
    parts=("regret of the pick", "regret of a random layout"),
    mistakes=lambda predicted, measured: {
        "you compare a predicted time with a measured one. The pick is judged by its own measured "
        "step.": (min(predicted) / min(measured) - 1, 0.0),
        "that is the ratio of the steps; regret is what it exceeds 1 by.": tuple(
            1 + r for r in regrets(predicted, measured)
        ),
        "the search does not know what was measured: it picks where `predicted` is least.": (
            0.0,
            regrets(predicted, measured)[1],
        ),
        "the pick's step is above, the fastest below: regret says how much slower the pick is.": (
            min(measured) / _pick(predicted, measured) - 1,
            ...,
        ),
        "regret is relative to the fastest measured layout, not to the pick.": (
            1 - min(measured) / _pick(predicted, measured),
            1 - min(measured) / mean(measured),
        ),
        "regret is a share: divide the difference of the steps by the fastest measured one.": tuple(
            r * min(measured) for r in regrets(predicted, measured)
        ),
        "the pick is where `predicted` is least; you took the layout predicted slowest.": (
            measured[predicted.index(max(predicted))] / min(measured) - 1,
            ...,
        ),
        "a random layout's regret is that of the mean measured step, not of the mean predicted "
        "one.": (..., mean(predicted) / min(predicted) - 1),
        "a random layout's regret is relative to the fastest measured layout too, not to the "
        "pick.": (..., mean(measured) / _pick(predicted, measured) - 1),
        "a random layout takes the mean of all measured steps, not their median.": (
            ...,
            median(measured) / min(measured) - 1,
        ),
        "a random layout takes the mean of all measured steps, not the slowest.": (
            ...,
            max(measured) / min(measured) - 1,
        ),
        "you divided the pick's measured step by its predicted one: that is the prediction's "
        "error. Regret compares it with the fastest measured layout.": (
            _pick(predicted, measured) / min(predicted) - 1,
            ...,
        ),
        "you divided the predicted step by the measured one of the pick: that is the prediction's "
        "error. Regret compares measured steps.": (
            min(predicted) / _pick(predicted, measured) - 1,
            ...,
        ),
        "the pick's step is compared with the mean or the median, not with the fastest.": (
            _pick(predicted, measured) / mean(measured) - 1,
            ...,
        ),
        "both lists have the same layouts in the same order: do not sort them one by one.": (
            sorted(measured)[predicted.index(min(predicted))] / min(measured) - 1,
            ...,
        ),
    },
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
        "that correlates the indices that sort the lists: `argsort` says which layout is k-th. Its "
        "own place is the inverse of that: argsort once more.": together(*orders),
        "only one of the two lists is in places: the other is in seconds, or in indices.": together(
            places[0], measured
        ),
        "one list is in places, the other in the indices that sort it.": together(
            places[0], orders[1]
        ),
        "that is the square of the correlation.": spearman(predicted, measured) ** 2,
        "in 1 - 6 sum(d^2) / (n (n^2 - 1)) the 6 is missing.": 1 - squares / scale,
        "1 - 6 sum(d^2) / (n (n^2 - 1)) has n^2 - 1 below, not n^2 or n^3.": 1 - 6 * squares / n**3,
        "1 - 6 sum(d^2) / (n (n^2 - 1)) has n^2 - 1 below, not n - 1.": (
            1 - 6 * squares / (n * (n - 1))
        ),
        "the differences of places are squared in 1 - 6 sum(d^2) / (n (n^2 - 1)).": (
            1 - 6 * float(abs(places[0] - places[1]).sum()) / scale
        ),
        "that is the share of pairs in the same order; a correlation of ranks is from -1 to 1.": (
            (kendall_tau(predicted.tolist(), measured.tolist()) + 1) / 2
        ),
    }


RANK = Formula(
    title="Does the model rank well?",
    prompt="Spearman's rank correlation of `predicted` and `measured` steps (lists of seconds, no "
    "two equal): the correlation of their ranks, 1 for the same order, -1 for the reverse. Return "
    "it.",
    starter="""import numpy as np


def beat_rank(predicted, measured):
    return float(np.corrcoef(predicted, measured)[0, 1])""",
    concept="Replace each time by its place in the sorted list.",
    principle="It is the starter's correlation, of places in place of seconds.",
    shape="A helper that turns a list of times into a list of places, and the starter's last "
    "line on what it returns.",
    success="A constant factor changes no rank, so the correlation says nothing of errors; and "
    "most of it is about slow layouts that nobody would choose. Therefore we show regret too.",
    draw=_tables,
    solution=lambda predicted, measured: spearman(predicted, measured),
    mistakes=lambda predicted, measured: {
        "that is Pearson's correlation of the seconds: one very slow layout decides it. Take ranks "
        "first.": float(np.corrcoef(predicted, measured)[0, 1]),
        "that is Kendall's tau, of pairs in the same order; Spearman's is the correlation of "
        "ranks.": kendall_tau(predicted, measured),
        "the sign is wrong: equal orders have 1.": -spearman(predicted, measured),
        **_rank_mistakes(np.array(predicted), np.array(measured)),
    },
)
