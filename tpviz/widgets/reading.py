"""From knobs to a configuration and what formulas say of it: all that happens while a slider moves.

Nothing here starts a rank, simulates, or imports torch.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.runtime.launch import check_world_size, max_ranks
from tpviz.schemes.ownership import ownership
from tpviz.strategy import Strategy
from tpviz.verbs.predict import Prediction, predict
from tpviz.workload import GPT

from .setting import scaled


@dataclass(frozen=True)
class Choice:
    """A configuration: what the knobs say. cluster None is this machine."""

    strategy: Strategy
    workload: GPT
    cluster: Cluster | None = None

    @property
    def words(self) -> str:
        """The configuration in one line."""
        on = f" on {self.cluster.caption}" if self.cluster else ""
        return f"{self.strategy!r}{on}"

    @property
    def runs(self) -> bool:
        """Whether this machine may start that many ranks; else it can only simulate them."""
        return self.strategy.world_size <= max_ranks()


class Reading(NamedTuple):
    """A `Choice`, its `Prediction` (None on this machine), words on the scale model, ownership."""

    choice: Choice
    prediction: Prediction | None
    words: str
    rows: list[dict[str, Any]]


def read(
    strategy: Strategy, workload: GPT, chosen: tuple[Cluster | None, int, float | str]
) -> Reading:
    """The `Reading` of a strategy and of `Setting.chosen`.

    Raises ``ValueError`` where sizes clash, or where there are too many ranks.
    """
    strategy.check(workload)
    rows = ownership(strategy, workload)
    if chosen[0] is None:
        check_world_size(strategy.world_size)
        return Reading(Choice(strategy, workload), None, "", rows)
    cluster, prediction, words = scaled(chosen, lambda c: predict(strategy, workload, c))  # pyright: ignore[reportArgumentType]
    return Reading(Choice(strategy, workload, cluster), prediction, words, rows)
