"""Rules that would split what a plan leaves whole: each is tried before it is said.

One forward with gradients shows which linear layers alone feed another one; nothing needs to be
exported, so routing to experts is no obstacle. For each such group, heads, fused blocks and the
numbers to divide are guessed from the module that holds it. A guess is tried in one process: the
module runs once for each part, with that part of the first layers and divided numbers, and the
second layer must then see that part of what it sees in the whole model, and nothing else.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import product
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .experts import stacks_of
from .rules import Pair
from .sequences import attention_of
from .structure import commonpath, reached, set_number, widths
from .watch import hooked, in_evaluation

if TYPE_CHECKING:
    from .plan import PairPlan, Planned

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference of outputs that rounding explains, beside their largest value (derived: some
thousands of units in the last place, for sums in another order); else 5e-2, for 16 bits."""


class PairGroup(NamedTuple):
    """Layers that may be a pair, by path; ``around``: the innermost module around all of them."""

    around: str
    firsts: tuple[str, ...]
    second: str

    def relative(self, path: str) -> str:
        """A layer's path from ``around`` on."""
        return path.removeprefix(f"{self.around}.")


def suggested(plan: "PairPlan") -> list[Pair]:
    """Rules that split layers which ``plan`` leaves whole, one for each kind of module."""
    found, tried = [], set()
    if plan.inputs is None or len(plan.free) < 2:
        return []
    with in_evaluation(plan.model), torch.random.fork_rng(devices=[]):
        for group in _groups(plan):
            holder = plan.modules[group.around]
            kind = type(holder).__name__, *map(group.relative, (*group.firsts, group.second))
            if kind not in tried:
                tried.add(kind)
                found += _first_that_works(plan, group)
    return found


def sequences_too(plan: "PairPlan") -> list[str]:
    """In words, the `tpviz.Context` of at most as many ranks that cuts the model's sequences where
    none of its layers are split; empty where there is none."""
    try:
        calls = attention_of(plan.model, plan.inputs)  # pyright: ignore[reportArgumentType]
    except Exception:  # attention that is not causal, or that is called otherwise, or no inputs
        return []
    cp = max(
        n for n in range(1, plan.at.i * plan.at.s + 1) if n == 1 or calls[0].seq % (2 * n) == 0
    )
    return [f"its sequences can be cut, since attention is causal: tv.Context(cp={cp})"] * (cp > 1)


def experts_too(plan: "PairPlan") -> list[str]:
    """In words, the `tpviz.Experts` of at most as many ranks that spreads the model's experts where
    none of its layers are split; empty where there are none, or nobody knows how they are called.
    """
    counts = [stack.experts for stack in stacks_of(plan.model)]
    if not counts or plan.inputs is None:
        return []
    ep = max(n for n in range(1, plan.at.i * plan.at.s + 1) if gcd(*counts) % n == 0)
    return [f"its experts can be spread: tv.Experts(ep={ep})"] * (ep > 1)


def _first_that_works(plan, group):
    trial = _Trial(plan, group)
    for pair in _guesses(plan, group) if trial.calls else ():
        try:
            planned = plan.planned_of(pair, group.firsts, group.second)
            if trial.works(planned):
                return [pair]
        except Exception:  # a wrong guess may fail in any way
            continue
    return []


# -- which layers feed which -----------------------------------------------------------------------
def _groups(plan: "PairPlan") -> Iterator[PairGroup]:
    """Free layers that nothing but other free layers feed, without a parameter between them: of
    that a rank would have a part of the gradient."""
    made, reads = _calls(plan.model, plan.modules, plan.linears, plan.inputs)
    for second, nodes in reads.items():
        fed = {_sources(node, made) for node in nodes}
        if second not in plan.free or len(fed) != 1:
            continue
        feeding = fed.pop() or frozenset()
        firsts = tuple(path for path in plan.linears if path in feeding)
        if firsts and set(firsts) <= plan.free - {second}:
            yield PairGroup(commonpath([*firsts, second]), firsts, second)


def _calls(model, modules, paths, inputs):
    """({node of autograd: path of the layer that made it}, {path: nodes of its inputs})."""
    made, reads = {}, {}

    def note(path):
        def hook(layer, args, output):
            made[output.grad_fn] = path
            reads.setdefault(path, []).append(args[0].grad_fn)

        return hook

    hooks = [modules[path].register_forward_hook(note(path)) for path in paths]
    wide = lambda x: isinstance(x, torch.Tensor) and x.is_floating_point()
    args, kwargs = tree_map(lambda x: x.detach().requires_grad_() if wide(x) else x, inputs)
    try:
        with hooked(hooks), torch.enable_grad():
            model(*args, **kwargs)
    except Exception:  # running it raises that error
        reads.clear()
    return made, reads


def _sources(start, made):
    """The layers that alone lead to a node; None where a parameter or an input does too."""
    before = lambda node: (
        () if node is None or node in made else [n for n, _ in node.next_functions]
    )
    seen = reached([start], before) - {None}
    if any(type(node).__name__ == "AccumulateGrad" for node in seen - made.keys()):
        return None
    return frozenset(made[node] for node in seen & made.keys())


# -- guesses ---------------------------------------------------------------------------------------
def _guesses(plan: "PairPlan", group: PairGroup) -> Iterator[Pair]:
    """The likely rules, the simplest first."""
    star = "*." if group.around else ""
    names = {
        "first": tuple(star + group.relative(path) for path in group.firsts),
        "second": star + group.relative(group.second),
        "owner": type(plan.modules[group.around]).__name__,
    }
    inner = widths(plan.modules[group.second])[1]
    wides = [widths(plan.modules[path])[0] for path in group.firsts]
    fused = len(wides) == 1 and wides[0] > inner
    yield Pair(**names, fused="blocks" if fused else None)
    holder = plan.modules[group.firsts[0].rpartition(".")[0]]
    for name, value in _numbers(holder):
        if "head" not in name or inner % value:
            continue
        size = _is_size(name)
        each, count = (value, inner // value) if size else (inner // value, value)
        heads = {"head_size" if size else "heads": name}
        for how in _ways(wides[0] // each, count) if fused else (None,):
            counts = {
                count,
                *(wide // each for wide in wides),
                *(how if isinstance(how, tuple) else ()),
            }
            for divide in _divided(holder, counts, {inner, *wides}):
                yield Pair(**names, kind="attention", fused=how, divide=divide, **heads)


def _ways(wide, count):
    """How one layer of ``wide`` heads may hold queries of ``count`` heads, keys and values."""
    yield from ("blocks", "heads")
    if wide > count and (wide - count) % 2 == 0:
        yield count, (wide - count) // 2, (wide - count) // 2


def _numbers(module: Any) -> list[tuple[str, int]]:
    return [(name, v) for name, v in vars(module).items() if type(v) is int and v > 1]


def _divided(holder, counts, sizes):
    """Which numbers of a module may be a rank's: of heads, its config's too, and of features."""
    own = _numbers(holder)
    config = _numbers(holder.config) if hasattr(holder, "config") else []
    heads, config = (
        [name for name, v in numbers if "head" in name and v in counts and not _is_size(name)]
        for numbers in (own, config)
    )
    config = [f"config.{name}" for name in config]
    features = [name for name, v in own if v in sizes and "head_dim" not in name]
    for with_config, with_features in product((False, True), repeat=2):
        names = heads + config * with_config + features * with_features
        yield tuple(dict.fromkeys(names))
    yield ()


def _is_size(name):
    return name.endswith(("dim", "size"))


# -- a trial ---------------------------------------------------------------------------------------
class _Seen(nn.Linear):
    """In the place of the second layer: notes its input and gives what the whole layer gave."""

    def __init__(self, whole: nn.Module, answers: Iterable[torch.Tensor]):
        super().__init__(1, 1)
        self.weight, self.bias = whole.weight, whole.bias  # pyright: ignore[reportAttributeAccessIssue]
        self.answers, self.inputs = iter(answers), []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs.append(x)
        return next(self.answers)


class _Trial:
    """A group's module with the arguments of its first call, and what its second layer saw then."""

    def __init__(self, plan: "PairPlan", group: PairGroup):
        self.plan, self.group = plan, group
        self.holder, self.second = plan.modules[group.around], plan.modules[group.second]
        self.calls, self.seen, self.gave = [], [], []
        hooks = [
            self.holder.register_forward_pre_hook(self._called, with_kwargs=True),
            self.second.register_forward_hook(self._saw),
        ]
        args, kwargs = plan.inputs or ((), {})
        with hooked(hooks), torch.no_grad():
            plan.model(*args, **kwargs)

    def _called(self, module, args, kwargs):
        self.calls.append(deepcopy((args, kwargs)) if not self.calls else None)

    def _saw(self, module, args, output):
        if len(self.calls) == 1:
            self.seen.append(args[0])
            self.gave.append(output)

    @torch.no_grad()
    def works(self, planned: "Planned") -> bool:
        """Whether every part's second layer sees its part of what the whole one saw."""
        parts = planned.second.parts
        return parts > 1 and all(self._part_works(planned, part, parts) for part in range(parts))

    def _part_works(self, planned, part, parts):
        seen = _Seen(self.second, self.gave)
        new = {first.path: self._slice(first, part, parts) for first in planned.firsts}
        with ExitStack() as stack:
            for path, layer in {**new, planned.second.path: seen}.items():
                stack.enter_context(_instead(self.plan.modules, path, layer))
            for path, name, _, own in planned.divided:
                module, kept = self.plan.modules[path], name.partition(".")[0]
                stack.callback(setattr, module, kept, getattr(module, kept))
                set_number(module, name, own)
            args, kwargs = deepcopy(self.calls[0])
            self.holder(*args, **kwargs)
        return len(seen.inputs) == len(self.seen) and all(
            _close(own, whole.chunk(parts, -1)[part]) for own, whole in zip(seen.inputs, self.seen)
        )

    def _slice(self, first, part, parts):
        whole, layer = self.plan.modules[first.path], nn.Linear(1, 1)
        own = {
            name: first.to_order(name, full).chunk(parts, first.out_dim * (name == "weight"))[part]
            for name in ("weight", "bias")
            if (full := getattr(whole, name, None)) is not None
        }
        layer.weight = nn.Parameter(own["weight"].t() if first.out_dim else own["weight"])
        layer.register_parameter("bias", nn.Parameter(own["bias"]) if "bias" in own else None)
        return layer


@contextmanager
def _instead(modules: dict[str, nn.Module], path: str, layer: nn.Module):
    """While inside, another layer stands at ``path``."""
    parent, _, name = path.rpartition(".")
    before, modules[parent]._modules[name] = modules[parent]._modules[name], layer
    try:
        yield
    finally:
        modules[parent]._modules[name] = before


def _close(own, whole):
    close = CLOSE.get(whole.dtype, 5e-2)
    return own.shape == whole.shape and bool((own - whole).abs().max() <= close * whole.abs().max())
