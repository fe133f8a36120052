"""A strategy as a factor: what it multiplies with, and the product in words."""

from dataclasses import dataclass, fields, replace
from inspect import getdoc
from math import prod
from typing import TYPE_CHECKING, Any, Self

from .replicas import Classes, classes_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tpviz.core.workload import GPT

    from .strategy import Strategy


@dataclass(frozen=True)
class Factor:
    """Its axes, its product with others, and both in words."""

    if TYPE_CHECKING:  # of the schemes

        @property
        def axes(self) -> dict[str, int]:
            """{"dp": 2, "tp": 2}, outer first."""
            ...

    @property
    def manner(self) -> tuple[str, ...]:
        """What its `caption` says of it besides its axes."""
        return ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.axes.values())

    @property
    def factors(self) -> "tuple[Any, ...]":
        """The factors of the product, innermost first."""
        inner, around = getattr(self, "inner", None), getattr(self, "data", None)
        outer = (around,) if isinstance(around, Factor) else ()
        return (*(inner.factors if inner else ()), self, *outer)

    @property
    def short(self) -> str:
        """As code: axes, and other knobs that are not at their default; a schedule that the user
        wrote is "own".

        ``Megatron(tp=2) * DataParallel(dp=4, zero=1)``
        """
        found = " * ".join(one._short() for one in self.factors)
        placement = getattr(self, "placement", "")
        return f"({found}).with_order({placement!r})" if placement else found

    def _short(self):
        axes = {*self.axes, "dp"}
        words = [
            f"{f.name}={'own' if len(str(value).splitlines()) > 1 else repr(value)}"
            for f in fields(self)
            if f.metadata
            if (value := getattr(self, f.name)) != f.default or (value and f.name in axes)
        ]
        return f"{type(self).__name__}({', '.join(words)})"

    def title(self, workload: "GPT") -> str:
        """Its `caption` and the workload, "Megatron tp 4: GPT of 2 layers, hidden size 64"."""
        return f"{self.caption}: {workload.words}"

    @property
    def caption(self) -> str:
        """A short title: its classes, each with its axes of more than one rank.
        "Megatron tp 2, DataParallel dp 4"."""
        factors, words = self.factors, []
        for one in factors:
            others = [other.axes for other in one.factors if other is not one]
            inside = {axis for axes in others for axis in axes}
            own = (f"{a} {n}" for a, n in one.axes.items() if n > 1 and a not in inside)
            words.append(" ".join([type(one).__name__, *own, *one.manner]))
        return ", ".join(words)

    def describe(self) -> str:
        """What it does, in at most 40 words for each of the strategies that are multiplied: its
        `caption`, and the first paragraph of its class's docstring.

        >>> import tpviz
        >>> print(tpviz.Megatron(tp=2).describe().partition(",")[0])
        Megatron tp 2: Shards every pair of weight matrices over tp ranks
        """
        texts = [(getdoc(type(one)) or "").partition("\n\n")[0] for one in self.factors]
        return f"{self.caption}: {' '.join(' '.join(texts).replace('``', '').split())}"

    def uneven(self, workload: "GPT") -> "Collection[str]":
        """Axes along which ranks that are ``alike`` have other parts of this workload's work: those
        of the factor inside."""
        inner = getattr(self, "inner", None)
        return inner.uneven(workload) if inner else ()

    @property
    def joined(self) -> "Mapping[str, int]":
        """{axis: ranks} of its axes along which `joins` has parameters that none of them cuts."""
        return {}

    def joins(self, workload: "GPT") -> "Mapping[str, Collection[str]]":
        """{axis: parameters whose gradients replicas around it add up over it, in one sum with
        their own}: these are not in `summed`; none by default."""
        return {}

    def routed(self, workload: "GPT") -> "Collection[str]":
        """Of `uneven` those along which ranks differ in nothing but in `rows`."""
        inner = getattr(self, "inner", None)
        return inner.routed(workload) if inner else ()

    def rows(self, workload: "GPT") -> "tuple[int, ...]":
        """Of one sequence, rows from one rank: for each expert of a rank, for all of these, and for
        each rank of ep. workload : with the rank's ``place``."""
        inner = getattr(self, "inner", None)
        return inner.rows(workload) if inner else ()

    def classes_among(self, workload: "GPT", data: "Mapping[str, int]") -> Classes:
        """{who adds up gradients and shares states: of which parameters}, where ``data`` {axis:
        ranks} of data parallelism are around."""
        return classes_of(workload.parameter_shapes(), data, self.axes, self.joins(workload))

    def nested(self, other: "Strategy") -> "Strategy | None":
        """The product of this factor and ``other``, inside of a third; None if there is none."""
        return self.takes(other) or other.takes(self)  # pyright: ignore[reportArgumentType]

    def takes(self, other: "Strategy") -> "Strategy | None":
        """The product of this factor around ``other``; None if the two do not nest."""
        return None

    def __mul__(self, other: Any) -> "Strategy":
        """Several strategies at once, in any order: ``Megatron(tp=2) * DataParallel(dp=2)``."""
        pairs: Any = ((other, self), (self, other)) if isinstance(other, Factor) else ()
        for outer, inner in pairs:
            if (made := outer.takes(inner)) is not None:
                return made
        raise ValueError(
            f"cannot combine {self.short} with {getattr(other, 'short', other)}: "
            "a product has at most one factor that cuts blocks (Megatron, ATP, AxoNN, T3), "
            "one DiLoCo, one Experts, one Context, one Pipeline and one DataParallel; "
            "Merak is a product of blocks, pipeline and data"
        )

    def with_order(self, order: str) -> Self:
        """The product with its axes in another order of ranks, innermost first as Megatron-LM
        writes it: "tp-dp-pp". Axes that it does not have are ignored."""
        if "placement" not in self.__dataclass_fields__:
            other = "Context(cp=2)" if getattr(self, "shares_batch", "") else "DataParallel(dp=2)"
            raise ValueError(
                f"{self.short} is one factor, which orders its ranks itself, "
                f"{'-'.join(reversed(self.axes))}: order a product, such as that with {other}"
            )
        return replace(self, placement=order)  # pyright: ignore[reportCallIssue]


OF_DATA = "replicate", "shard", "reshard", "across", "within"
"""The axes of data parallelism where it has several, outer first."""


def placed(axes: "dict[str, int]", order: str) -> "dict[str, int]":
    """Axes, outer first, in an order as of `Strategy.with_order`; "": as they are. Where dp is
    several axes it stands for them. Raises ``ValueError`` where the order leaves one out."""
    if not order:
        return axes
    data = "-".join(axis for axis in reversed(axes) if axis in ("dp", *OF_DATA))
    words = [word for word in reversed(order.replace("dp", data).split("-")) if word in axes]
    missing = [axis for axis, size in axes.items() if axis not in words and size > 1]
    if missing or len(set(words)) < len(words):
        raise ValueError(
            f"order={order!r} must name each axis of {', '.join(axes)} once, innermost first: use "
            f"{'-'.join(reversed(axes))!r}"
        )
    return {axis: axes[axis] for axis in (*(a for a in axes if a not in words), *words)}
