"""The bug zoos: wrong programs that train. Each has one fault, seeded in one place.

    from tpviz.course import atp_zoo
    broken = atp_zoo.seed("bias before the sum", layer="mlp.down", block=1)
    tv.verify(broken, broken.workload)          # NOT EQUAL
    examine(broken)                             # the `Evidence`: where it begins

A fault is put into the program after it was built, on the ranks that have the place, or on all; the
program is otherwise the scheme's, and so is its formula (ledger, cost). A scheme's zoo has the code
of its faults, and its additional evidence; `bugs` has the exercises on them, from the evidence to
the place and the cause.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from tpviz.core.checks import one_of
from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT

from .formula import Formula, NoAnswer, Question
from .told import general

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tpviz.schemes.gpt.program import Program
    from tpviz.schemes.strategy import Strategy

WORKLOAD = GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32, dtype="float64")
"""What a zoo's programs train, unless it has another."""
CASES = 5
"""Programs that an exercise asks about."""
WRONG = 1e-10
"""An error above this is no rounding: the programs compute in float64."""
LAYERS = ("embed", "qkv", "out", "up", "down", "head", "norm", "norm1", "norm2")
"""The modules that are compared, by the end of their names, unless a zoo says otherwise."""

FIRST, SECOND = ("attention.qkv", "mlp.up"), ("attention.out", "mlp.down")
"""First and second layers of a pair."""


# -- a fault is seeded -----------------------------------------------------------------------------
class Fault(NamedTuple):
    """How a program goes wrong: ``spoil`` (program, layer's module), and {option: the values for
    which it is visible}, "layer" and "block" among them."""

    spoil: "Callable[[Any, Any], None]"
    options: dict[str, tuple[Any, ...]]


ZOOS: "dict[str, type[Seeded]]" = {}
"""{module of a zoo: the class of its programs}, of those that are imported."""


@dataclass(frozen=True)
class Seeded:
    """Wraps a strategy: its program gets the fault ``cause`` in ``layer`` of a block, in all of the
    block where that is "", or in a place outside of the layers.

    A zoo is a class of this and of its strategy, ``sound``; the module that defines it has a table
    of ``faults``, each put in by a function that `fault` decorates.

    workload : what it trains. outside : places that are in no layer. grid : the fields that the
    option "grid" sets. options : of every fault, unless it has its own; the
    first value is taken where none is asked for. variants : how many an exercise draws from.
    layers : the modules compared, by the end of their names.
    compared : where the first error is looked for. each_rank : whether ranks differ in their
    ledger. evidence : the kind of `Evidence`.
    """

    cause: str = ""
    block: int = 0
    layer: str = ""

    sound: "ClassVar[type[Strategy]]"
    workload: ClassVar[GPT] = WORKLOAD
    faults: ClassVar[dict[str, Fault]]
    outside: ClassVar[tuple[str, ...]]
    grid: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[dict[str, tuple[Any, ...]]] = {"block": (0, 1)}
    variants: ClassVar[int] = 12
    layers: ClassVar[tuple[str, ...]] = LAYERS
    compared: ClassVar[tuple[str, ...]] = ("forward", "backward")
    each_rank: ClassVar[bool] = False
    evidence: "ClassVar[type[Evidence]]"

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        first, *rest = cls.__bases__
        if first is Seeded:  # a zoo's, not one of a zoo's programs
            cls.sound, cls.faults = rest[0], {}
            ZOOS[cls.__module__.rpartition(".")[2]] = cls

    @classmethod
    def fault(cls, cause: str, *layers: str, **options: Any) -> Callable[[Any], Any]:
        """Names the decorated function a fault: in which layers of a block, or in which place
        outside, it can be seeded; an option is a value, or a tuple of those that are possible."""
        several = {k: v if isinstance(v, tuple) else (v,) for k, v in options.items()}

        def keep(spoil):
            cls.faults[cause] = Fault(spoil, {"layer": layers} | cls.options | several)
            return spoil

        return keep

    @classmethod
    def seed(
        cls, cause: str, layer: str | None = None, block: int | None = None, **options: Any
    ) -> Self:
        """The strategy with a fault. Raises ``ValueError`` for a cause, layer, block or other
        option in which the fault is not."""
        fault = cls.faults[one_of("cause", cause, tuple(cls.faults))]
        asked, knobs = {"layer": layer, "block": block, **options}, {}
        for name in asked:
            one_of("option", name, tuple(fault.options))
        for name, values in fault.options.items():
            value = asked.get(name)
            choices = tuple(dict.fromkeys(values))
            knobs[name] = choices[0] if value is None else one_of(name, value, choices)
        knobs |= zip(cls.grid, knobs.pop("grid", ()))
        return cls(cause=cause, **knobs)

    @classmethod
    def variant(cls, cause: str, number: int) -> Self:
        """The fault with options that change with ``number`` and from one cause to the next."""
        number += list(cls.faults).index(cause)
        options = cls.faults[cause].options.items()
        return cls.seed(cause, **{name: few[number % len(few)] for name, few in options})

    @property
    def place(self) -> str:
        """The name of the layer or the block that is wrong, or one of ``outside``."""
        named = self.layer in (*self.outside, "head")
        return self.layer if named else f"blocks.{self.block}.{self.layer}".rstrip(".")

    @property
    def healthy(self) -> "Strategy":
        """The same strategy without the fault."""
        return self.sound(**{f.name: getattr(self, f.name) for f in fields(self.sound)})

    def build(self, *args: Any, **options: Any) -> "Program":
        """The rank's program, with the fault in it."""
        program: Any = super().build(*args, **options)  # pyright: ignore[reportAttributeAccessIssue]
        program.strategy = self
        layer = self.modules(program).get(self.place)  # None on a rank that does not have it
        if layer is not None or self.place in self.outside:
            self.faults[self.cause].spoil(program, layer)
        return program

    # -- what a scheme may say otherwise --
    def modules(self, program: Any) -> "dict[str, nn.Module]":
        """The rank's modules by name."""
        return dict(program.module.named_modules())

    def gradients(self, program: Any) -> "Mapping[str, torch.Tensor]":
        """Gradients by the name of the parameter, whole."""
        return program.gradients()

    def facts(self, programs: "list[Program]", calls: "list[Calls]") -> Any:
        """More facts of a rank, after a step of the broken program and one of the right one."""

    def more(self, ranks: "list[Seen]", first: tuple[str, str] | None, rank: int) -> dict[str, Any]:
        """More fields of the evidence, from the facts of ``ranks``; ``first``: (kind, layer) of the
        first error, ``rank``: the first that has it."""
        return {}


# -- faults that several schemes can have --------------------------------------------------------
def own_statistics(program: Any, layer: Any) -> None:
    """LayerNorm over the features that this rank has."""
    from torch.nn.functional import layer_norm

    shape = layer.weight.shape
    layer.forward = lambda x: layer_norm(x, shape, layer.weight, layer.bias, layer.eps)


def bias_everywhere(program: Any, layer: Any) -> None:
    """Every rank along tp adds the bias to its partial sum."""
    plain, more = layer.forward, layer.way.contract.size() - 1
    layer.forward = lambda x, **how: plain(x, **how) + more * layer.bias.detach()


def copies_not_summed(program: Any, layer: Any) -> None:
    """Replicated parameters keep the gradient of the rank's own part of the sequence."""
    program.summed = {}


# -- a step is laid beside the right one -----------------------------------------------------------
@dataclass(frozen=True)
class Evidence:
    """One step of a broken program compared with the program without the fault; errors are the
    largest over ranks and microbatches.

    axes : of the mesh. forward : {layer: error of its output}, in the order of forward. backward :
    {layer: error of the gradient of its input}, in the order of backward. gradients : {parameter:
    error of its gradient}. ledger : a line for each difference from the formula. got, want : where
    the first error is, on the first rank that has it, and in the first microbatch: a layer's
    output, the gradient of its input, or of a parameter; arrays with the features last, None where
    nothing is wrong. ranks : {rank: its coordinates} of those where the first error is. unwaited :
    names of collectives that a rank never waited for. recomputed : {layer: error of its output when
    it was recomputed}. microbatches : those in which the first error is.
    """

    axes: dict[str, int]
    forward: dict[str, float]
    backward: dict[str, float]
    gradients: dict[str, float]
    ledger: tuple[str, ...]
    got: np.ndarray | None = field(default=None, repr=False)
    want: np.ndarray | None = field(default=None, repr=False)
    ranks: dict[int, dict[str, int]] = field(default_factory=dict)
    unwaited: tuple[str, ...] = ()
    recomputed: dict[str, float] = field(default_factory=dict)
    microbatches: tuple[int, ...] = ()

    def __repr__(self):
        lines = [f"one step on the mesh {self.axes} compared with the right one"]
        for name in ("forward", "backward", "gradients"):
            errors = getattr(self, name)
            wrong = [f"{what} {error:.1e}" for what, error in errors.items() if error > WRONG]
            lines.append(
                f"{name}: {len(wrong)} of {len(errors)} wrong"
                + (": " if wrong else "")
                + ", ".join(wrong[:3])
                + (", ..." if len(wrong) > 3 else "")
            )
        lines.append("ledger: " + ("\n  ".join(self.ledger) or "as the formula"))
        return "\n".join(lines)


Seeded.evidence = Evidence
Key = tuple[str, str, int]
"""(kind, name of the layer or parameter, microbatch or -1)"""
Calls = dict[Key, list[tuple[Any, Any, np.ndarray]]]
"""(input if it gets a gradient, output, copy of the output) of each call of a layer."""


class Seen(NamedTuple):
    """A rank's facts: {key: error}, {key: (got, want)} of the errors, and the others."""

    errors: dict[Key, float]
    arrays: dict[Key, tuple[np.ndarray, np.ndarray]]
    ledger: list[str]
    unwaited: tuple[str, ...]
    facts: Any


@lru_cache(maxsize=64)
def examine(broken: Seeded, timeout: float = 60) -> Evidence:
    """The `Evidence` on a seeded strategy, from real ranks; known after the first time."""
    from tpviz.ranks.launch import launch

    axes: dict[str, int] = broken.axes  # pyright: ignore[reportAttributeAccessIssue]
    mesh = Mesh(axes)
    ranks = launch(_look, broken, world_size=mesh.size, timeout=timeout, progress=False)
    errors = _largest(item for seen in ranks for item in seen.errors.items())
    kinds = {
        kind: _largest(
            (name, error) for (what, name, _), error in list(errors.items())[::turn] if what == kind
        )
        for kind, turn in (("forward", 1), ("recompute", 1), ("backward", -1), ("gradients", 1))
    }
    first = next(((kind, name) for kind in broken.compared for name in _wrong(kinds[kind])), None)
    wrong = sorted(key for key in _wrong(errors) if key[:2] == first)
    at = [rank for rank, seen in enumerate(ranks) if wrong and wrong[0] in seen.arrays]
    got, want = ranks[at[0]].arrays[wrong[0]] if at else (None, None)
    return broken.evidence(
        axes,
        kinds["forward"],
        kinds["backward"],
        kinds["gradients"],
        tuple(line for seen in ranks for line in seen.ledger),
        got,
        want,
        ranks={rank: mesh.coords(rank) for rank in at},
        unwaited=next((seen.unwaited for seen in ranks if seen.unwaited), ()),
        recomputed=kinds["recompute"],
        microbatches=tuple(key[2] for key in wrong if key[2] >= 0),
        **broken.more(ranks, first, at[0] if at else 0),
    )


def _largest(errors):
    """{key: the largest of its errors}."""
    largest = {}
    for key, error in errors:
        largest[key] = max(error, largest.get(key, 0.0))
    return largest


def _wrong(errors):
    return [name for name, error in errors.items() if error > WRONG]


def _look(broken):
    """On a rank: a step of the broken program and one of the right one."""
    import torch.distributed as dist

    from tpviz.ranks.recorder import record
    from tpviz.schemes.gpt.program import batch_of
    from tpviz.verbs.run import program_here

    w, rank = broken.workload, dist.get_rank()
    programs = [program_here(strategy, w)[0] for strategy in (broken, broken.healthy)]
    calls, traces, arrays = [], [], []
    for program in programs:
        calls.append(_watch(broken.modules(program), broken.layers))
        with record() as recorder, recorder.step():
            program.step(batch_of(w, 0))
        traces.append(recorder.trace)
        gradients = broken.gradients(program).items()
        arrays.append(
            _arrays(calls[-1])
            | {("gradients", name, -1): g.detach().numpy() for name, g in gradients}
        )
    got, want = arrays
    errors = {key: _error(got[key], want[key]) for key in want}
    comm = traces[0].select(kind="comm")
    late = comm["name"][~np.isin(comm["id"], traces[0]["waits_for"])]
    lines = traces[0].ledger().diff(broken.healthy.ledger_of(w, rank), ("run", "formula"))
    if broken.each_rank:
        lines = [f"rank {rank}: {line}" for line in lines]
    facts = broken.facts(programs, calls)
    for of_program in calls:
        of_program.clear()  # a hook that holds its module's graph: neither is ever collected
    return Seen(
        errors,
        {key: (got[key], want[key]) for key in _wrong(errors)},
        lines if broken.each_rank or rank == 0 else [],
        tuple(late.tolist()),
        facts,
    )


def _watch(modules, layers):
    """`Calls`, filled by the next step; several, for halves of a microbatch come one by one."""
    from torch import is_grad_enabled

    from tpviz.core.labels import current

    calls = {}

    def retained(tensor):
        if tensor.requires_grad and is_grad_enabled():
            tensor.retain_grad()
            return tensor

    def keep(name):
        def hook(module, args, out):
            label = current()
            phase = "recompute" if label.phase == "recompute" else "forward"
            call = retained(args[0]), retained(out), out.detach().numpy().copy()
            calls.setdefault((phase, name, label.microbatch), []).append(call)

        return hook

    for name, module in modules.items():
        if name.rpartition(".")[2] in layers:
            module.register_forward_hook(keep(name))
    return calls


def _arrays(calls):
    """Outputs of layers and the gradients of their inputs, by `Key`."""
    arrays = {key: np.concatenate([copy for *_, copy in parts]) for key, parts in calls.items()}
    for (_, name, microbatch), parts in calls.items():
        grads = [x.grad.numpy() for x, *_ in parts if x is not None and x.grad is not None]
        if grads:
            arrays["backward", name, microbatch] = np.concatenate(grads)
    return arrays


def _error(got, want):
    """As in `verify`: the largest difference, by max(1, largest number)."""
    error = float(abs(got - want).max()) / max(1.0, float(abs(want).max()))
    return error if error == error else float("inf")


# -- an exercise asks for its place and cause ------------------------------------------------------
@dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Formula):
    """An exercise whose answers are (place, cause).

    zoo : the module with the faults. shows : {cause: its evidence}. outside : {place outside of the
    layers: its evidence}. blocks : whether a whole block may be the place. Of its messages
    "unknown" is the answer to a place that does not exist, "unsure" the question if all layers are
    right.
    """

    zoo: str
    shows: dict[str, str]
    outside: dict[str, str]
    blocks: bool = False

    def make(self, rng: np.random.Generator) -> list[Question]:
        """`CASES` programs with one fault each."""
        import_module(f".{self.zoo}", __package__)
        kind, questions = ZOOS[self.zoo], []
        for number, cause in enumerate(rng.permutation(list(self.shows))[:CASES].tolist()):
            broken = kind.variant(cause, int(rng.integers(kind.variants)))
            asked, answer = {"evidence": examine(broken)}, (broken.place, cause)
            questions.append(Question(asked, answer, f"program {number + 1} of {CASES}"))
        return questions

    def judge(self, question: Question, got: Any, draw: Any = ()) -> str | None:
        """The error of a diagnosis, or None if it is right."""
        if not (
            isinstance(got, tuple)
            and not isinstance(got, NoAnswer)
            and len(got) == 2
            and all(isinstance(part, str) for part in got)
        ):
            got = f"a {got.type}" if isinstance(got, NoAnswer) else repr(got)
            return f"for {question} you returned {got}, not (layer, cause), two strings."
        (place, cause), (right, why) = got, question.answer
        if place != right:
            return f"for {question}: {self._astray(question.arguments['evidence'], place, right)}"
        if cause not in self.shows:
            return f"for {question}: {cause!r} is none of the causes: {'; '.join(self.shows)}."
        if cause != why:
            return (
                f"for {question}: the layer is right, but it is not {cause!r}: {self.shows[why]}."
            )
        return None

    def _astray(self, evidence, place, right):
        """Why the fault is not in ``place``."""
        blocks = {".".join(name.split(".")[:2]) for name in evidence.forward if "blocks" in name}
        if place not in {*evidence.forward, *self.outside, *(blocks if self.blocks else ())}:
            return self.say("unknown", place=place)
        if self.outside.get(right):
            return f"{place} is not at fault: {self.outside[right]}"
        if _wrong(evidence.recomputed) and not _wrong(evidence.forward):
            return general("recomputed first", place=place)
        if _wrong(evidence.forward) or _wrong(evidence.backward):
            return _not_first(evidence, place, right)
        return general("all right", place=place, unsure=self.messages["unsure"])


def _not_first(evidence, layer, place):
    """Why the first error is not in ``layer`` but in ``place``, both layers."""
    forward = bool(_wrong(evidence.forward))
    errors = evidence.forward if forward else evidence.backward
    order = list(errors)
    way, what = ("forward", "output") if forward else ("backward", "gradient of the input")
    if layer not in order or place not in order:
        return general("not this layer", layer=layer, way=way)
    if order.index(layer) < order.index(place):
        return general("comes later", what=what, layer=layer, way=way)
    largest = " The largest error need not be the first." * (layer == max(errors, key=errors.get))
    return general("comes earlier", way=way, layer=layer, largest=largest)
