"""Pairs found without names: in an ``nn.Sequential``, and in the graph that ``torch.export`` gives.

In the graph a linear layer is second of a pair if everything that reaches it comes from linear
layers through operations that treat each feature alone, and nothing on the way is used elsewhere.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from itertools import takewhile
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from .partition.calls import Flat
from .partition.standins import quiet

# -- linear layers as they are found ---------------------------------------------------------------
# Known are ``nn.Linear``, weight (out, in), and Hugging Face's ``Conv1D``, weight (in, out). The
# forward of a subclass may do anything: Falcon's computes the same, which is tried.
LOOKS_LINEAR = ("Linear", "Conv1D", "Dense")


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is Hugging Face's layer with weight (in, out); torch's convolution is another."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def known(module: nn.Module) -> bool:
    """Whether the module's forward is known to be just x W^T + b."""
    return type(module) is nn.Linear or is_conv1d(module) or _acts_as_linear(module)


def _acts_as_linear(module):
    """Whether a subclass of ``nn.Linear`` gives what ``nn.Linear`` does, and its gradients."""
    more = [
        *module.children(),
        *module.buffers(),
        *({**module._parameters}.keys() - {"weight", "bias"}),
    ]
    if not isinstance(module, nn.Linear) or more or module.weight.is_meta:
        return False
    before = module.training
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            return all(_same_as_linear(module.train(mode)) for mode in (False, True))
    except Exception:  # it may ask for inputs of its own kind
        return False
    finally:
        module.train(before)


def _same_as_linear(module):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, module.in_features, generator=generator).to(module.weight)
    x.requires_grad_()
    given = [x, *(p for p in module.parameters() if p.requires_grad)]
    found = []
    for forward in (type(module).forward, nn.Linear.forward):
        y = forward(module, x)
        found.append([y, *torch.autograd.grad(y.cos().sum(), given)])
    close = 1e3 * torch.finfo(x.dtype).eps
    return all(bool((a - b).abs().max() <= close * b.abs().max()) for a, b in zip(*found))


@contextmanager
def as_linear(model: nn.Module) -> Iterator[None]:
    """While inside, subclasses of ``nn.Linear`` that compute the same do so by its forward."""
    others = [m for m in model.modules() if isinstance(m, nn.Linear) and type(m) is not nn.Linear]
    for module in others:
        if "forward" not in module.__dict__ and known(module):
            module.forward = MethodType(nn.Linear.forward, module)
        else:
            others = [m for m in others if m is not module]
    try:
        yield
    finally:
        for module in others:
            del module.forward


def looks_linear(module: nn.Module) -> bool:
    """Whether the module resembles a linear layer; those left whole are listed in reports."""
    return any(word in base.__name__ for base in type(module).__mro__ for word in LOOKS_LINEAR)


def out_dim(module: nn.Module) -> int:
    """The dim of the weight with the output features; that of the input's is the other."""
    return 1 if is_conv1d(module) else 0


def widths(module: nn.Module) -> tuple[int, int]:
    """(output features, input features)."""
    out, ins = module.weight.shape  # pyright: ignore[reportGeneralTypeIssues]
    return (ins, out) if is_conv1d(module) else (out, ins)  # pyright: ignore[reportReturnType]


def commonpath(paths: Iterable[str]) -> str:
    """The path of the innermost module that is, or is around, all of these."""
    names = zip(*(path.split(".") for path in paths))
    return ".".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, names))


def get_number(module: nn.Module, name: str) -> Any:
    """A module's attribute, or its config's for a name such as "config.heads"; None if missing."""
    for part in name.split("."):
        module = getattr(module, part, None)  # pyright: ignore[reportAssignmentType]
    return module


def set_number(module: nn.Module, name: str, value: int) -> None:
    """Set what `get_number` returns. A config is copied first, since other modules share it."""
    around, _, number = name.rpartition(".")
    if around:
        module.__dict__[around] = copy(getattr(module, around))
        module = module.__dict__[around]
    setattr(module, number, value)


def owners(model: nn.Module) -> dict[int, list[str]]:
    """{id of a parameter: "path.name" of each module that has it}; more than one: they are tied."""
    found = {}
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append(f"{path}.{name}".lstrip("."))
    return found


def obstacle(
    path: str, module: nn.Module, parent: nn.Module | None, tied: dict[int, list[str]]
) -> str:
    """Why this layer cannot be cut, whatever its partner; empty if it can. tied: `owners`."""
    if not path:
        return "it is the whole model"
    if isinstance(parent, nn.MultiheadAttention):
        return "nn.MultiheadAttention reads its weight without calling it"
    if not known(module):
        return f"module type {type(module).__name__} is not known"
    for name, parameter in module.named_parameters(recurse=False):
        others = [other for other in tied[id(parameter)] if other != f"{path}.{name}"]
        if others:
            return f"its {name} is tied to {', '.join(others)}"
    if any(
        getattr(module, hooks)
        for hooks in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    ):
        return "it has its own hooks"
    return ""


FEATUREWISE = frozenset(
    "gelu relu relu6 silu mish tanh sigmoid elu selu celu leaky_relu softplus hardswish "
    "hardsigmoid hardtanh dropout add sub mul div neg abs square pow exp clamp clamp_min clamp_max "
    "clone contiguous alias to _to_copy".split()
)
_SHAPES = frozenset(
    "view reshape transpose permute unflatten flatten split chunk unbind select "
    "slice split_with_sizes getitem unsqueeze squeeze expand contiguous".split()
)
_ATTENTION = frozenset("scaled_dot_product_attention matmul bmm softmax _softmax".split())
_ACTIVATIONS = (
    nn.GELU,
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.Mish,
    nn.Tanh,
    nn.Sigmoid,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.Dropout,
    nn.Identity,
)


def in_sequences(modules: Mapping[str, nn.Module]) -> Iterator[tuple[tuple[str, ...], str]]:
    """(first layers, second layer), paths, of neighbours in an ``nn.Sequential`` with activations
    between them."""
    for path, module in modules.items():
        if type(module) is not nn.Sequential:
            continue
        before = None
        for name, child in module._modules.items():
            here = f"{path}.{name}".lstrip(".")
            if known(child):
                if before:
                    yield (before,), here
                before = here
            elif type(child) not in _ACTIVATIONS:
                before = None


class Findings(NamedTuple):
    """What the graph says. pairs : (first layers, second layer), paths, in its order; reasons :
    {path: why nothing is the second layer to this one}. Ranks can send it to each other."""

    pairs: tuple[tuple[tuple[str, ...], str], ...]
    reasons: dict[str, str]


class LinearFlow:
    """Which linear layers feed which others in one forward of a model.

    Raises whatever ``torch.export`` raises where it cannot follow the model.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        with quiet(), as_linear(model):
            program = torch.export.export(Flat(model), args, kwargs, strict=False)
        names = program.graph_signature.inputs_to_parameters
        first = {module: path for path, module in reversed(list(model.named_modules()))}
        self.first = {
            path: first[module] for path, module in model.named_modules(remove_duplicate=False)
        }
        self.paths, self.calls, self.read = {}, {}, set()
        for node in program.graph.nodes:
            weight = node.op == "placeholder" and names.get(node.name, "")
            if weight and weight.endswith(".weight"):
                self._layer(node, self._path(weight.removesuffix(".weight")))
        for path in self.read & self.calls.keys():
            for call in self.calls.pop(path):
                del self.paths[call]

    def _path(self, name):
        """A module's first path, whichever the graph calls it by."""
        return self.first.get(name.removeprefix("inner."))

    def _layer(self, placeholder, path):
        """The calls of a layer; one whose weight is read in another way cannot be replaced."""
        for node in placeholder.users:
            made_by = list(node.meta.get("nn_module_stack", {}).values())
            if (
                _name(node) == "linear"
                and node.args[1] is placeholder
                and made_by
                and self._path(made_by[-1][0]) == path
            ):
                self.calls.setdefault(path, []).append(node)
                self.paths[node] = path
            else:
                self.read.add(path)

    def pairs(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """(first layers, second layer), paths, in the order of the graph."""
        for second, calls in self.calls.items():
            found = [self._sources(call) for call in calls]
            firsts = sorted(
                {self.paths[node] for nodes in found for node in nodes}, key=list(self.calls).index
            )
            used = sum(map(len, found))
            if found and all(found) and used == sum(len(self.calls[path]) for path in firsts):
                yield tuple(firsts), second

    def _sources(self, call):
        """The calls of linear layers that alone reach this one; empty if there is more to it."""
        through = lambda node: () if node in self.paths else node.all_input_nodes
        seen = reached(call.args[:1], through)
        sources = {node for node in seen if node in self.paths}
        between = seen - sources
        if any(_name(n) not in FEATUREWISE or not n.all_input_nodes for n in between):
            return set()
        kept = seen | {call}
        return sources if all(user in kept for node in seen for user in node.users) else set()

    def findings(self, paths: Iterable[str]) -> Findings:
        """All that a plan asks for, of the layers at ``paths``; without the graph."""
        return Findings(tuple(self.pairs()), {path: self.reason(path) for path in paths})

    def reason(self, path: str) -> str:
        """Why the layer at ``path`` has no second layer, as a text."""
        if path in self.read:
            return "its weight is read without a call of the layer"
        if not self.calls.get(path):
            return "the forward of example_inputs does not use it"
        ends = {name for call in self.calls[path] for name in _ends(call, FEATUREWISE)}
        if (
            _ATTENTION
            & {name for call in self.calls[path] for name in _ends(call, FEATUREWISE | _SHAPES)}
            and ends & _SHAPES
        ):
            return "its output goes to attention"
        if ends == {"output"}:
            return "its output is the model's"
        return f"its output goes to {', '.join(sorted(ends))}"


def reached(start: Iterable[Any], ahead: Callable[[Any], Iterable[Any]]) -> set[Any]:
    """The nodes of a graph at ``start``, those ``ahead`` of them, and so on."""
    seen, left = set(), list(start)
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += ahead(node)
    return seen


def _ends(call, through):
    """Names of the first operations after a call that are not among ``through``."""
    seen = reached(call.users, lambda node: node.users if _name(node) in through else ())
    return {_name(node) for node in seen} - through


def _name(node):
    """relu of aten.relu_.default; the kind of node where there is no operation."""
    if node.op != "call_function":
        return node.op
    parts = str(node.target).split(".")
    return parts[1].rstrip("_") if len(parts) > 1 else node.target.__name__


def check_rotary(model: nn.Module, tokens: int) -> None:
    """Raise ``ValueError`` where Hugging Face's rotary positions depend on how long the sequence
    is, of which a rank sees its part, and so many tokens are longer than the original length."""
    for module in model.modules():
        kinds, config = getattr(module, "rope_type", None), getattr(module, "config", None)
        asked = getattr(config, "rope_parameters", None) or {}
        for layer, kind in (kinds if isinstance(kinds, dict) else {None: kinds}).items():
            if kind not in ("dynamic", "longrope"):
                continue
            most = asked.get(layer, asked).get("original_max_position_embeddings")
            most = most or config.max_position_embeddings  # pyright: ignore[reportOptionalMemberAccess]
            if tokens > most:
                raise ValueError(
                    f"rope_type={kind!r} turns sequences of {tokens} tokens otherwise than those "
                    f"up to its original {most}, and a rank sees a part: use at most {most} tokens"
                )
