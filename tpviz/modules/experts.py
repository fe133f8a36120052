"""`tpviz.Experts` on a module that is not ours: its experts over ranks, its router as it is.

A module of experts is known by what it has: parameters (E, ...) of all E experts, and a forward of
hidden states (T, H), the experts of each token (T, k) and their weights (T, k), as those of Hugging
Face's transformers from version 5 on. A rank keeps E / ep of them. Rows go to the ranks that have
their experts, the module's own forward computes them, with one expert of weight 1 for each row,
and the results come back, are weighted and added up. The ranks of a tensor parallelism inside have
the same tokens and the same experts, and each sends its part of the tokens.

Shapes: T tokens, k experts of each, H hidden, E experts, R rows that a rank computes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from tpviz.core.checks import divides
from tpviz.core.labels import label
from tpviz.core.mesh import group_along
from tpviz.core.tables import listed
from tpviz.core.trace import Ledger
from tpviz.schemes.collectives import Alone, own_of
from tpviz.schemes.experts.layers import numbers_of_rows, there_and_back
from tpviz.schemes.experts.step import ROWS
from tpviz.schemes.experts.travel import finished
from tpviz.schemes.grid.operators import Cut, Gather

from .grid import AfterBackward, Shares, average, rows_of
from .partition.leaves import tensors_of
from .replicas import without_numbers
from .watch import hooked, in_evaluation

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.experts.strategy import Experts

    from .layers import RankGroups
    from .plan import Planned
    from .sent import LayerCall


# -- experts as they are found ---------------------------------------------------------------------
class Stacked(NamedTuple):
    """A module of experts at ``path``. counts : its attributes that say how many they are."""

    path: str
    experts: int
    counts: tuple[str, ...]


def stacks_of(model: nn.Module) -> tuple[Stacked, ...]:
    """All modules of ``model`` that hold experts, by their structure."""
    found = []
    for path, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None]
        within = sum(1 for _ in module.parameters())
        if len(own) < 2 or within > len(own) or not any(p.dim() == 3 for p in own):
            continue
        first = {p.shape[0] if p.dim() else 0 for p in own}
        counts = tuple(
            name
            for name, value in vars(module).items()
            if "expert" in name and type(value) is int and {value} == first
        )
        if counts and len(signature(module.forward).parameters) == 3:
            found.append(Stacked(path, first.pop(), counts))
    return tuple(found)


class ExpertCall(NamedTuple):
    """One call of a module of experts in one process. choices : (T, k), of the whole batch. hidden
    : H. grad : whether the rows need a gradient; weight : bytes of one weight, if they need one.
    """

    stack: Stacked
    choices: Tensor
    hidden: int
    grad: bool
    weight: int


@contextmanager
def choices_in(model: nn.Module, stacks: "Iterable[Stacked]") -> Iterator[list[list[ExpertCall]]]:
    """While inside, the choices of every forward of ``model`` are noted. Yields a list of the calls
    of each forward, which grows."""
    found: list[list[ExpertCall]] = []

    def note(stack):
        def hook(module, args, kwargs):
            x, index, weights = _given(stack, args, kwargs)
            found[-1].append(
                ExpertCall(
                    stack,
                    index.cpu(),
                    x.shape[-1],
                    x.requires_grad,
                    weights.itemsize * weights.requires_grad,
                )
            )

        return hook

    hooks = [
        model.get_submodule(stack.path).register_forward_pre_hook(note(stack), with_kwargs=True)
        for stack in stacks
    ]
    hooks.append(model.register_forward_pre_hook(lambda *_: found.append([]), prepend=True))
    with hooked(hooks):
        yield found


def _given(stack, args, kwargs):
    """(x, index, weights) of a call. Raises ``ValueError`` for others."""
    given: tuple[Any, ...] = (*args, *kwargs.values())
    shapes: list[tuple[int, ...]] = [tuple(getattr(t, "shape", ())) for t in given]
    if list(map(len, shapes)) != [2, 2, 2] or len({s[0] for s in shapes}) > 1:
        wrong = True
    else:
        wrong = shapes[1] != shapes[2] or given[1].is_floating_point()
    if wrong:
        raise ValueError(
            f"{stack.path}: its experts are called with {listed(list(map(str, shapes)))}: use "
            "hidden states (tokens, hidden), and experts and their weights (tokens, k)"
        )
    return given


# -- on a rank -------------------------------------------------------------------------------------
class ExpertPart(NamedTuple):
    """How the parameters of a module of experts are cut, as `tpviz.modules.cuts.LinearPart` says it
    of a linear layer."""

    path: str

    def splits(self, name: str) -> list[tuple[int, str]]:
        """[(dim, axis)] of every parameter: the experts lie on ep."""
        return [(0, "ep")]

    def from_order(self, name: str, whole: Tensor) -> Tensor:
        """The whole parameter: experts are in order."""
        return whole


class CutExperts:
    """What the class of a module of experts becomes a subclass of on a rank; see `cut`."""

    part: ExpertPart
    pieces: None
    stack: Stacked
    ep: Any
    inside: Any

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """x (T, H), experts and weights (T, k) -> (T, H), of tokens whose experts are anywhere."""
        x, index, weights = _given(self.stack, args, kwargs)
        if self.inside.size() == 1:
            return self._of_own(x, index, weights)
        divides("tokens of a rank", len(x), "tp", self.inside.size())
        x, weights = (Cut.apply(t, self.inside, 0) for t in (x, weights))
        return Gather.apply(self._of_own(x, own_of(index, self.inside, 0), weights), self.inside, 0)

    def _of_own(self, x, index, weights):
        ranks, chosen = self.ep.size(), index.flatten()
        counts, known = numbers_of_rows(chosen, self.stack.experts, self.ep)
        send, receive = (n.view(ranks, -1).sum(1).tolist() for n in (counts, known))
        own = torch.arange(len(counts) // ranks, device=x.device).repeat(ranks)
        computed = lambda rows: self._computed(rows, own.repeat_interleave(known), weights)
        y = finished(there_and_back(x, chosen, send, receive, self.ep, computed))
        return (y.view(*index.shape, -1) * weights.unsqueeze(-1)).sum(1).to(x.dtype)

    def _computed(self, rows, index, weights):
        """The module's own forward; without a row zeros, which gradients pass through as well."""
        if not len(rows):
            return rows + sum(p[:0].sum() for p in self._parameters.values() if p is not None)  # pyright: ignore[reportAttributeAccessIssue]
        one = weights.new_ones(len(rows), 1)
        return super().forward(rows, index.unsqueeze(1), one)  # pyright: ignore[reportAttributeAccessIssue]


@cache
def _class_of(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"Cut{kind.__name__}", (CutExperts, kind), {})


def cut(model: nn.Module, stacks: Iterable[Stacked], groups: "RankGroups", inside: str) -> None:
    """Leave this rank's experts in the modules of ``stacks``, under their names. inside : the axis
    of the tensor parallelism.

    A rank's loss is the mean over its share, and gradients of its experts have come from all of ep:
    they are divided by ep, and multiplied by the ranks over which their mean will be taken besides.
    """
    ep, tensor = groups.get_group("ep"), groups.get_group(inside) if inside else Alone()
    factor = tensor.size() / ep.size()
    for stack in stacks:
        module = model.get_submodule(stack.path)
        for name, whole in module._parameters.items():
            if whole is None:
                continue
            own = nn.Parameter(own_of(whole.detach(), ep, 0).clone(), whole.requires_grad)
            if own.requires_grad:
                own.register_hook(lambda grad: grad * factor)
            module._parameters[name] = own
        for name in stack.counts:
            setattr(module, name, stack.experts // ep.size())
        module.__class__ = _class_of(type(module))
        here: Any = module
        here.part, here.pieces, here.stack = ExpertPart(stack.path), None, stack
        here.ep, here.inside = ep, tensor


class ExpertShares(Shares):
    """Shares of the batch along dp and ep, and gradients that are complete after backward."""

    def __init__(self, plan: "ExpertPlan", mesh: "DeviceMesh", groups: "RankGroups"):
        super().__init__(groups, ("dp", "ep") if plan.dp > 1 else ("ep",))
        self.quiet = False
        alone: Any = Alone()  # as in `RankGroups.of`
        self.whole, self.of_experts = (
            group_along(mesh, axis) if axis else alone for axis in plan.means
        )

    def attach(self, module: nn.Module, pieces: Any = ()) -> None:
        """Watch backward through ``module``."""
        self.module = module
        AfterBackward(module, self._finish, lambda: None)

    def _finish(self):
        if self.quiet:
            return
        cut = [module for module in self.module.modules() if isinstance(module, CutExperts)]
        spread = {id(p) for module in cut for p in module.parameters()}
        learn = [p for p in self.module.parameters() if p.requires_grad]
        with label(phase="sync"):
            average([p for p in learn if id(p) not in spread], self.whole)
            average([p for p in learn if id(p) in spread], self.of_experts)

    def first_ledger(self) -> Ledger:
        """Empty: the first forward asks no more than others."""
        return Ledger()


# -- the plan --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ExpertPlan:
    """What `cut` will do to a model, known before: ``stacks``, and the ``calls`` of one forward of
    the example, of so many ``rows``. numbers : of experts, of a rank. gradients : (elements,
    parameters) of what is equal along ep, and of experts. place : {axis: index} of the rank that
    ledgers are of, the first where it says nothing.
    """

    experts: "Experts"
    dp: int
    stacks: tuple[Stacked, ...]
    calls: tuple[ExpertCall, ...]
    rows: int
    numbers: int
    gradients: tuple[tuple[int, int], ...] = ()
    place: dict[str, int] = field(default_factory=dict)
    easy = False
    wrong = (
        "rows meet outside of the experts, or a loss is no mean over rows, as one of balance "
        "between experts (of Hugging Face's models use output_router_logits=False)"
    )

    @classmethod
    def of(
        cls,
        experts: "Experts",
        dp: int,
        model: nn.Module,
        inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
    ) -> Self:
        """Raises ``ValueError`` where there are no experts, and where sizes do not divide."""
        if inputs is None:
            raise ValueError(
                f"{experts.short} without example_inputs: give a batch, which shows how the "
                "model's experts are called"
            )
        if without_numbers(model):
            raise ValueError(
                f"{type(model).__name__} has no numbers that a router could choose by: use tv.run "
                "or tv.verify_parallel, not tv.capture"
            )
        if not (stacks := stacks_of(model)):
            raise ValueError(_no_experts(model, experts))
        for stack in stacks:
            divides(f"{stack.path}: experts", stack.experts, "ep", experts.ep)
        with in_evaluation(model), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            with choices_in(model, stacks) as found:
                model(*inputs[0], **inputs[1])
        rows = len(next(t for t in tensors_of(inputs) if t.dim()))
        holders = [model.get_submodule(stack.path) for stack in stacks]
        numbers = sum(p.numel() for m in holders for p in m.parameters()) // experts.ep
        plan = cls(experts, dp, stacks, tuple(found[0]), rows, numbers)
        plan.check(inputs)
        for call in plan.calls:
            at, tokens = experts.layout, len(call.choices) // plan.shares
            divides(f"{call.stack.path}: tokens of a rank", tokens, at.inside, at.i)
        return plan

    def settle(
        self, model: nn.Module, pairs: "Iterable[Planned]", groups: "RankGroups | None"
    ) -> Self:
        """With gradients, of which those of split layers are a rank's part, and its place."""
        local = {}
        for part in (part for pair in pairs for part in pair.layers):
            layer = model.get_submodule(part.path)
            local |= {id(getattr(layer, name)): part.local(name) for name in ("weight", "bias")}
        spread = {
            id(p) for stack in self.stacks for p in model.get_submodule(stack.path).parameters()
        }
        learn = [p for p in model.parameters() if p.requires_grad]
        both = [[p for p in learn if (id(p) in spread) == kind] for kind in (False, True)]
        sizes = [sum(prod(local.get(id(p), p.shape)) for p in some) for some in both]
        place = {axis: group.rank() for axis, group in groups.by_axis.items()} if groups else {}
        return replace(
            self,
            gradients=(
                (sizes[0], len(both[0])),
                (sizes[1] // self.experts.ep, len(both[1])),
            ),
            place=place,
        )

    def after(self, calls: Sequence[ExpertCall]) -> Self:
        """With the choices of another forward."""
        return replace(self, calls=tuple(calls))

    @property
    def means(self) -> tuple[str, str]:
        """The axes over which gradients are averaged: of what is equal along ep, and of experts."""
        sizes = {"dp": self.dp, "ep": self.experts.ep, "tp": self.experts.layout.i}
        over = lambda *axes: "*".join(axis for axis in axes if sizes[axis] > 1)
        return over("dp", "ep"), over("dp", "tp")

    @property
    def shares(self) -> int:
        """Number of parts that the batch is cut into."""
        return self.dp * self.experts.ep

    def check(self, inputs: Any) -> None:
        """Raise ``ValueError`` where the rows of a whole batch do not divide by `shares`."""
        rows_of(inputs, 0, self.shares, "dp*ep" if self.dp > 1 else "ep")

    def ledger(
        self, calls: "Iterable[LayerCall]", itemsize: int, tokens: int | None = None
    ) -> Ledger:
        """Of the `Ledger`: rows between experts after the router's choices, exact, and the means of
        gradients, with one number more for each parameter (`tpviz.modules.grid.average`). Raises
        ``ValueError`` for tokens that are not those of the example, whose choices are not known.
        """
        known = {len(call.choices) // self.shares for call in self.calls}
        if tokens is not None and known - {tokens}:
            raise ValueError(
                f"tokens={tokens}: a rank's rows depend on the router's choices, which are those "
                f"for example_inputs: use tokens={max(known)}"
            )
        entries: list[Any] = [row for call in self.calls for row in self._entries(call, itemsize)]
        sizes = {"dp": self.dp} | self.experts.axes
        for axis, (elements, parameters) in zip(self.means, self.gradients, strict=True):
            if axis and parameters:
                ranks = prod(sizes[name] for name in axis.split("*"))
                size = (elements + parameters) * itemsize
                entries.append((axis, "all_reduce", "sync", 1, size, ranks))
        return Ledger.of(entries)

    def rows_moved(self, call: ExpertCall) -> tuple[int, int]:
        """(rows that the rank at `place` sends to others, rows that it gets), forward."""
        at, ep = self.experts.layout, self.experts.ep
        owner = call.choices // (call.stack.experts // ep)
        dp, me, part = (self.place.get(axis, 0) for axis in ("dp", "ep", at.inside))
        owner = owner.view(self.dp, ep, at.i, -1)[dp, :, part]
        others = torch.arange(ep) != me
        return int((owner[me] != me).sum()), int((owner[others] == me).sum())

    def _entries(self, call, itemsize):
        ep, at = self.experts.ep, self.experts.layout
        sent, got = (rows * call.hidden * itemsize for rows in self.rows_moved(call))
        tokens, k = call.choices.shape
        stream = tokens // self.shares * itemsize
        back = int(call.grad)
        if ep > 1:
            yield "ep", "all_to_all", "forward", 1, 8 * call.stack.experts, ep
            yield "ep", ROWS, "forward", 1, sent, ep
            yield "ep", ROWS, "forward", 1, got, ep
            yield "ep", ROWS, "backward", 1, sent, ep
            yield "ep", ROWS, "backward", back, got, ep
        if at.i > 1:
            yield at.inside, "all_gather", "forward", 1, stream * call.hidden, at.i
            yield at.inside, "all_gather", "backward", back, stream * call.hidden, at.i
            weights = tokens // self.shares * k * call.weight
            yield at.inside, "all_gather", "backward", int(weights > 0), weights, at.i

    def to_table(self) -> list[list[str]]:
        """A list of rows of strings, header first: one row for each call of experts."""
        rows = [["experts", "in all", "a rank's", "of each token", "rows sent", "rows received"]]
        for call in self.calls:
            each = call.stack.experts // self.experts.ep
            numbers = call.stack.experts, each, call.choices.shape[1], *self.rows_moved(call)
            rows.append([call.stack.path, *map(str, numbers)])
        return rows

    @property
    def notes(self) -> list[str]:
        """What the user is to do."""
        own = self.rows // self.shares
        return [
            f"each rank has {own} of {self.rows} rows: give it model.rows(batch), and let its loss "
            "be the mean over its rows; rows between experts are those that the router chooses for "
            "example_inputs"
        ]


def _no_experts(model, experts):
    lists = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and "expert" in path.rpartition(".")[2]
    ]
    if lists:
        return (
            f"{listed(lists, most=3)}: experts in a list are chosen inside of the module around "
            "them: hold them as parameters (experts, ...) of one module with num_experts and "
            "forward(hidden_states, top_k_index, top_k_weights), as transformers 5 does"
        )
    return (
        f"{type(model).__name__} has no experts to spread: {experts.short} needs a module with "
        "parameters (experts, ...), num_experts and forward(hidden_states, top_k_index, "
        "top_k_weights); use Megatron(...) or Context(...) for a dense model"
    )
