"""Who adds up gradients: the ranks that hold the same parameters and see other tokens.

>>> from tpviz import Context, DataParallel
>>> (Context(cp=2) * DataParallel(dp=4, zero=1)).replicas
Replicas(axis='dp*cp', ranks=8)
"""

from typing import Any, NamedTuple


class Replicas(NamedTuple):
    """The ranks that add up the gradients of the same parameters, and share them under ZeRO; with
    hybrid sharding, those that share them."""

    axis: str
    ranks: int

    @classmethod
    def of(cls, dp: int, inside: Any, axes: tuple[str, ...] = ("dp",)) -> "Replicas":
        """Of dp parts of the batch, along ``axes``, and of the parts of each sequence that
        ``inside`` has."""
        cut = getattr(inside, "sequence", None)
        if cut is None:
            return cls("*".join(axes), dp)
        return cls("*".join(axes * (dp > 1) + cut.axes), dp * cut.ranks)
