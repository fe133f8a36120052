"""Strategies: ways to split a workload, and the knobs that people turn.

A strategy is a frozen dataclass; its fields are its knobs. `register` makes the class, so that an
unknown knob is answered with the names that exist, and lists it for widgets and command lines.

>>> from tpviz import Megatron
>>> Megatron(tq=3)
Traceback (most recent call last):
TypeError: Megatron has no knob 'tq'; its knobs are tp, sp, chunks, accumulation, recompute
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import lru_cache, wraps
from importlib import import_module
from inspect import getdoc
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, dataclass_transform

from tpviz.cluster.clock.cost import Clock, Memory
from tpviz.core.checks import divides, divisors, number, one_of, settle, some_of, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.step import count, interned, ready_order

from .advice import changed, with_advice

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.cluster import Cluster, Device
    from tpviz.cluster.clock.cost import Segment
    from tpviz.core.step import Step
    from tpviz.core.trace import Ledger
    from tpviz.core.workload import GPT

    from .gpt.pointwise import Held
    from .gpt.program import Program

_Class = TypeVar("_Class", bound="Strategy")
_REGISTERED: "dict[str, type[Strategy]]" = {}


def knob(
    default: Any,
    *,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
    own: Callable[..., Any] | None = None,
) -> Any:
    """A field of a strategy that people turn: default, one line of help, and bounds or choices.

    ints with ``low``/``high`` become sliders, ``choices`` become menus, bools check boxes. Where
    the default is a tuple, any number of ``choices`` may be chosen. own : function (name, value,
    choices) that checks values beside the choices, and gives them as plain ones.
    """
    bounds = {"help": help, "low": low, "high": high, "choices": choices, "own": own}
    return field(default=default, metadata=bounds)


def accumulation_knob() -> Any:
    """The microbatches of a step, one after another on the same ranks."""
    return knob(1, help="microbatches of which gradients add up", low=1, high=1024)


RECOMPUTE = ("none", "selective", "full")
MICRO = 8
"""Rows of the largest microbatch that `search` tries, where a step has several."""


def microbatches(rows: int) -> list[int]:
    """Into how many microbatches of 1 to `MICRO` rows a rank's rows can be cut; or into one.

    >>> microbatches(12)
    [1, 2, 3, 4, 6, 12]
    """
    return sorted({1, *(rows // n for n in range(min(MICRO, rows), 0, -1) if rows % n == 0)})


def recompute_knob() -> Any:
    """What backward computes anew: the scores of attention ("selective"), or whole blocks.

    Korthikanti et al. 2022 (arXiv 2205.05198), sections 4.1 and 5. "selective" drops what lies
    between the features of queries, keys and values and attention's output. Our attention is fused
    and never keeps scores, so this frees little: log-sum-exps, and the copies that rotary
    positions and shared keys need; it computes attention's core again all the same. "full" keeps a
    block's input; its forward runs again, with all its collectives.
    """
    return knob(
        "none",
        help="what backward recomputes: attention's core (selective), or every block (full)",
        choices=RECOMPUTE,
    )


def settle_knobs(owner: Any) -> None:
    """Check the fields of a frozen dataclass that `knob` made, and keep them as plain values.

    Raises ``ValueError`` for one that is not of its kind, or out of its bounds or choices.
    """
    for f in fields(owner):
        bounds = f.metadata
        if not bounds or f.default is MISSING:
            continue
        if bounds["choices"] is not None:
            check = bounds["own"] or (some_of if isinstance(f.default, tuple) else one_of)
            settle(owner, f.name, check, bounds["choices"])
        elif isinstance(f.default, bool):
            settle(owner, f.name, one_of, (True, False))
        elif isinstance(f.default, (int, float)):
            kind = whole_number if isinstance(f.default, int) else number
            settle(owner, f.name, kind, bounds["low"], bounds["high"])


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
class Strategy:
    """One way to split a workload over ranks. What a scheme must offer; see docs/architecture.md.

    axes : {"dp": 2, "tp": 2}, outer first.
    check(workload) : raises ``ValueError`` with the sizes that clash and the nearest that work.
    step(workload) : one step of rank 0 as data, `tpviz.core.step`.
    ledger(workload) : the `Ledger` of one step of rank 0, from it. ledger_of(workload, rank) :
    of any rank; by default the same.
    cost(workload, cluster, mesh) : the `tpviz.cluster.clock.cost.Segment` list of one step of one
    rank, from it; ``mesh`` is the strategy's own unless another strategy is around it.
    memory(workload) : the `tpviz.cluster.clock.cost.Memory` of one rank, by formula.
    held(workload, rank) : the `tpviz.schemes.gpt.pointwise.Held` of a rank.
    communication(workload, cluster, mesh) : seconds of the blocks' communication alone, by the
    scheme's own formula; the papers of ATP and AxoNN rank by it.
    space(workload, world_size) : strategies of this class that take all ranks.
    layouts(workload, world_size) : those that `search` begins with; microbatched(workload) : one of
    them by microbatches; choices(workload) : the knobs that it changes besides; least_of_all,
    bounds : lower bounds of their seconds.
    build(workload, mesh, dtype, device, lr) : this rank's `tpviz.schemes.gpt.program.Program`;
    torch's dtype and ``DeviceMesh``, every argument after the workload optional where the strategy
    needs no group.
    clip : gradients of a larger norm are scaled down to this one; 0: no clipping.
    accumulation : microbatches of a step. recompute : of `RECOMPUTE`, for a GPT's blocks.
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
    clip, accumulation, recompute = 0.0, 1, "none"

    if TYPE_CHECKING:  # of the schemes

        @property
        def axes(self) -> dict[str, int]:
            """{"dp": 2, "tp": 2}, outer first."""
            ...

    def __post_init__(self):
        settle_knobs(self)

    def check(self, workload: "GPT") -> None:
        """Accepts any workload; schemes override it."""

    def local(self, workload: "GPT") -> "GPT":
        """The workload of one microbatch of one rank."""
        return workload.with_batch(workload.batch // self.accumulation)

    def check_microbatches(self, workload: "GPT") -> "GPT":
        """`local`; ``ValueError`` where ``accumulation`` does not divide the batch."""
        divides("batch", workload.batch, "accumulation", self.accumulation)
        return self.local(workload)

    @property
    def recompute_in_blocks(self) -> str:
        """The part of ``recompute`` that blocks do by themselves, of `RECOMPUTE`."""
        return self.recompute

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.axes.values())

    @property
    def factors(self) -> "tuple[Strategy, ...]":
        """What is multiplied, from the inside out."""
        inner, around = getattr(self, "inner", None), getattr(self, "data", None)
        outer = (around,) if isinstance(around, Strategy) else ()
        return (*((inner,) if inner else ()), self, *outer)

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
        axes = self.axes
        words = [
            f"{f.name}={'own' if len(str(value).splitlines()) > 1 else repr(value)}"
            for f in fields(self)
            if f.metadata
            if (value := getattr(self, f.name)) != f.default or f.name in axes
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
            others = [other.axes for other in factors if other is not one] if one is self else []
            inside = {axis for axes in others for axis in axes}
            own = (f"{a} {n}" for a, n in one.axes.items() if n > 1 and a not in inside)
            words.append(" ".join([type(one).__name__, *own]))
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

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        """{parameter name: [(dim, axis)]} of the sharded parameters; none by default."""
        return {}

    def partial(self, workload: "GPT") -> Collection[str]:
        """Parameters whose gradients are still partial sums when backward ends; none by default."""
        return ()

    def step(self, workload: "GPT") -> "Step":
        """One step of rank 0 as data. Raises ``NotImplementedError`` where a scheme has none."""
        raise NotImplementedError(f"{type(self).__name__} has no formula: its `step` is not given")

    def ledger(self, workload: "GPT") -> "Ledger":
        """The `Ledger` of one step of rank 0, by formula; raises as `check` and `step`."""
        self.check(workload)
        return _ledger(self, workload)

    def ledger_of(self, workload: "GPT", rank: int) -> "Ledger":
        """The `Ledger` of one step of a rank; schemes whose ranks differ override it."""
        return self.ledger(workload)

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
        if cluster.device.pointwise == "free":
            return cluster.device
        return import_module("tpviz.schemes.gpt.pointwise").spread(
            cluster.device, self.held(workload, rank)
        )

    def held(self, workload: "GPT", rank: int = 0) -> "Held":
        """A rank's share of the tensors that memory-bound kernels read and write. Raises
        ``ValueError`` where a scheme does not define it."""
        raise ValueError(
            f"{type(self).__name__} does not say what its memory-bound kernels are: "
            'use a device with pointwise="free"'
        )

    def memory(self, workload: "GPT") -> "Memory":
        """Bytes of a rank. Raises ``NotImplementedError`` where a scheme has no formula."""
        raise NotImplementedError(f"{type(self).__name__} has no formula of its memory")

    def least_memory(self, workload: "GPT") -> "Memory":
        """A lower bound of a rank's bytes by kind, where one is found faster than `memory`; else
        none of any kind."""
        return Memory()

    def communication(
        self, workload: "GPT", cluster: "Cluster", mesh: "Mesh | None" = None
    ) -> float:
        """Seconds of a step's communication in the blocks, by the scheme's own formula: bytes over
        bandwidth, nothing hidden. Raises ``NotImplementedError`` where a scheme has none."""
        raise NotImplementedError(
            f"{type(self).__name__} has no formula of its communication alone"
        )

    def variants(self, name: str, value: int) -> "list[Callable[[], Strategy]]":
        """Functions that return this strategy with a knob, or the product of several, changed to
        ``value``: what `tpviz.schemes.advice` tries."""
        return changed(self, name, value)

    @property
    def copies(self) -> int:
        """How many ranks hold the same part of the hidden activations between two layers."""
        return 1

    def gradient_ready_order(self, workload: "GPT") -> list[str]:
        """Parameter names in the order in which backward completes their gradients. Raises
        ``NotImplementedError`` where a scheme's step does not say."""
        order = ready_order(step_of(self, workload))
        if not order:
            raise NotImplementedError(
                f"{type(self).__name__} does not say when its gradients are complete"
            )
        return order

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
        return made

    @classmethod
    def space(cls, workload: "GPT", world_size: int) -> Iterator[Self]:
        """Every combination of the knobs that takes all ranks.

        Menus and check boxes take all their values, whole numbers the divisors of ``world_size``
        within their bounds, other numbers their defaults.
        """
        knobs = [f for f in fields(cls) if f.metadata]
        for chosen in product(*(_values(f, world_size) for f in knobs)):
            strategy = cls(**{f.name: value for f, value in zip(knobs, chosen)})
            if strategy.world_size == world_size:
                yield strategy

    # -- what `search` tries, and how fast it can be at most ---------------------------------------
    @classmethod
    def layouts(cls, workload: "GPT", world_size: int) -> "Iterator[Strategy]":
        """What `search` begins with: by default its ``space``."""
        return cls.space(workload, world_size)

    def microbatched(self, workload: "GPT") -> Iterator["Strategy"]:
        """This layout by microbatches: one alone, and those of 1 to `MICRO` rows."""
        yield self
        if "accumulation" not in self.__dataclass_fields__ or self.accumulation > 1:
            return
        with suppress(ValueError):  # fewer rows than ranks
            for count in microbatches(self.local(workload).batch)[1:]:
                if self.allows("accumulation", count):
                    yield replace(self, accumulation=count)  # pyright: ignore[reportCallIssue]

    def choices(self, workload: "GPT") -> list[dict[str, Any]]:
        """{knob: value} of all that is tried with these microbatches: by default recomputation."""
        free = "recompute" in self.__dataclass_fields__ and self.recompute == "none"
        return [{"recompute": kind} for kind in RECOMPUTE] if free else [{}]

    def least_of_all(self, workload: "GPT", cluster: "Cluster") -> float:
        """A lower bound of the seconds of a step of all `choices`; 0 where nothing is known."""
        return import_module("tpviz.schemes.gpt.bounds").computing(self, workload, cluster)

    def bounds(self, workload: "GPT", cluster: "Cluster") -> Callable[..., float]:
        """A function (choice, closely=False) that gives a lower bound of the seconds of one of
        `choices`; ``closely``, a nearer one, which takes longer."""
        return import_module("tpviz.schemes.gpt.bounds").by_layers(self, workload, cluster)

    @classmethod
    def allows(cls, name: str, value: float) -> bool:
        """Whether a number is within the bounds of the knob ``name``."""
        bounds = cls.__dataclass_fields__[name].metadata
        low, high = bounds["low"], bounds["high"]
        return (low is None or value >= low) and (high is None or value <= high)

    # -- products ----------------------------------------------------------------------------------
    def takes(self, other: "Strategy") -> "Strategy | None":
        """The product with another factor where it is this one's part; None where it is not."""
        return None

    def __mul__(self, other: Any) -> "Strategy":
        """Several strategies at once, in any order: ``Megatron(tp=2) * DataParallel(dp=2)``."""
        pairs = ((other, self), (self, other)) if isinstance(other, Strategy) else ()
        for outer, inner in pairs:
            if (made := outer.takes(inner)) is not None:
                return made
        raise ValueError(
            f"cannot combine {self!r} with {other!r}: a product has at most one factor that cuts "
            "blocks (Megatron, ATP, AxoNN, T3), one Pipeline and one DataParallel; Merak is a "
            "product of all three"
        )

    def with_order(self, order: str) -> Self:
        """The product with its axes in another order of ranks, innermost first as Megatron-LM
        writes it: "tp-dp-pp". Words of axes that it does not have mean nothing."""
        if "placement" not in self.__dataclass_fields__:
            raise ValueError(
                f"{self.short} is one factor, whose own knobs order its axes "
                f"{', '.join(self.axes)}: multiply it first, as with DataParallel(dp=...)"
            )
        return replace(self, placement=order)  # pyright: ignore[reportCallIssue]


def placed(axes: "dict[str, int]", order: str) -> "dict[str, int]":
    """Axes, outer first, in an order as of `Strategy.with_order`; "": as they are. Raises
    ``ValueError`` where the order leaves one of them out."""
    if not order:
        return axes
    words = [word for word in reversed(order.split("-")) if word in axes]
    missing = [axis for axis, size in axes.items() if axis not in words and size > 1]
    if missing or len(set(words)) < len(words):
        raise ValueError(
            f"order={order!r} must name each axis of {', '.join(axes)} once, innermost first: use "
            f"{'-'.join(reversed(axes))!r}"
        )
    return {axis: axes[axis] for axis in (*(a for a in axes if a not in words), *words)}


@lru_cache(maxsize=32)  # a large model's is thousands of tuples
def step_of(strategy: Strategy, workload: "GPT") -> "Step":
    """`Strategy.step`, made once: the ledger and the cost, on any cluster, both ask for it."""
    return interned(strategy.step(workload))


@lru_cache(maxsize=256)
def _ledger(strategy: Strategy, workload: "GPT"):
    axes = strategy.axes
    parents = {axis: axes[parent] for axis, parent in strategy.parent_axis.items()}
    return count(step_of(strategy, workload), axes | parents)


def _values(f: Field[Any], world_size: int):
    """What `Strategy.space` tries for one knob."""
    bounds, default = f.metadata, f.default
    if bounds["choices"] is not None and not isinstance(f.default, tuple):
        return bounds["choices"]
    if isinstance(default, bool):
        return (False, True)
    if not isinstance(default, int):
        return (default,)
    low, high = bounds["low"] or 1, bounds["high"] or world_size
    return [d for d in divisors(world_size) if low <= d <= high]
