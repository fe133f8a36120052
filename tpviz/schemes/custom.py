"""A scheme of your own: a function that builds a rank's program on ``torch.distributed``.

def data_parallel(workload, mesh):
    model, group = tv.reference_model(workload), mesh.get_group("dp")
    n, rank = group.size(), group.rank()

    def step(batch):
        loss = model(*[rows.chunk(n)[rank] for rows in batch])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad /= n
        return loss

    return model, step

tv.verify(tv.Custom({"dp": 2}, data_parallel), tv.GPT())
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpviz.cluster.clock.cost import Segment
from tpviz.core.checks import one_of, whole_numbers
from tpviz.core.mesh import Mesh
from tpviz.core.trace.ledger import Ledger

from .strategy import Strategy

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

    from .gpt.program import Program


@dataclass(frozen=True, init=False, repr=False)
class Custom(Strategy):
    """A strategy whose program a function of yours builds on each rank.

    Parameters
    ----------
    axes : {"dp": 2, "tp": 2}, the mesh, outer first.
    build : function (workload, mesh) of a rank, with torch's ``DeviceMesh``; called with the
        rank's device and the workload's dtype as torch's defaults. It may be defined in a notebook
        cell. It returns ``model``, ``(model, step)`` or ``(model, step, update)``:

        model : ``nn.Module`` with the parameter names of `tpviz.reference_model`, modules
            ``embed`` and ``head``, and on each rank an even part of each parameter's initial value,
            or all of it, or of a parameter nothing at all.
        step : function of the whole batch, (inputs, targets), each (batch, seq): forward, backward
            and the synchronisation of gradients, phase "sync" where it reduces after backward.
            Returns the mean loss of the rows that this rank saw, or None. Gradients are None before
            it. By default ``model(*batch)`` and backward.
        update : function without arguments: the optimizer step, phase "optimizer". By default AdamW
            on the gradients in ``p.grad``. A parameter whose ``p.grad`` is None on every rank,
            because ranks keep only shards of its gradient, is compared after the update alone.
    ledger : function of the workload: the collectives of rank 0's step, as a `Ledger` or rows
        (axis, collective, phase, count, payload bytes of each). None: no formula.
    chunks : {axis: numbers of chunks}, for ranks whose parts are in another order: what is cut over
        "cp" with {"cp": (0, 3, 1, 2)} is cut into 4 chunks, of which rank 0 has 0 and 3, rank 1 has
        1 and 2. A permutation of the indices themselves is one of chunks of 1. Both this order and
        the plain one are looked for.
    cost : function (workload, cluster): seconds of a step's kernels and of exposed communication by
        axis, {"compute": 0.1, "dp": 0.02}; or a number, all of it compute; or a list of
        `tpviz.cluster.clock.cost.Segment`. None: no formula, so nothing is predicted.

    Raises ``ValueError`` for axes that are no mesh, for anything that is no function, and for
    chunks that are no permutation of equally many for each rank.
    """

    mesh: Mesh
    program: Callable[..., Any]
    formula: Callable[..., Any] | None
    seconds: Callable[..., Any] | None
    order: tuple[tuple[str, tuple[int, ...]], ...]

    shares_batch = "axes"

    def __init__(
        self,
        axes: Mapping[str, int],
        build: Callable[..., Any],
        ledger: Callable[..., Any] | None = None,
        cost: Callable[..., Any] | None = None,
        chunks: "Mapping[str, Iterable[int]] | None" = None,
    ):
        for name, value in (("build", build), ("ledger", ledger), ("cost", cost)):
            if not callable(value) and (value is not None or name == "build"):
                raise ValueError(f"{name}={value!r} is no function: see tv.Custom")
        if not isinstance(chunks, Mapping | None):
            raise ValueError(
                f"chunks={chunks!r} names no axis: use chunks={{{next(iter(axes))!r}: ...}}"
            )
        order = tuple((axis, _order(axis, of, axes)) for axis, of in (chunks or {}).items())
        made: dict[str, Any] = {"mesh": Mesh(axes), "program": build, "formula": ledger}  # pyright: ignore[reportArgumentType]
        made |= {"seconds": cost, "order": order}
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def chunks(self) -> dict[str, tuple[int, ...]]:
        """{axis: numbers of chunks, rank after rank} of what is cut in another order."""
        return dict(self.order)

    @property
    def axes(self) -> dict[str, int]:
        return self.mesh.axes

    @property
    def name(self) -> str:
        """The name of the user's function."""
        function = getattr(self.program, "func", self.program)  # of a functools.partial
        return getattr(function, "__name__", type(function).__name__)

    @property
    def short(self) -> str:
        return f"Custom({self.axes}, {self.name})"

    def __repr__(self):
        return self.short

    @property
    def caption(self) -> str:
        """The function's name and all axes."""
        return " ".join([self.name, *(f"{axis} {n}" for axis, n in self.axes.items())])

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        """Empty: only the ranks' programs know how parameters are split."""
        raise NotImplementedError(f"{self.short} does not say which parameters it splits")

    def ledger(self, workload: "GPT") -> Ledger:
        if self.formula is None:
            raise NotImplementedError(
                f"{self.short} has no formula of its collectives: give Custom(ledger=...)"
            )
        rows = self.formula(workload)
        return rows if isinstance(rows, Ledger) else Ledger.of(map(self._row, _listed(rows)))

    def _row(self, row: Any) -> tuple[Any, ...]:
        if not isinstance(row, (tuple, list)) or len(row) != 5 or row[0] not in self.axes:
            raise ValueError(
                f"ledger of {self.name} has the row {row!r}: a row is (axis, collective, phase, "
                f"count, payload bytes of each), its axis one of {', '.join(self.axes)}"
            )
        return (*row, self.axes[row[0]])

    def cost(
        self, workload: "GPT", cluster: "Cluster", mesh: Mesh | None = None
    ) -> "list[Segment]":
        if self.seconds is None:
            raise NotImplementedError(
                f"{self.short} has no formula of its time: give Custom(cost=...), or use "
                "tv.simulate, which captures the program"
            )
        found = self.seconds(workload, cluster)
        if isinstance(found, (int, float)):
            found = {"compute": found}
        if isinstance(found, Mapping) and found.keys() <= {"compute", *self.axes}:
            exposed = {axis: float(found[axis]) for axis in found if axis != "compute"}
            return [Segment("", compute=float(found.get("compute", 0.0)), exposed=exposed)]
        if isinstance(found, list) and all(isinstance(part, Segment) for part in found):
            return found
        raise ValueError(
            f"cost of {self.name} returned {found!r}: return seconds, as a number or as "
            f"{ {name: 0.1 for name in ('compute', *self.axes)} }"
        )

    def build(
        self,
        workload: "GPT",
        mesh: "DeviceMesh",
        dtype: "torch.dtype | None" = None,
        device: "torch.device | str" = "cpu",
        **options: Any,
    ) -> "Program":
        from .gpt.own import build

        return build(self, workload, mesh, device, **options)


def _order(axis: str, order: Iterable[int], axes: Mapping[str, int]) -> tuple[int, ...]:
    one_of("axis of chunks", axis, list(axes))
    found = whole_numbers(f"chunks of {axis}", order, "numbers such as (0, 3, 1, 2)", 0)
    if not found or len(found) % axes[axis] or sorted(found) != list(range(len(found))):
        n = axes[axis]
        most = max(n, round(len(found) / n) * n)
        raise ValueError(
            f"chunks={found[:8]} of {axis}={n}: give each of 0 to {most - 1} once, {most // n} for "
            "each rank, rank after rank"
        )
    return found


def _listed(rows: Any) -> Iterable[Any]:
    if not isinstance(rows, Iterable):
        raise ValueError(f"the ledger is {rows!r}: return a list of rows, or a tv.Ledger")
    return rows
