"""Expert parallelism: the experts of a mixture over ranks, as a factor of every product.

Shazeer et al. 2017 (arXiv 1701.06538) put experts on ranks that have their own part of the batch;
Lepikhin et al. 2020 (GShard, arXiv 2006.16668) inside of a transformer; Megatron-LM with tensor
parallelism of experts besides (Yan et al. 2025, arXiv 2504.14960).

>>> from tpviz import DataParallel, Megatron
>>> plan = Megatron(tp=2, sp=True) * Experts(ep=2) * DataParallel(dp=2)
>>> plan.axes, plan.short
({'dp': 2, 'ep': 2, 'tp': 2}, 'Megatron(tp=2, sp=True) * Experts(ep=2) * DataParallel(dp=2)')
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import divides, divisors
from tpviz.core.workload import GPT
from tpviz.schemes.factor import placed
from tpviz.schemes.gpt.step import SHARED
from tpviz.schemes.grid.around import Around
from tpviz.schemes.grid.tensor import TensorParallel, WholeBlocks
from tpviz.schemes.knobs import (
    accumulation_knob,
    knob,
    offload_knob,
    recompute_knob,
    settle_between,
)
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.ownership import local_shapes
from tpviz.schemes.pipeline.strategy import Pipeline
from tpviz.schemes.strategy import Strategy, register
from tpviz.schemes.zero.strategy import DataParallel

from .cut import ExpertCut, of_mixtures

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.step import Operation
    from tpviz.schemes.gpt.pointwise import Held
    from tpviz.schemes.grid.program import Groups

__all__ = ["GPT", "Experts"]
OF_EXPERTS = ("mlp.up.weight", "mlp.down.weight")
ACROSS = "tp-ulysses-cp-dp-ep-pp"
"""Replicas of the same experts side by side, rows across them; by default ep is next to tp."""


@register
class Experts(Around):
    """Splits the experts of every MLP over ``ep`` ranks, which also share the batch. Each token's
    row goes to the ranks that have its experts, and the results come back. Inside it any
    one-dimensional tensor parallelism, around it sequences, a pipeline and data parallelism.

    ``etp`` is how many ranks of the tensor parallelism inside share one expert. With 1 each has
    whole experts and chooses for its part of the tokens; with all of them each has a part of every
    expert, as of any other matrix.

    ``dispatch="all_gather"``: each rank gets all tokens of ep and computes its experts on those
    that chose them; results are reduce-scattered. Fewer bytes where ep is less than the experts of
    a token (`tpviz.schemes.experts.paper`), and as many however uneven the choices.

    ``overlap="shared"``: shared experts, which need no row of others, are computed while rows
    travel, forward and backward, as in Megatron-LM and DeepSeek-V3. ``"halves"``: the two halves of
    a microbatch go through each block in turn, attention and experts of one while rows of the other
    travel. No number changes.
    """

    ep: int = knob(2, help="ranks that the experts are spread over", low=1, high=1024)
    etp: int = knob(
        1, help="ranks of the tensor parallelism inside that share an expert", low=1, high=64
    )
    dispatch: str = knob(
        "all_to_all",
        help="rows to the ranks that have their experts, or all tokens to all ranks",
        choices=("all_to_all", "all_gather"),
    )
    overlap: str = knob(
        "none",
        help="what is computed while rows travel: shared experts, or a microbatch's other half",
        choices=("none", "shared", "halves"),
    )
    accumulation: int = accumulation_knob()
    recompute: str = recompute_knob()
    offload: int = offload_knob()
    inner: TensorParallel | None = None
    placement: str = ""
    summing: bool = field(default=True, repr=False)
    """whether it adds up gradients over ep; replicas around it do so with those over dp"""

    searched = False

    def __post_init__(self):
        super().__post_init__()
        inner = self.inner
        if inner is not None:
            if not isinstance(inner, TensorParallel) or isinstance(inner, Around):
                raise ValueError(
                    f"inner={inner!r} is not possible: multiply the factors, as in "
                    "Megatron(tp=2) * Experts(ep=2)"
                )
            at = inner.layout
            if at.s > 1 or inner.shares or inner.scheme != WholeBlocks.scheme:
                raise ValueError(
                    f"{inner.short} in Experts: experts are cut over one axis at most; use "
                    f"Megatron(tp={inner.world_size})"
                )
            settle_between(self, "accumulation", 1)
            settle_between(self, "recompute", "none")
            settle_between(self, "offload", 0)
            self._check_parts()

    def _check_parts(self):
        tp = self.within.layout.i
        if self.etp not in (1, tp):
            works = f"etp=1 or {tp}" if tp > 1 else f"etp=1, or Megatron(tp={self.etp}) inside"
            raise ValueError(
                f"etp={self.etp} ranks cannot share an expert where tp={tp}: use {works}"
            )

    def takes(self, other: Strategy) -> "Strategy | None":
        """The product with a tensor parallelism inside."""
        if self.inner is None and isinstance(other, TensorParallel):
            return None if isinstance(other, Around) else replace(self, inner=other)
        return None

    @property
    def cut(self) -> ExpertCut:
        """How experts are cut."""
        at = self.layout
        gathered = self.ep > 1 and self.dispatch == "all_gather"
        halves = 1 + (self.overlap == "halves")
        over = self.overlap == "shared"
        return ExpertCut(self.ep, self.etp, at.i, at.inside, over, gathered, halves)

    @property
    def axes(self) -> dict[str, int]:
        return placed({"ep": self.ep} | self.within.axes, self.placement)

    @property
    def shares(self) -> Sequence[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The axis ep: its ranks have their own part of the batch."""
        return ("ep",)

    def check(self, workload: GPT) -> None:
        w = workload
        if not w.experts:
            raise ValueError(
                f"{self.short} has no experts to spread: use a workload such as GPT(experts=8), or "
                "DataParallel for a dense one"
            )
        if self.overlap == "shared" and not w.shared_experts:
            raise ValueError(
                "overlap='shared' with shared_experts=0 has nothing to compute while rows travel: "
                "use overlap='none', or a workload such as GPT(shared_experts=1)"
            )
        self._check_parts()
        divides("experts", w.experts, "ep", self.ep)
        divides("batch", w.batch, "ep*accumulation", self.ep * self.accumulation)
        self.within.check(self._shared(w))
        if self.overlap == "halves":
            divides("batch", w.batch, "2*ep*accumulation", 2 * self.ep * self.accumulation)
            if self.recompute == "selective":
                raise ValueError(
                    "recompute='selective' with overlap='halves' is not possible: use 'full'"
                )
        if self.cut.parts > 1:
            divides("seq", w.seq, self.cut.inside, self.cut.parts)
            if w.capacity:
                raise ValueError(
                    f"capacity={w.capacity} counts the choices of whole sequences, of which etp="
                    f"{self.etp} gives a rank a part: use etp={self.cut.tp}, or capacity=None"
                )

    def local(self, workload: GPT) -> GPT:
        """The workload of one microbatch of one rank."""
        return _part(self.within.local(self._shared(workload)), self.cut)

    def held(self, workload: GPT, rank: int = 0) -> "Held":
        return self.within.held(_part(self._shared(workload), self.cut))

    def _shared(self, workload: GPT):
        """A rank's part of the batch."""
        return workload.with_batch(workload.batch // self.ep)

    def splits(self, workload: GPT) -> dict[str, list[tuple[int, str]]]:
        at, found = self.layout, dict(self.within.splits(workload))
        mixtures = [i for i in range(workload.layers) if workload.has_experts(i)]
        for name in (f"blocks.{i}.{one}" for i in mixtures for one in workload.block_shapes(i)):
            cuts = found.get(name, [])
            if name.endswith((*OF_EXPERTS, *SHARED)) and self.cut.parts > 1:
                cuts = [cut for cut in cuts if cut[1] != at.inside]
            if name.endswith(OF_EXPERTS):
                cuts = [*cuts, (0, "ep")]
            found[name] = cuts
        return {name: cuts for name, cuts in found.items() if cuts}

    def cut_over(self, workload: GPT) -> Mapping[str, Collection[str]]:
        return TensorParallel.cut_over(self, workload)

    def flat_shapes(self, workload: GPT) -> dict[str, tuple[int, ...]]:
        return local_shapes(self, workload)

    def summed(self, workload: GPT) -> Mapping[str, tuple[str, ...]]:
        """Over ep all but experts, and what the factor inside adds up; less what it `joins`, where
        replicas are around."""
        found, joins = TensorParallel.summed(self, workload), self.joins(workload)
        left = {a: tuple(n for n in of if n not in joins.get(a, ())) for a, of in found.items()}
        return {axis: names for axis, names in left.items() if names}

    @property
    def joined(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The axis ep, where replicas are around."""
        return {"ep": self.ep} if self.ep > 1 and not self.summing else {}

    def joins(self, workload: GPT) -> Mapping[str, Collection[str]]:
        """Over ep all but experts; and over the ranks inside, where each has whole experts and
        chooses for its own tokens, these experts and their router."""
        if not self.joined:
            return {}
        cuts, joins = self.cut_over(workload), {"ep": workload.parameter_shapes()}
        if self.cut.parts > 1:
            joins[self.cut.inside] = dict.fromkeys(of_mixtures(workload), ())
        return {
            axis: {name: () for name in names if axis not in cuts.get(name, ())}
            for axis, names in joins.items()
        }

    def check_split_backward(self) -> None:
        raise ValueError(
            "gradients of experts cannot wait for a later time: use schedule='1f1b', or a workload "
            "without experts"
        )

    def pieces(self, workload: GPT, split: bool = False) -> "dict[str, list[Operation]]":
        """Those of the factor inside, on a workload that says how experts are cut."""
        if split:
            self.check_split_backward()
        return self.within.pieces(workload)

    def groups(self, mesh: "DeviceMesh", halves: int = 1) -> "Groups":
        made = self.within.groups(mesh, halves)
        made.splits = self.splits
        return made

    @classmethod
    def layouts(cls, workload: GPT, world_size: int) -> Iterator[Strategy]:
        """Every (pp, ep, tp, dp) of which ep divides the experts, with Megatron-LM's sequence
        parallelism inside, an expert on one rank of tp or on all; of one stage as data parallelism
        too; ranks of ep side by side, and with replicas inside, `ACROSS`."""
        spread = divisors(gcd(workload.experts, world_size)) if workload.experts else []
        for ep, pp, tp in product(spread[1:], divisors(world_size), divisors(world_size)):
            dp, rest = divmod(world_size, pp * ep * tp)
            if rest or not (cls.allows("ep", ep) and Megatron.allows("tp", tp)):
                continue
            inner = Megatron(tp=tp, sp=True) if tp > 1 else None
            for etp, placement in product({1, tp}, ("", ACROSS)[: 1 + (dp > 1)]):
                yield from around(cls(ep=ep, etp=etp, inner=inner), pp, dp, placement)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> Iterator[Self]:
        """All ranks on ep."""
        if workload.experts and cls.allows("ep", world_size):
            yield cls(ep=world_size)


def around(made: TensorParallel, pp: int, dp: int, placement: str = "") -> Iterator[Strategy]:
    """Yield the products of one microbatch with replicas under ZeRO-1, and with a pipeline; of one
    stage both."""
    data = DataParallel(dp=dp, zero=1)
    if pp == 1:
        yield replace(data, inner=made, placement=placement)
    if Pipeline.allows("pp", pp):
        knobs: dict[str, Any] = {"pp": pp, "microbatches": 1, "placement": placement}
        yield Pipeline(**knobs, inner=made, data=data)


@lru_cache(maxsize=1024)
def _part(workload: GPT, cut: ExpertCut) -> GPT:
    return replace(workload, cut=cut)
