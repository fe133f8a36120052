"""One run of a traced graph on fake tensors, with gradients: what each operation costs and keeps.

FLOPs are the counter's, operator by operator below the traced one (a linear layer is its GEMM).
What is kept for backward is asked of autograd, for the kernels of the traced device; it is called
an estimate because another device may choose other kernels, and allocators round up.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

from tpviz.ranks.compute import KERNELS, flops

from .graph import Node, TensorSpec
from .leaves import LeafCall, tensors_of

INPUT = ("input", None)
LEAF = torch.ops.tpviz.leaf.default
# They write their running mean and variance, though their schema does not say so.
_STATISTICS = (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default)
_EMBEDDINGS = (
    torch.ops.aten.embedding.default,
    torch.ops.aten.embedding_bag.default,
    torch.ops.aten.embedding_bag.padding_idx,
)


def _attention(operator, *args, out_shape=None, **kwargs):
    """FLOPs of fused attention, as of a recorded kernel."""
    return flops(operator, [*args, out_shape])


_FUSED = (getattr(torch.ops.aten, n, None) for n in KERNELS if n.startswith("_scaled_dot_product"))
_MORE = {packet: partial(_attention, packet.default) for packet in _FUSED if packet}


class Measure(fx.Interpreter):
    """Runs a graph module once; then `nodes` has its `Node` objects.

    kinds : {placeholder's name: ("parameter", "buffer", "constant" or "input", its own name)}.
    calls : of leaves. owned : {path of a leaf: (names of parameters, of buffers)}.
    """

    module: fx.GraphModule

    def __init__(
        self,
        program: fx.GraphModule,
        kinds: dict[str, tuple[str, str]],
        calls: Sequence[LeafCall],
        owned: dict[str, tuple[tuple[str, ...], ...]],
    ):
        super().__init__(program, garbage_collect_values=False)  # storages keep their ids
        self.kinds, self.calls, self.owned = kinds, calls, owned
        self.facts = {}

    def run(self, *tensors: torch.Tensor) -> Self:
        """Forward on these tensors, one a placeholder."""
        names = [n.name for n in self.module.graph.nodes if n.op == "placeholder"]
        self.outer = {_storage(t): self.kinds[name][1] for t, name in zip(tensors, names)}
        self.counter = FlopCounterMode(display=False, custom_mapping=_MORE)
        with torch.enable_grad(), self.counter:
            super().run(*tensors)
        self.written = set().union(*(writes for *_, writes in self.facts.values()))
        return self

    def run_node(self, n: fx.Node) -> Any:
        """Run one operation and record what it costs."""
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        if n.target is LEAF and self.calls[n.args[1]].shape:  # pyright: ignore[reportArgumentType, reportCallIssue]
            return self._told(n, self.calls[n.args[1]])  # pyright: ignore[reportArgumentType, reportCallIssue]
        args = tensors_of([self.env[node] for node in n.all_input_nodes])
        versions, flops, saves = [t._version for t in args], self.counter.get_total_flops(), {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.outer:
                saves[storage._cdata] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = super().run_node(n)
        writes = {self._place(t) for t, version in zip(args, versions) if t._version != version}
        if n.target in _STATISTICS and n.args[5]:
            writes |= {self._place(self.env[node]) for node in n.args[3:5] if node is not None}  # pyright: ignore[reportArgumentType]
        self.facts[n] = value, self.counter.get_total_flops() - flops, saves, writes
        return value

    def _place(self, tensor) -> int | str:
        """What a tensor lies in: a parameter, buffer or input by name, else a storage's number."""
        storage = _storage(tensor)
        return self.outer.get(storage, storage)

    def call_function(
        self, target: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Leaves run their real forward: the operator in their place has no numbers."""
        if target is LEAF:
            return self.calls[args[1]].like(args[0])
        return super().call_function(target, args, kwargs)

    def _told(self, n, call):
        """A leaf that only tells its shape: the FLOPs of its matrices as linear layers on its first
        input, and its inputs kept (both estimates)."""
        args = [self.env[node] for node in n.args[0]]
        value = [t.requires_grad_(t.is_floating_point()) for t in call.like(args)]
        rows = args[0].shape[:-1].numel()
        flops = sum(2 * rows * p.numel() for p in call.module.parameters() if p.dim() > 1)
        self.facts[n] = (
            value,
            flops,
            {
                _storage(t): t.untyped_storage().nbytes()
                for t in args
                if _storage(t) not in self.outer
            },
            set(),
        )
        return value

    # -- what follows ------------------------------------------------------------------------------
    def nodes(self) -> tuple[Node, ...]:
        """The `Node` objects, in order.

        Raises ``ValueError`` where the model writes into one of its inputs, or makes tensors whose
        sizes depend on values.
        """
        self.learned, self.free, found = set(), set(), []
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                kind, name = self.kinds[node.name]
                if kind == "parameter":
                    self.learned.add(node)
                elif name not in self.written:
                    self.free.add(node)
                elif kind == "input":
                    raise ValueError(
                        f"the model writes into its input {name}, which every stage "
                        "would load anew: let it write into a clone"
                    )
            elif node.op != "output":
                found.append(self._node(node))
        return tuple(found)

    def _node(self, node):
        value, flops, saves, writes = self.facts[node]
        takes, call = node.all_input_nodes, None
        kinds = [self.kinds[n.name] for n in takes if n.op == "placeholder"]
        used = {
            kind: tuple(name for k, name in kinds if k == kind)
            for kind in ("parameter", "buffer", "constant")
        }
        if node.target is LEAF:
            call = self.calls[node.args[1]]
            used["parameter"], used["buffer"] = self.owned[call.path]
        tensors = tensors_of(value)
        if any(not isinstance(size, int) for t in tensors for size in t.shape):
            raise ValueError(
                f"{call.path if call else _path(node) or 'the model'} makes a tensor "
                f"whose size depends on values ({_op(node)}): stages pass tensors of"
                " fixed sizes; use masks, or a leaf that has a method shape"
            )
        if call or not self.learned.isdisjoint(takes):
            self.learned.add(node)
        elif (
            self.free.issuperset(takes)
            and not (writes or _random(node, self.module))
            and self.written.isdisjoint(map(self._place, tensors))
        ):
            self.free.add(node)
        one = isinstance(value, torch.Tensor)
        return Node(
            node.name,
            type(call.module).__name__ if call else _op(node),
            call.path if call else _path(node),
            used["parameter"],
            used["buffer"] + used["constant"],
            tuple(n.name for n in takes if self.kinds.get(n.name, INPUT)[0] == "input"),
            TensorSpec.of(node.name, value) if one else None,
            flops,
            saves,
            frozenset(map(self._place, tensors + tensors_of([self.env[n] for n in takes]))),
            frozenset(writes),
            any(t.requires_grad for t in tensors),
            node in self.learned,
            node in self.free,
            type(call.module).__name__.endswith("Embedding")
            if call
            else node.target in _EMBEDDINGS and node.args[0] in self.learned,
        )


def _storage(tensor) -> int:
    return tensor.untyped_storage()._cdata


def _random(node, module):
    """Whether the operation, or one in a part that runs in another mode, draws random numbers."""
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return True
    regions = [getattr(module, n.target, None) for n in node.all_input_nodes if n.op == "get_attr"]
    return any(
        _random(n, region)
        for region in regions
        if isinstance(region, fx.GraphModule)
        for n in region.graph.nodes
    )


def _op(node):
    """aten.linear of aten.linear.default; get_attr of a part that runs in another mode."""
    if node.op != "call_function":
        return node.op
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target.overloadpacket)
    return getattr(node.target, "__name__", str(node.target))


def _path(node):
    """The innermost module's, without export's own around the model."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0].removeprefix("inner").removeprefix(".") if stack else ""
