"""Context parallelism: sequences over ranks, as a factor of every product.

Ring attention: Liu et al. 2023, arXiv 2310.01889; its causal balance and the all-gather: Llama 3,
arXiv 2407.21783, section 3.3.2; Ulysses: Jacobs et al. 2023, arXiv 2309.14509; Ulysses inside a
ring: Fang and Zhao 2024, arXiv 2405.07719.

>>> from tpviz import Megatron, Pipeline
>>> plan = Megatron(tp=2) * Context(cp=2) * Pipeline(pp=2)
>>> plan.axes, plan.short
({'pp': 2, 'cp': 2, 'tp': 2}, 'Megatron(tp=2) * Context(cp=2) * Pipeline(pp=2)')
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, fields, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import divides, divisors
from tpviz.core.step import Collective, Part, Step
from tpviz.core.workload import GPT
from tpviz.schemes.factor import placed
from tpviz.schemes.grid.around import Around
from tpviz.schemes.grid.tensor import TensorParallel
from tpviz.schemes.knobs import (
    accumulation_knob,
    knob,
    offload_knob,
    recompute_knob,
    settle_between,
)
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.ownership import num_local
from tpviz.schemes.pipeline.strategy import Pipeline
from tpviz.schemes.strategy import Strategy, register
from tpviz.schemes.zero.strategy import DataParallel

from .sequence import KINDS, PartOfSequence, SequenceCut

if TYPE_CHECKING:
    from tpviz.cluster.clock.cost import Memory

__all__ = ["GPT", "Context"]
OUTSIDE = "tp-ulysses-dp-cp-pp"
"""Replicas side by side, sequences across them; by default a sequence's ranks are side by side."""


@register
class Context(Around):
    """Splits every sequence over ``cp`` times ``ulysses`` ranks: each has some of its tokens,
    through all layers, and only attention exchanges something. Inside it any tensor parallelism,
    around it a pipeline and data parallelism: ``Megatron(...) * Context(...) * Pipeline(...)``.

    ``kind``: "ring" passes keys and values round the ranks, block by block; under the causal mask
    the last rank has most to do. "zigzag" is the same with balanced blocks. "all_gather" collects
    the keys and values of all ranks first. "ulysses" exchanges tokens for heads, and each rank
    computes whole sequences for some of them. With ``ulysses`` above 1 the ring of another kind
    has that exchange inside it.
    """

    cp: int = knob(2, help="ranks that share every sequence", low=1, high=1024)
    kind: str = knob(
        "zigzag", help="what attention exchanges, and which tokens a rank has", choices=KINDS
    )
    ulysses: int = knob(
        1, help="ranks that exchange heads, inside each rank of the ring", low=1, high=1024
    )
    accumulation: int = accumulation_knob()
    recompute: str = recompute_knob()
    offload: int = offload_knob()
    inner: TensorParallel | None = None
    placement: str = ""
    summing: bool = field(default=True, repr=False)
    """whether it adds up gradients over cp; replicas around it do so with those over dp"""

    searched = False

    def __post_init__(self):
        super().__post_init__()
        self.sequence  # noqa: B018  (a kind that works)
        inner = self.inner
        if inner is None:
            return
        if not isinstance(inner, TensorParallel) or isinstance(inner, Context):
            raise ValueError(
                f"inner={inner!r} is not possible: multiply the factors, as in "
                "Megatron(tp=2) * Context(cp=2)"
            )
        if inner.clip:
            raise ValueError(
                f"{inner.short} in Context: clip={inner.clip} is not possible, since the norm is "
                "taken before gradients are added up over cp; use clip=0.0"
            )
        settle_between(self, "accumulation", 1)
        settle_between(self, "recompute", "none")
        settle_between(self, "offload", 0)

    def takes(self, other: Strategy) -> "Strategy | None":
        """The product with a tensor parallelism inside."""
        if not isinstance(other, TensorParallel) or isinstance(other, Context):
            return None
        inner = other if self.inner is None else self.inner.nested(other)
        return inner and replace(self, inner=inner)  # pyright: ignore[reportArgumentType]

    # -- the factor inside, on a part of the sequences ---------------------------------------------
    @property
    def sequence(self) -> SequenceCut | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How sequences are cut; None where they are not."""
        cut = _cut(self.cp, self.kind, self.ulysses)
        return cut if cut.ranks > 1 else None

    def part(self, workload: GPT) -> GPT:
        """What a rank has of the sequences, as a workload of its own."""
        return _part(workload, self.sequence) if self.sequence else workload

    @property
    def axes(self) -> dict[str, int]:
        inner = {"ulysses": self.ulysses} if self.ulysses > 1 else {}
        return placed({"cp": self.cp} | inner | self.within.axes, self.placement)

    @property
    def manner(self) -> tuple[str, ...]:
        return (f"({self.kind})",) * (self.cp > 1)

    def uneven(self, workload: GPT) -> Collection[str]:
        """The axis cp of a ring, where kind "ring" or documents do not balance it; and what experts
        say."""
        return {*self._unbalanced(workload), *super().uneven(workload)}

    def routed(self, workload: GPT) -> Collection[str]:
        return {*super().routed(workload)} - {*self._unbalanced(workload)}

    def _unbalanced(self, workload: GPT) -> tuple[str, ...]:
        cut = self.sequence
        ring = cut is not None and cut.ring > 1
        return ("cp",) if ring and (self.kind == "ring" or workload.documents) else ()

    @property
    def token_ranks(self) -> int:
        return self.cp * self.ulysses * self.within.token_ranks

    def check(self, workload: GPT) -> None:
        w, cut = workload, self.sequence
        if cut is None:
            return self.within.check(w)
        cut.check(w.seq)
        if w.capacity:
            raise ValueError(
                f"capacity={w.capacity} counts the choices of whole sequences, of which "
                f"{self.short} gives a rank a part: use capacity=None, or no Context"
            )
        try:
            self.within.check(self.part(w))
        except ValueError as error:
            clash = getattr(error, "clash", None)
            if clash is None or clash.size_name != "seq":
                raise
            raise clash.outside("*".join(cut.axes), cut.ranks).error() from None
        parts, n = cut.exchange
        if n > 1:
            at = self.layout
            ranks = at.i * (at.s if at.a3 else 1)
            name = "kv_heads" if w.kv_heads else "heads"
            parts += "".join(f"*{axis}" for axis in (at.inside, at.stream) if axis and ranks > 1)
            divides(name, w.num_kv_heads, parts, n * ranks, within=w.heads * bool(w.kv_heads))
        return None

    def local(self, workload: GPT) -> GPT:
        """The workload of one microbatch of one rank."""
        return self.within.local(self.part(workload))

    @property
    def joined(self) -> Mapping[str, int]:
        """The axes that sequences are cut over, where replicas are around, and those of the factor
        inside."""
        cut = self.sequence if not self.summing else None
        return {**{axis: self.axes[axis] for axis in (cut.axes if cut else ())}, **super().joined}

    def joins(self, workload: GPT) -> Mapping[str, Collection[str]]:
        """All, over the axes that sequences are cut over; and what the factor inside does."""
        names, within = workload.parameter_shapes(), super().joins(workload)
        return {**{axis: names for axis in self.joined if axis not in within}, **within}

    def summed(self, workload: GPT) -> Mapping[str, tuple[str, ...]]:
        """What the factor inside adds up, and every gradient over the ranks that share sequences,
        where nothing is around."""
        own = self.summing and self.sequence
        everything = {"*".join(own.axes): tuple(workload.parameter_shapes())} if own else {}
        return {**self.within.summed(workload), **everything}

    def step(self, workload: GPT) -> Step:
        """The step of the factor inside on a part of the sequences, and before the update the sum
        of all gradients, where nothing is around."""
        parts, cut = self.within.step(self.part(workload)), self.sequence
        if cut is None or not self.summing:
            return parts
        size = num_local(self.flat_shapes(workload)) * workload.itemsize
        summed = Collective("*".join(cut.axes), "all_reduce", size)
        return [
            p._replace(operations=(*p.operations, summed))
            if isinstance(p, Part) and p.phase == "sync"
            else p
            for p in parts
        ]

    def memory(self, workload: GPT) -> "Memory":
        """That of the factor inside on a part of the sequences; alone, at least all gradients side
        by side, as they are added up, behind those that the factor inside adds up."""
        part = self.part(workload)
        found = self.within.memory(part)
        if self.summing and self.sequence:
            tokens = 16 * part.seq * workload.batch
            summed = sum(one.payload for one in self.within.sums(part)) if part.experts else 0  # pyright: ignore[reportAttributeAccessIssue]
            found["activations"] = max(found["activations"], tokens + summed + found["gradients"])
        return found

    @classmethod
    def layouts(cls, workload: GPT, world_size: int) -> Iterator[Strategy]:
        """Every (pp, cp, ulysses, tp, dp) with Megatron-LM's sequence parallelism inside, and each
        kind but "ring", which is "zigzag" out of balance; of one stage as data parallelism too. A
        ring with replicas outside of its ranks, and inside, `OUTSIDE`."""
        for pp, cp, tp in product(divisors(world_size), repeat=3):
            dp, rest = divmod(world_size, pp * cp * tp)
            if rest or cp == 1 or not cls.allows("cp", cp) or not Megatron.allows("tp", tp):
                continue
            inner = Megatron(tp=tp, sp=True) if tp > 1 else None
            for form in _forms(cp):
                if form["kind"] == "ring":
                    continue
                made, data = cls(**form, inner=inner), DataParallel(dp=dp, zero=1)
                several = dp > 1 and form == {"cp": cp, "kind": "zigzag", "ulysses": 1}
                for placement in ("", OUTSIDE)[: 1 + several]:
                    if pp == 1:
                        yield replace(data, inner=made, placement=placement)
                    if Pipeline.allows("pp", pp):
                        knobs: dict[str, Any] = {
                            "pp": pp,
                            "microbatches": 1,
                            "placement": placement,
                        }
                        yield Pipeline(**knobs, inner=made, data=data)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> Iterator[Self]:
        """Every kind, with all ranks on cp and with some of them on ulysses."""
        if cls.allows("cp", world_size):
            yield from (cls(**form) for form in _forms(world_size))


def _forms(ranks: int) -> "Iterator[dict[str, Any]]":
    """Yield the knobs of every way in which so many ranks share sequences: each kind, with Ulysses
    inside it over some of them."""
    for kind in KINDS if ranks > 1 else KINDS[:1]:
        inside = (1,) if kind == "ulysses" else divisors(ranks)[:-1] or (1,)
        yield from ({"cp": ranks // n, "kind": kind, "ulysses": n} for n in inside)


@lru_cache(maxsize=256)  # a search asks a million times, for few
def _cut(cp: int, kind: str, ulysses: int) -> SequenceCut:
    return SequenceCut(cp, kind, ulysses)


@lru_cache(maxsize=1024)
def _part(workload: GPT, cut: SequenceCut) -> PartOfSequence:
    sizes: dict[str, Any] = {f.name: getattr(workload, f.name) for f in fields(GPT)}
    sizes["seq"] = workload.seq // cut.ranks
    return PartOfSequence(**sizes, context=cut)
