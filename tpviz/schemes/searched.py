"""What `tpviz.search` asks of a strategy: variants to try, and lower bounds of their step time."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import Field, dataclass, fields, replace
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from tpviz.cluster.clock.cost import Memory
from tpviz.core.checks import divisors

from .advice import changed
from .factor import Factor
from .knobs import RECOMPUTE, microbatches

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.mesh import Mesh
    from tpviz.core.workload import GPT

    from .strategy import Strategy


@dataclass(frozen=True)
class Searched(Factor):
    """A space of strategies, and lower bounds of their seconds and bytes.

    space(workload, world_size) : strategies of this class that take all ranks.
    layouts(workload, world_size) : those that `search` begins with; microbatched(workload) : one of
    them by microbatches; choices(workload) : the knobs that it changes besides; least_of_all,
    bounds : lower bounds of their seconds.
    communication(workload, cluster, mesh) : seconds of the blocks' communication alone, by the
    scheme's own formula; the papers of ATP and AxoNN rank by it.
    """

    if TYPE_CHECKING:  # of the strategy
        accumulation: ClassVar[int]
        recompute: ClassVar[str]

        def local(self, workload: GPT) -> GPT:
            """The workload of one microbatch of one rank."""
            ...

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

    @classmethod
    def layouts(cls, workload: "GPT", world_size: int) -> "Iterator[Strategy]":
        """What `search` begins with: by default its ``space``."""
        return cast("Iterator[Strategy]", cls.space(workload, world_size))

    def microbatched(self, workload: "GPT") -> Iterator[Self]:
        """This layout with one microbatch, and with microbatches of 1 to `MICRO` rows."""
        yield self
        if "accumulation" not in self.__dataclass_fields__ or self.accumulation > 1:
            return
        with suppress(ValueError):  # fewer rows than ranks
            for count in microbatches(self.local(workload).batch)[1:]:
                if self.allows("accumulation", count):
                    yield replace(self, accumulation=count)  # pyright: ignore[reportCallIssue]

    def choices(self, workload: "GPT") -> list[dict[str, Any]]:
        """The {knob: value} dicts to try with these microbatches; by default of recomputation."""
        free = "recompute" in self.__dataclass_fields__ and self.recompute == "none"
        return [{"recompute": kind} for kind in RECOMPUTE] if free else [{}]

    def least_of_all(self, workload: "GPT", cluster: "Cluster") -> float:
        """A lower bound of the step time (s) over all `choices`; 0.0 where none is known."""
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

    def least_memory(self, workload: "GPT") -> "Memory":
        """A lower bound of a rank's bytes by kind, faster than `memory`; zeros if unknown."""
        return Memory()

    def communication(
        self, workload: "GPT", cluster: "Cluster", mesh: "Mesh | None" = None
    ) -> float:
        """Seconds of a step's communication in the blocks, by the scheme's own formula: bytes over
        bandwidth, nothing hidden. Raises ``NotImplementedError`` where a scheme has none."""
        raise NotImplementedError(
            f"{type(self).__name__} has no formula of its communication alone"
        )

    def variants(self, name: str, value: int) -> "list[Callable[[], Any]]":
        """Functions that return this strategy with a knob, or the product of several, changed to
        ``value``, perhaps in a factor of it: what `tpviz.schemes.advice` tries."""
        own, found = changed(self, name, value), list[Callable[[], Any]]()
        for place in () if own else ("inner", "data"):
            factor = getattr(self, place, None)
            if isinstance(factor, Searched):
                for made in factor.variants(name, value):
                    found.append(lambda p=place, m=made: replace(self, **{p: m()}))  # pyright: ignore[reportCallIssue]
        return own or found


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
