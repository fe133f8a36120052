"""The plan: which layers of a model are split, how, and why the others are not. Sends nothing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import divides
from tpviz.core.tables import listed

from .between import SENT, Between, between_of
from .cuts import LinearPart, Move
from .rules import RULES, pairs_of, places
from .structure import (
    LinearFlow,
    commonpath,
    get_number,
    in_sequences,
    looks_linear,
    obstacle,
    out_dim,
    owners,
    widths,
)
from .suggest import experts_too, sequences_too, suggested
from .watch import read_elsewhere

if TYPE_CHECKING:
    from torch import nn

    from tpviz.schemes.grid.layout import Layout

    from .rules import Pair

GRAPH = "graph"


@dataclass(frozen=True)
class Planned:
    """One pair as it will be split. divided : (path of a module, attribute, whole, a rank's).
    between : parameters that lie between its layers."""

    kind: str
    found: str
    firsts: tuple[LinearPart, ...]
    second: LinearPart
    divided: tuple[tuple[str, str, int, int], ...] = ()
    between: tuple[Between, ...] = ()

    @property
    def layers(self) -> tuple[LinearPart, ...]:
        """All its `LinearPart`s, the second last."""
        return (*self.firsts, self.second)


class PairPlan:
    """Looks for pairs by the user's rules, then the table, then the graph or sequences.

    pairs : `Planned`, in the model's order; left : {path: (type, shape, reason)} of everything
    linear-like that stays whole; notes : what else should be known. z : shards of each block.
    shared : function (make) -> what make() gives; on ranks, made by one of them (`from_first`).
    advise : look for rules that would split more (`tpviz.modules.suggest`).
    Raises ``ValueError`` where a user's rule matches nothing, or nothing at all can be split.
    """

    def __init__(
        self,
        model: "nn.Module",
        layout: "Layout",
        rules: "Pair | dict[str, Any] | Sequence[Pair | dict[str, Any]] | None" = None,
        inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        z: int = 1,
        shared: Callable[[Callable[[], Any]], Any] = lambda make: make(),
        advise: bool = False,
    ):
        self.model, self.at, self.inputs, self.z = model, layout, inputs, z
        self.shared = shared
        self.modules = dict(model.named_modules())
        self.tied = owners(model)
        self.places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
        self.linears = [path for path, module in self.modules.items() if looks_linear(module)]
        self.read = shared(lambda: read_elsewhere(model, self.linears, inputs)) if inputs else {}
        self.planned, self.reasons, self.notes = [], {}, []
        self.taken, self.free = set(), set()
        self.unknown = "all others are split, tied or unknown"
        for pair in pairs_of(rules):
            if not self._by_rule(pair):
                raise ValueError(
                    f"rule first={list(pair.first)}, second={pair.second!r} matches "
                    f"nothing; linear layers are {listed(self.linears)}"
                )
        for pair in RULES:
            self._by_rule(pair)
        self._by_structure()
        order = list(self.modules).index
        self.pairs = sorted(self.planned, key=lambda pair: order(pair.firsts[0].path))
        unnamed = "no rule names it; with example_inputs the model's graph is looked at"
        if self.inputs:
            unnamed = f"no rule names it, and {self.unknown}"
        self.left = {
            path: _whole(self.modules[path], self.reasons.get(path, unnamed))
            for path in dict.fromkeys([*self.linears, *self.reasons])
            if path not in self.taken
        }
        rules = suggested(self) if advise else []
        code = f"rules=[{', '.join(f'tv.{rule}' for rule in rules)}]"
        advice = f"{code} would split more: each was tried, part by part, in one process"
        self.notes += [advice] * bool(rules)
        if not self.pairs:
            more = [advice] * bool(rules) + (sequences_too(self) + experts_too(self)) * advise
            raise ValueError("; ".join([_nothing(model, "split", self.left), *more]))

    # -- where pairs come from ---------------------------------------------------------------------
    def _by_rule(self, pair):
        found = False
        for _, firsts, second in places(pair, self.modules):
            found = True
            if not {*firsts, second} & (self.taken | self.reasons.keys()):
                self._take(pair, firsts, second)
        return found

    def _by_structure(self):
        free = [
            path
            for path in self.linears
            if not self._obstacle(path) and path not in self.taken | self.reasons.keys()
        ]
        for path in self.linears:
            if reason := self._obstacle(path):
                self.reasons.setdefault(path, reason)
        flow = self._flow(free) if len(free) > 1 and self.inputs else None
        if not self.inputs:
            self.notes.append(
                "without example_inputs: pairs by rules and nn.Sequential only, and "
                "no forward was compared"
            )
        for firsts, second in flow.pairs if flow else in_sequences(self.modules):
            if {*firsts, second} <= set(free) - self.taken:
                self._take(None, firsts, second, GRAPH if flow else "nn.Sequential")
        self.free = set(free) - self.taken
        for path in free:
            if flow and path not in self.taken:
                self.reasons.setdefault(path, flow.reasons[path])

    def _flow(self, free):
        """The graph's `Findings` on the layers at ``free``; where there is no graph None, noted."""
        found = self.shared(lambda: _findings(self.model, self.inputs, free))
        if isinstance(found, str):
            self.notes.append(found)
            self.unknown = "torch.export could not follow the model"
            return None
        return found

    def _obstacle(self, path):
        parent = self.modules.get(path.rpartition(".")[0])
        return obstacle(path, self.modules[path], parent, self.tied) or self.read.get(path, "")

    # -- one pair ----------------------------------------------------------------------------------
    def _take(self, pair, firsts, second, found=""):
        """Plan a pair, or note for each of its layers why it cannot be."""
        paths = (*firsts, second)
        try:
            for path in paths:
                if reason := self._obstacle(path):
                    raise ValueError(f"{path}: {reason}")
            if len(set(paths)) < len(paths) or set(paths) & self.taken:
                raise ValueError("it is in two pairs")
            if found != GRAPH:
                self._refuse_shared(paths)
            self.planned.append(self.planned_of(pair, firsts, second, found))
            self.taken |= set(paths)
            if pair and not pair.owner:
                self._warn(paths)
        except ValueError as error:
            self.reasons |= {
                path: str(error).removeprefix(f"{path}: ")
                for path in paths
                if path not in self.taken
            }

    def _refuse_shared(self, paths):
        """Raise unless layers are shared only with all that is around them: no graph says how they
        are used."""
        places = [self.places[id(self.modules[path])] for path in paths]
        around = [self.places[id(self.modules[path.rpartition(".")[0]])] for path in paths]
        if places != around or len(set(places)) > 1:
            raise ValueError("it or its partner is in several places of the model")

    def _warn(self, paths):
        """Of parameters that may lie between the layers of a user's pair, where no graph says."""
        around = commonpath(path.rpartition(".")[0] for path in paths)
        inside = {
            f"{around}.{name}".lstrip(".") for name, _ in self.modules[around].named_parameters()
        }
        others = sorted(name for name in inside if name.rpartition(".")[0] not in paths)
        if others:
            self.notes.append(
                f"{around or 'the model'} has parameters outside your rule's layers "
                f"({listed(others, most=3)}): if they act between them, a rank has only a part of "
                "their gradients; tv.verify_parallel shows"
            )

    def planned_of(
        self, pair: "Pair | None", firsts: Sequence[str], second: str, found: str = ""
    ) -> Planned:
        """The pair of layers at these paths. Raises ``ValueError`` where sizes do not divide."""
        at = self.at
        out, inner = widths(self.modules[second])
        holder = firsts[0].rpartition(".")[0]
        heads = _head_size(pair, self.modules[holder], inner) if pair else 1
        units, blocks = {}, {}
        for path in firsts:
            wide, ins = widths(self.modules[path])
            divides(f"{path}: in_features", ins, at.stream, at.s)
            blocks[path], units[path] = _units(pair, wide, inner, heads)
        divides("out_features", out, at.stream, at.s)
        attention = bool(pair) and pair.kind == "attention"
        counts = [inner // heads, *chain.from_iterable(units.values())]
        a3 = attention and at.a3 and not any(count % (at.i * at.s) for count in counts)
        for count in counts:
            divides("heads" if attention else "width", count, at.inside, at.i, also=gcd(*counts))
        parts = at.i * at.s if a3 else at.i
        between = between_of(pair, at, holder, self.modules[holder]) if pair else ()
        once = [Move("backward", SENT[b.kind], at.inside, b.elements) for b in between]
        layer = lambda path, first: _part(
            LinearPart,
            path,
            self.modules[path],
            at,
            first,
            a3=a3,
            blocks=blocks.get(path, ()),
            sends=path in (firsts[0], second),
            z=self.z,
        )
        last = replace(layer(second, False), once=tuple(once) * (at.i > 1))
        layers = tuple(layer(path, True) for path in firsts), last
        for part in (*layers[0], layers[1]):
            divides(f"{part.path}: block", part.block, "z", self.z)
        return Planned(
            "attention " + ("A3" if a3 else "A1")
            if attention and at.s > 1
            else "attention"
            if attention
            else "mlp",
            found or (pair.name if pair else ""),
            *layers,
            _divided(pair, holder, self.modules[holder], parts) if pair else (),
            between,
        )


def _part(kind, path, module, at, first=True, **how):
    """The `LinearPart` of a linear layer, of this kind."""
    bias = getattr(module, "bias", None) is not None
    return kind(path, first, *widths(module), out_dim(module), bias, at, **how)


def _head_size(pair, holder, inner):
    """Features that stay together: of a head; 1 in an MLP."""
    if pair.kind == "mlp":
        return 1
    name, asked = ("heads", pair.heads) if pair.heads is not None else ("head_size", pair.head_size)
    value = get_number(holder, asked) if isinstance(asked, str) else asked
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{name}={asked!r} gives {value!r}, not a number of "
            f"{'heads' if name == 'heads' else 'features'}"
        )
    divides("the second layer's in_features", inner, name, value)
    return inner // value if name == "heads" else value


def _units(pair, wide, inner, size):
    """(features of each block, heads or features of each) of a first layer with ``wide`` output
    features; of one that is not fused there are no blocks."""
    fused = pair.fused if pair else None
    if fused == "blocks":
        if wide % inner:
            raise ValueError(
                f"out_features={wide} is no multiple of the second layer's "
                f"in_features={inner}: its blocks are not equal"
            )
        return (inner,) * (wide // inner), [inner // size]
    if isinstance(fused, tuple):
        if sum(fused) * size != wide:
            raise ValueError(
                f"fused={fused} are {sum(fused) * size} features, out_features={wide}: use numbers "
                f"of {'heads' if size > 1 else 'features'} that add up to {wide // size}"
            )
        return tuple(count * size for count in fused), list(fused)
    if fused == "heads":
        divides("out_features", wide, "heads", inner // size)
        return (), [inner // size]
    if pair and pair.kind == "attention":
        divides("out_features", wide, "head_size", size)
        return (), [wide // size]
    if wide != inner:
        raise ValueError(
            f"out_features={wide} of the first layer and in_features={inner} of the second differ"
        )
    return (), [inner]


def _whole(module, reason):
    """(type, shape, reason) of something linear-like that stays whole."""
    shape = tuple(getattr(getattr(module, "weight", None), "shape", ()))
    return type(module).__name__, shape, reason


def _nothing(model, done, left):
    """The error where no layer can be ``done``; ``left``: why each stays whole."""
    why = [f"{path or 'it'}: {reason}" for path, (*_, reason) in left.items()]
    reasons = listed(why, "; ") or "it has no linear layers"
    return f"nothing in {type(model).__name__} can be {done}: {reasons}"


def _findings(model, inputs, paths):
    """The graph's `Findings`, or in words why there is no graph."""
    try:
        flow = LinearFlow(model, *inputs)
    except Exception as error:  # whatever stops export, rules remain
        said = str(error).strip().split("\n")[0][:120]
        return (
            f"torch.export could not follow the model, so pairs are by rules and "
            f"nn.Sequential only ({type(error).__name__}: {said})"
        )
    return flow.findings(paths)


def _divided(pair, path, holder, parts):
    """(path, attribute, whole, a rank's) of the attributes that count heads or features."""
    names = (*pair.divide, *([pair.heads] if isinstance(pair.heads, str) else []))
    found = []
    for name in dict.fromkeys(names):
        value = get_number(holder, name)
        if value is None and pair.owner:
            continue  # another release of a known family
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{path or 'the model'} has no number {name!r} to divide")
        divides(name, value, "parts", parts)
        found.append((path, name, value, value // parts))
    return tuple(found)


class WholePlan:
    """As `PairPlan`, of a strategy that splits no layers."""

    def __init__(self):
        self.pairs, self.left, self.notes = [], {}, []


# -- easy mode: every linear layer that divides, each by itself ------------------------------------
class Single(LinearPart):
    """A linear layer between two data-parallel layouts; its bias is whole on every rank.

    Elements of `Move` are for each of a rank's own rows; equally many on all ranks.
    """

    role = "single"  # pyright: ignore[reportAssignmentType]

    def splits(self, name: str) -> list[tuple[int, str]]:
        """As `LinearPart.splits`; a bias is not split."""
        return super().splits(name) if name == "weight" else []

    def moves(self, enters: bool | None = True, grad: bool = True, readers: int = 1) -> list[Move]:
        """As of `tpviz.modules.easy`; only the last exchange asks whether the input needs a
        gradient."""
        x, y, found = self.at.i, self.at.s, []
        if y > 1:
            found += [
                Move("forward", "all_to_all", "y", self.ins),
                Move("forward", "reduce_scatter", "y", y * self.out),
                Move("backward", "all_gather", "y", y * self.out),
                *[Move("backward", "all_to_all", "y", self.ins)] * grad,
            ]
        if x > 1:
            found += [
                Move("forward", "all_gather", "x", x * self.ins),
                Move("forward", "all_to_all", "x", self.out),
                Move("backward", "all_to_all", "x", self.out),
                Move("backward", "all_gather", "x", x * self.ins),
                Move("backward", "reduce_scatter", "x", x * self.ins),
            ]
        return found


class Singles:
    """As `tpviz.modules.plan.PairPlan`: pairs (of one layer each), left, notes."""

    def __init__(
        self,
        model: "nn.Module",
        layout: "Layout",
        inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
        z: int,
        shared: Callable[[Callable[[], Any]], Any],
    ):
        self.at, self.z, self.notes = layout, z, []
        modules, tied = dict(model.named_modules()), owners(model)
        self.pairs, self.left = [], {}
        linears = {path: module for path, module in modules.items() if looks_linear(module)}
        read = shared(lambda: read_elsewhere(model, linears, inputs)) if inputs else {}
        for path, module in linears.items():
            try:
                parent = modules.get(path.rpartition(".")[0])
                if reason := obstacle(path, module, parent, tied) or read.get(path, ""):
                    raise ValueError(reason)
                self.pairs.append(Planned("linear", "easy mode", (), self._single(path, module)))
            except ValueError as error:
                self.left[path] = _whole(module, str(error))
        if not self.pairs:
            raise ValueError(_nothing(model, "put on the grid", self.left))

    def _single(self, path, module):
        part = _part(Single, path, module, self.at, z=self.z)
        divides("out_features", part.out, "x", self.at.i)
        divides("in_features", part.ins, "y", self.at.s)
        divides("block", part.block, "z", self.z)
        return part
