"""Strategies: ways to split a workload, and the knobs that people turn.

A strategy is a frozen dataclass; its fields are its knobs. `register` makes the class, so that an
unknown knob is answered with the names that exist, and lists it for widgets and command lines.

>>> from tpviz import Megatron
>>> Megatron(tq=3)
Traceback (most recent call last):
TypeError: Megatron has no knob 'tq'; its knobs are tp, sp, chunks, accumulation, recompute, offload
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, wraps
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from tpviz.cluster.clock.fast import Clock
from tpviz.core.checks import divides
from tpviz.core.mesh import Mesh
from tpviz.core.step import count, interned, ready_order

from .advice import with_advice
from .knobs import settle_knobs
from .searched import Searched

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.cluster import Cluster, Device
    from tpviz.cluster.clock.cost import Memory, Segment
    from tpviz.core.step import Step
    from tpviz.core.trace import Ledger
    from tpviz.core.workload import GPT

    from .gpt.pointwise import Held
    from .gpt.program import Program

_Class = TypeVar("_Class", bound="Strategy")
_REGISTERED: "dict[str, type[Strategy]]" = {}


@dataclass_transform(frozen_default=True)
def register(cls: type[_Class]) -> type[_Class]:
    """Class decorator: a frozen dataclass with checked knobs, listed by `strategies`."""
    cls = dataclass(frozen=True)(cls)
    names, make = [f.name for f in fields(cls)], cls.__init__

    @wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any):
        unknown = [name for name in kwargs if name not in names]
        if unknown:
            raise TypeError(
                f"{cls.__name__} has no knob {unknown[0]!r}; its knobs are {', '.join(names)}"
            )
        make(self, *args, **kwargs)

    cls.__init__, cls.check = __init__, with_advice(cls.check)  # pyright: ignore[reportAttributeAccessIssue]
    cls.scheme = cls.scheme or cls.__module__.rpartition(".")[0]
    _REGISTERED[cls.__name__] = cls
    return cls


def registered() -> "dict[str, type[Strategy]]":
    """{name: class} of what `register` has made so far; `tpviz.strategies` loads all schemes."""
    return dict(_REGISTERED)


@dataclass(frozen=True)
class Strategy(Searched):
    """One way to split a workload over ranks: a `tpviz.schemes.factor.Factor` of products, and
    `Searched`. What a scheme must offer, as docs/add-a-scheme.md shows:

    axes : {"dp": 2, "tp": 2}, outer first.
    check(workload) : raises ``ValueError`` with the sizes that clash and the nearest that work.
    step(workload) : one step of rank 0 as data, `tpviz.core.step`.
    ledger(workload) : the `Ledger` of one step of rank 0, from it. ledger_of(workload, rank) :
    of any rank; by default the same.
    cost(workload, cluster, mesh) : the `tpviz.cluster.clock.cost.Segment` list of one step of one
    rank, from it; ``mesh`` is the strategy's own unless another strategy is around it.
    memory(workload) : the `tpviz.cluster.clock.cost.Memory` of one rank, by formula.
    held(workload, rank) : the `tpviz.schemes.gpt.pointwise.Held` of a rank.
    build(workload, mesh, dtype, device, lr) : this rank's `tpviz.schemes.gpt.program.Program`;
    torch's dtype and ``DeviceMesh``, every argument after the workload optional where the strategy
    needs no group.
    clip : gradients of a larger norm are scaled down to this one; 0: no clipping.
    accumulation : microbatches of a step. recompute, offload : of a GPT's blocks, as `knobs` says.
    updates : of the parameters in one step. reference(workload, device) : the `Program` of one
    process that has the same numbers, where AdamW on the whole batch has others.
    local(workload) : the workload of one microbatch of one rank.
    shares_batch : the knob by which it splits the batch itself, so that no `DataParallel` is put
    around it; "" if it does not.
    parent_axis : {ledger axis that is not a mesh axis: the mesh axis it is part of}.
    scheme : the package of the scheme's files; one that derives from another has that one's.
    searched : whether `search` tries its space where nobody says what to try.
    alike : True if all ranks run the same program but for their place in the mesh, so that
    `tpviz.capture` records only one; or the axes along which they do; False: not known.
    """

    shares_batch, alike, scheme = "", False, ""
    parent_axis, searched = MappingProxyType({}), True
    clip, accumulation, recompute, offload, updates = 0.0, 1, "none", 0, 1

    def __post_init__(self):
        settle_knobs(self)

    def check(self, workload: "GPT") -> None:
        """Accepts any workload; schemes override it."""

    def local(self, workload: "GPT") -> "GPT":
        """The workload of one microbatch of one rank."""
        return workload.with_batch(workload.batch // self.accumulation)

    @property
    def recompute_in_blocks(self) -> str:
        """The value of `RECOMPUTE` that each block applies by itself."""
        return self.recompute

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        """{parameter name: [(dim, axis)]} of the sharded parameters; none by default."""
        return {}

    def summed(self, workload: "GPT") -> Mapping[str, Sequence[str]]:
        """{axis: parameters whose gradients are added up over it once, when backward has ended}:
        axes over which tokens are shared, but those that cut the parameter; none by default."""
        return {}

    def partial(self, workload: "GPT") -> Collection[str]:
        """Parameters whose gradients are still partial sums when backward ends, by `summed`."""
        return dict.fromkeys(name for names in self.summed(workload).values() for name in names)

    def step(self, workload: "GPT") -> "Step":
        """One step of rank 0 as data. Raises ``NotImplementedError`` where a scheme has none."""
        raise NotImplementedError(f"{type(self).__name__} has no formula: its `step` is not given")

    def ledger(self, workload: "GPT") -> "Ledger":
        """The `Ledger` of one step of rank 0, by formula; raises as `check` and `step`."""
        self.check(workload)
        return _ledger(self, workload if workload.place else seen_by(self, workload, 0))

    def ledger_of(self, workload: "GPT", rank: int) -> "Ledger":
        """The `Ledger` of one step of a rank; schemes whose ranks differ override it."""
        return self.ledger(seen_by(self, workload, rank))

    def cost(
        self, workload: "GPT", cluster: "Cluster", mesh: "Mesh | None" = None
    ) -> "list[Segment]":
        """Segments of one step of a rank; raises as `step`."""
        mesh, device = mesh or Mesh(self.axes), self.device(workload, cluster)
        clock = Clock.of(cluster, mesh, workload.dtype, self.parent_axis, device)
        return clock.run(step_of(self, workload))

    def device(self, workload: "GPT", cluster: "Cluster", rank: int = 0) -> "Device":
        """The cluster's device as a rank's kernels see it: the time of memory-bound kernels is
        spread over the others, unless they are free. Raises ``ValueError`` where `held` does."""
        if cluster.device.plain:
            return cluster.device
        return import_module("tpviz.schemes.gpt.pointwise").spread(
            cluster.device, self.held(workload, rank)
        )

    def held(self, workload: "GPT", rank: int = 0) -> "Held":
        """A rank's share of the tensors that memory-bound kernels read and write. Raises
        ``ValueError`` where a scheme does not define it."""
        raise ValueError(
            f"{type(self).__name__} does not say what its memory-bound kernels are: "
            'use a device with pointwise="free", attention="flash" and attention_efficiency=1'
        )

    def memory(self, workload: "GPT") -> "Memory":
        """Bytes of a rank. Raises ``NotImplementedError`` where a scheme has no formula."""
        raise NotImplementedError(f"{type(self).__name__} has no formula of its memory")

    @property
    def copies(self) -> int:
        """The number of ranks that hold the same part of the activations between two layers."""
        return 1

    def build(
        self,
        workload: "GPT",
        mesh: "DeviceMesh",
        dtype: "torch.dtype | None" = None,
        device: "torch.device | str" = "cpu",
        **options: Any,
    ) -> "Program":
        """This rank's `Program`, by ``build`` of the ``program.py`` in the scheme's folder."""
        self.check(workload)
        program = import_module(f"{self.scheme}.program")
        made = program.build(self, workload, mesh, dtype, device, **options)
        import_module("tpviz.schemes.gpt.model").recompute(made.module, self.recompute_in_blocks)
        import_module("tpviz.schemes.gpt.offload").offload(made.module, self.offload)
        if workload.bias_balance:
            import_module("tpviz.schemes.experts.balance").balance(self, workload, mesh, made)
        return made


@lru_cache(maxsize=32)  # a large model's is thousands of tuples
def step_of(strategy: Strategy, workload: "GPT") -> "Step":
    """`Strategy.step`, cached, since ledger and cost both need it, and what biases send behind."""
    balance = import_module("tpviz.schemes.experts.balance") if workload.bias_balance else None
    more = balance.balancing(strategy, workload) if balance else ()
    return interned([*strategy.step(workload), *more])


@lru_cache(maxsize=256)
def _ledger(strategy: Strategy, workload: "GPT"):
    axes = strategy.axes
    parents = {axis: axes[parent] for axis, parent in strategy.parent_axis.items()}
    return count(step_of(strategy, workload), axes | parents)


def seen_by(strategy: Strategy, workload: "GPT", rank: int) -> "GPT":
    """The workload with the place of a rank, where ranks have more or less to do by it."""
    if not workload.experts:
        return workload
    return replace(workload, place=tuple(Mesh(strategy.axes).coords(rank).items()))


def microbatch(strategy: Strategy, workload: "GPT") -> "GPT":
    """`Strategy.local`; ``ValueError`` where ``accumulation`` does not divide the batch."""
    divides("batch", workload.batch, "accumulation", strategy.accumulation)
    return strategy.local(workload)


def gradient_ready_order(strategy: Strategy, workload: "GPT") -> list[str]:
    """Parameter names in the order in which backward completes their gradients. Raises
    ``NotImplementedError`` where a strategy's step does not say."""
    order = ready_order(step_of(strategy, workload))
    if not order:
        raise NotImplementedError(
            f"{type(strategy).__name__} does not say when its gradients are complete"
        )
    return order
