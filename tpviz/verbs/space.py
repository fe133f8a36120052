"""What a search may try: layouts, each by microbatches, each with every choice of its other knobs.

A layout and its number of microbatches are a `Cell`, of which the search knows how fast it can be
at most before it looks inside; a large space is never made whole.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from math import gcd
from typing import TYPE_CHECKING, Any

from tpviz.cluster.profiles import framework_of
from tpviz.core.checks import divisors, one_of
from tpviz.schemes import strategies as registered
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.knobs import RECOMPUTE
from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.strategy import Strategy

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

Kind = type[Strategy] | str | Strategy
LONG, PART = 8192, 2048
"""Tokens of a sequence from which on a search cuts it by itself, the shortest that published runs
cut but for toys; and of its parts at least, half of what those have."""
GIVE = (
    "give classes such as tv.Megatron, their names, or strategies such as tv.Megatron(tp=2); "
    "several in a list"
)


class Cell:
    """A layout with its number of microbatches, and the ``choices`` of the rest: changes of knobs.
    ``bound`` : `Strategy.bounds`, once it was asked for."""

    def __init__(
        self,
        strategy: Strategy,
        workload: "GPT",
        alone: bool = False,
        choices: Sequence[Mapping[str, Any]] = (),
    ):
        self.strategy, self._workload, self.alone = strategy, workload, alone
        self._choices = choices
        self.bound: Callable[..., float] = lambda choice, closely=False: 0.0

    @cached_property
    def choices(self) -> Sequence[Mapping[str, Any]]:
        """The {knob: value} dicts to try; one, empty, for a strategy that the user gave."""
        if self.alone:
            return [{}]
        return self._choices or self.strategy.choices(self._workload)

    @cached_property
    def groups(self) -> Mapping[Any, Sequence[Mapping[str, Any]]]:
        """{items that they share: choices} by ZeRO's stage, or the replicas around a product, and
        recomputation, which decide most of a bound; none where these are few."""
        found = {}
        for choice in self.choices:
            shared = tuple((k, choice[k]) for k in ("zero", "data", "recompute") if k in choice)
            found.setdefault(shared, []).append(choice)
        return found if len(self.choices) > 2 * len(found) else {}

    def made(self, choice: Mapping[str, Any]) -> Strategy:
        """The layout with the knobs of one of the `choices`."""
        return replace(self.strategy, **choice) if choice else self.strategy

    def has(self, strategy: Strategy) -> bool:
        """Whether ``strategy`` is one of the cell's."""
        return strategy.axes == self.strategy.axes and strategy in map(self.made, self.choices)


def cells(
    workload: "GPT",
    world_size: int,
    strategies: Kind | Iterable[Kind] | None = None,
    plain: bool = False,
) -> Iterator[Cell]:
    """The `Cell`s of what may be tried; `search` says what may be given.

    A class that has an ``inner`` is multiplied with those that have none: every way to share the
    ranks between the two; a pipeline's own layouts are products. plain : only the classes' own
    ``space``, of one microbatch.
    """
    given = tried(workload, strategies, () if plain else also(workload))
    yield from (Cell(s, workload, True) for s in given if isinstance(s, Strategy))
    for layout in _layouts(workload, world_size, given, plain):
        for one in (layout,) if plain else layout.microbatched(workload):
            yield Cell(one, workload, plain)


def also(workload: "GPT") -> tuple[type[Strategy], ...]:
    """Classes tried besides those that are ``searched``: `Context` where sequences are long, and
    `Experts` where there are some."""
    return (Context,) * (workload.seq >= LONG) + (Experts,) * bool(workload.experts)


def usual(
    workload: "GPT",
    cluster: "Cluster",
    world_size: int,
    every: bool = False,
    strategies: Collection[Any] | None = None,
) -> Iterator[Cell]:
    """What people run on such a cluster, which is looked at first: pipelines, of one stage too, of
    one sequence a microbatch, 1F1B or interleaved as deep as layers divide, tp inside a node with
    sequence parallelism, ZeRO as the cluster's framework has it, long sequences on a ring of
    balanced parts of `PART` tokens or more, and experts over replicas, one on a rank of tp or on
    all. every : ZeRO 2 and 3 too. strategies : of these
    classes; by default `also` those for the workload."""
    framework, node = framework_of(cluster), cluster.levels[0].units if cluster.levels else 1
    fsdp, parts = framework == "FSDP", min(workload.seq // PART, world_size)
    given = also(workload) if strategies is None else strategies
    most = workload.experts if Experts in given else 1
    for cp in (d for d in divisors(world_size) if d == 1 or (Context in given and d <= parts)):
        for plan in Merak.layouts(workload, world_size // cp):
            count, replicas = workload.batch // plan.dp, plan.dp * cp
            split = plan.sp or (plan.tp == 1 and not plan.subpipeline)
            if not (split and plan.tp <= node and 0 < count <= 1024):
                continue
            if fsdp and replicas < world_size:
                continue
            made = replace(plan, microbatches=count, zero=(3 if fsdp else 1) * (replicas > 1))
            zeros = (1, 2, 3) if every and replicas > 1 else (made.zero,)
            choices = _usual_choices(made, workload, zeros)
            for ep in divisors(gcd(most, plan.dp)) if most > 1 else (1,):
                for etp in sorted({1, plan.tp}) if ep > 1 else (1,):
                    own = [Experts(ep=ep, etp=etp)] * (ep > 1) + [Context(cp=cp)] * (cp > 1)
                    shared = replace(made, dp=plan.dp // ep)
                    yield _product(shared, own, workload, choices)


def _product(plan, others, workload, choices):
    """A cell of Merak's plans and other factors; ZeRO is the replicas'."""
    if not others:
        return Cell(plan, workload, choices=choices)
    made = reduce(lambda one, other: one * other, others, plan)
    data = {zero: replace(made.data, zero=zero) for zero in range(4)}
    own = [{**c, "data": data[c["zero"]]} for c in choices]
    return Cell(made, workload, choices=[{k: c[k] for k in c if k != "zero"} for c in own])


def _usual_choices(plan, workload, zeros):
    deep = [
        n
        for n in range(2, 17)
        if plan.pp > 1 and workload.layers % (n * plan.pp) == 0 and plan.microbatches % plan.pp == 0
    ]
    orders = [{"schedule": "1f1b"}]
    orders += [{"schedule": "interleaved_1f1b", "chunks": n} for n in deep[-1:]]
    found = [{**order, "recompute": kind} for order in orders for kind in RECOMPUTE]
    return [{**choice, "zero": zero} for zero in zeros for choice in found]


def _layouts(workload, world_size, given, plain):
    classes = list(dict.fromkeys(s for s in given if isinstance(s, type)))
    of = lambda cls: cls.space if plain else cls.layouts
    for cls in classes:
        yield from of(cls)(workload, world_size)
    free = [c for c in classes if not c.shares_batch and not hasattr(c, "stages")]
    outer = [c for c in free if "inner" in c.__dataclass_fields__]
    inside = [c for c in free if c not in outer]
    for ranks in divisors(world_size)[1:-1]:
        for around in (s for c in outer for s in of(c)(workload, ranks)):
            for inner in (s for c in inside for s in of(c)(workload, world_size // ranks)):
                if inner.axes.keys().isdisjoint(around.axes):
                    yield replace(around, inner=inner)


def space(
    workload: "GPT",
    world_size: int,
    strategies: Kind | Iterable[Kind] | None = None,
) -> Iterator[Strategy]:
    """The strategies to try, none twice, as they are made: of many ranks there are very many."""
    seen = set()
    for cell in cells(workload, world_size, strategies):
        for strategy in map(cell.made, cell.choices):
            if strategy not in seen:
                seen.add(strategy)
                yield strategy


def tried(
    workload: "GPT", strategies: Kind | Iterable[Kind] | None, more: Iterable[type[Strategy]] = ()
) -> list[type[Strategy] | Strategy]:
    """As `kinds`; None: but for classes that do not split the workload's blocks."""
    found = kinds(strategies, more)
    if strategies is None and (workload.experts or workload.kv_lora):
        return [cls for cls in found if getattr(cls, "every_block", True)]
    return found


def kinds(
    strategies: Kind | Iterable[Kind] | None, more: Iterable[type[Strategy]] = ()
) -> list[type[Strategy] | Strategy]:
    """The classes and strategies that were given, names looked up; None: all registered classes
    that are ``searched`` by default, and ``more``. Raises ``ValueError`` for what is neither."""
    known = registered()
    usually = [*(cls for cls in known.values() if cls.searched), *more]
    given = _listed(usually if strategies is None else strategies)
    given = [known[one_of("strategy", s, tuple(known))] if isinstance(s, str) else s for s in given]
    for s in given:
        if not isinstance(s, Strategy) and not (isinstance(s, type) and issubclass(s, Strategy)):
            raise ValueError(f"strategies has {s!r}: {GIVE}")
    return list(dict.fromkeys(given))


def _listed(strategies: Any) -> list[Any]:
    """A list of what was given: one thing alone is a list of one."""
    if isinstance(strategies, (str, type, Strategy)):
        return [strategies]
    if not isinstance(strategies, Iterable):
        raise ValueError(f"strategies={strategies!r}: {GIVE}")
    return list(strategies)
