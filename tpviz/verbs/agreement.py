"""How far two rankings of the same strategies agree: Kendall's tau, and if their first is."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ranking import Row


def agreement(
    rows: "Sequence[Row]", pairs: Iterable[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """{"predicted, simulated": {"tau", "top", "rows"}} for pairs of columns of `search.Row`.

    Rows in which one of the two is None do not count; a pair with fewer than two is left out.
    """
    found = {}
    for first, second in pairs:
        times = [(getattr(row, first), getattr(row, second)) for row in rows]
        times = [pair for pair in times if None not in pair]
        if len(times) > 1:
            a, b = ([rounded(t) for t in column] for column in zip(*times))
            top = any(x == min(a) and y == min(b) for x, y in zip(a, b))
            found[f"{first}, {second}"] = {"tau": kendall_tau(a, b), "top": top, "rows": len(times)}
    return found


def rounded(seconds: float) -> float:
    """Times that differ by rounding are one."""
    return float(f"{seconds:.9e}")


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b of two sequences of numbers: 1 the same order, -1 the reverse, ties counted.

    Kendall 1945, "The treatment of ties in ranking problems": (concordant - discordant pairs) /
    sqrt(pairs not tied in a * pairs not tied in b). 1.0 where both are all ties, 0.0 where one is.
    Raises ``ValueError`` unless both have the same length of 2 or more.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"two rankings of the same 2 or more things, not of {len(a)} and {len(b)}")
    signs = [(_sign(x - u), _sign(y - v)) for (x, y), (u, v) in combinations(zip(a, b), 2)]
    in_a, in_b = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    if not in_a or not in_b:
        return float(in_a == in_b)
    return sum(x * y for x, y in signs) / (in_a * in_b) ** 0.5


def _sign(value):
    return (value > 0) - (value < 0)
