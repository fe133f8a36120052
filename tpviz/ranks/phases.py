"""Which part of the step is running, found from outside the program.

Forward: a module's forward is on the stack (`nn.Module.__call__` is wrapped). Backward: autograd is
running a graph task; the layer comes from the node's sequence number, which autograd hands out in
forward order. Recompute: a module's forward inside a graph task. Sync: a reduction issued while a
gradient is being accumulated (where DDP and our data parallelism hook in), or after backward within
a marked step. Optimizer: between PyTorch's optimizer-step hooks. A label (`tpviz.core.labels`)
overrides all of these.
"""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as optimizer_hooks  # pyright: ignore[reportAttributeAccessIssue]

from tpviz.core import labels

from .compute import leave_alone

_task_id = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_next_sequence = torch._C._autograd._get_sequence_nr  # pyright: ignore[reportAttributeAccessIssue]
_COMPILED = "_orig_mod"  # torch.compile's wrapper has the module under this name
_REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}
WHERE = ("phase", "layer", "microbatch", "chunk", "step")
"""What is said of the place of an event: columns of a trace."""


class PhaseMark(NamedTuple):
    """The state that begins after ``kernels`` kernels, before autograd node ``sequence``."""

    kernels: int
    sequence: int
    layer: str | None
    recomputing: bool
    in_optimizer: bool
    step: int


class Phases:
    """Follows a program on one rank between `start` and `stop`; ``kernels`` is a growing list."""

    def __init__(self, kernels: list[tuple[Any, ...]]):
        self.kernels = kernels
        self.step, self.first_kernel = -1, 0
        self.in_optimizer = False
        self.module_seen = self.backward_seen = False
        self.stack = []  # (layer, entered inside a backward?)
        self.marks: list[tuple[Any, ...]] = [(0, -1, None, False, False, -1)]
        self.names = {}  # module -> qualified name; emptied by `stop`

    def start(self) -> None:
        global _following
        _following, self.plain_call = self, torch.nn.Module.__call__
        self.watched_call = _watched(self, self.plain_call)
        self.resume()

    def stop(self) -> None:
        global _following
        self.pause()
        _following = None
        self.names.clear()

    def pause(self) -> None:
        """Stop following modules until `resume`: torch.compile would trace our hooks."""
        torch.nn.Module.__call__ = self.plain_call

    def resume(self) -> None:
        """Follow modules again."""
        torch.nn.Module.__call__ = self.watched_call

    def set_step(self, step: int) -> None:
        """A marked step begins (its number), or ends (-1)."""
        self.step, self.first_kernel = step, len(self.kernels)
        self.module_seen = self.backward_seen = False
        self._mark()

    def where(self, collective: str = "") -> tuple[str, str, int, int, int, int]:
        """(phase, layer, autograd sequence number or -1) of what is being issued now."""
        label, sequence = labels.current(), -1
        phase, layer = label.phase, label.layer
        if not phase:
            phase, sequence = self._found_phase(collective)
        if not layer and sequence < 0 and self.stack:
            layer = self.stack[-1][0]
        return phase, layer, sequence, label.microbatch, label.chunk, self.step

    def _found_phase(self, collective):
        if self.in_optimizer:
            return "optimizer", -1
        if _task_id() >= 0:
            self.backward_seen = True
            if self.stack and self.stack[-1][1]:
                return "recompute", -1
            node = _node()
            if node is None:
                return "backward", -1
            if collective in _REDUCTIONS and node.name().endswith("AccumulateGrad"):
                return "sync", -1
            return "backward", node._sequence_nr()
        if self.stack:
            return "forward", -1
        if self.step < 0 or not self.module_seen or collective in ("send", "recv"):
            return "", -1
        if self.backward_seen or self._kernel_in_backward():
            return ("sync" if collective in _REDUCTIONS else ""), -1
        return "forward", -1

    def _kernel_in_backward(self):
        """Whether one has run in this step: backward itself may issue no collective."""
        of_step = self.kernels[self.first_kernel :]
        self.backward_seen = any(note[3] >= 0 for note in of_step)
        return self.backward_seen

    def of_kernels(self) -> Iterator[dict[str, Any]]:
        """The fields of each kernel of the list, in order: {column of `WHERE`: value}.

        Kernels are many, so while they run only changes of state are marked.
        """
        mark, *later = map(PhaseMark._make, self.marks)
        upcoming = iter(later)
        following = next(upcoming, None)
        module_seen = backward_seen = False
        for i, (*_, task, node, label, _shapes, _dtype) in enumerate(self.kernels):
            while following is not None and following.kernels <= i:
                if following.step != mark.step:
                    module_seen = backward_seen = False
                mark, following = following, next(upcoming, None)
                module_seen |= mark.layer is not None
            backward_seen |= task >= 0
            phase = label.phase or _phase(mark, task, module_seen, backward_seen)
            layer = label.layer or self._layer(mark, phase, node)
            yield dict(zip(WHERE, (phase, layer, label.microbatch, label.chunk, mark.step)))

    def _layer(self, mark, phase, node):
        if phase == "backward" and node is not None:
            return self.layer_of(node)
        return mark.layer or ""

    def layer_of(self, sequence: int) -> str:
        """The layer whose forward made the autograd node with this sequence number."""
        at = bisect_right(self.marks, sequence, key=itemgetter(1))
        return PhaseMark._make(self.marks[at - 1]).layer or ""

    def _mark(self):
        """Note the state in a plain tuple, which `PhaseMark` names later: this runs between
        kernels."""
        layer, recomputing = self.stack[-1] if self.stack else (None, False)
        self.marks.append(
            (len(self.kernels), _next_sequence(), layer, recomputing, self.in_optimizer, self.step)
        )

    def enter(self, module: torch.nn.Module) -> None:
        """A module's forward begins."""
        layer = self.names.get(module) or self._name(module)
        recomputing = _task_id() >= 0
        self.stack.append((layer, recomputing))
        self.module_seen = True
        self.marks.append(  # as `_mark` does; a call less, for this runs twice per module
            (len(self.kernels), _next_sequence(), layer, recomputing, self.in_optimizer, self.step)
        )

    def _name(self, module):
        """The qualified name of a module not seen before, or of the outermost one, its type."""
        if not self.stack:
            for name, part in module.named_modules():  # the outermost seen first names its parts
                self.names.setdefault(part, ".".join(n for n in name.split(".") if n != _COMPILED))
        name = self.names.get(module)
        if not name and self.stack and isinstance(module, torch.fx.GraphModule):
            name = self.stack[-1][0]  # what torch.compile made of the module around it
        self.names[module] = name or type(_innermost(module)).__name__
        return self.names[module]

    def leave(self) -> None:
        """The module's forward ends."""
        self.stack.pop()
        self._mark()

    def optimizing(self, begins: bool) -> None:
        """An optimizer step begins (``begins``) or ends."""
        self.in_optimizer = begins
        self._mark()


def _innermost(module):
    return _innermost(getattr(module, _COMPILED)) if hasattr(module, _COMPILED) else module


def _watched(phases, call):
    """``call``, `nn.Module`'s, as ``phases`` follows it."""

    def watched_call(module, *args, **kwargs):
        phases.enter(module)
        try:
            return call(module, *args, **kwargs)
        finally:
            phases.leave()

    leave_alone(watched_call, with_callees=False)
    return watched_call


def _watch_optimizers():
    """For good: a hook that came and went would have torch.compile compile optimizers anew."""

    def hook(begins):
        def tell(*_):
            if not torch.compiler.is_compiling() and _following:
                _following.optimizing(begins)

        leave_alone(tell)
        return tell

    optimizer_hooks.register_optimizer_step_pre_hook(hook(True))
    optimizer_hooks.register_optimizer_step_post_hook(hook(False))


_following = None  # the Phases between its `start` and `stop`
_watch_optimizers()


def _phase(mark, task, module_seen, backward_seen):
    """The phase of a kernel: the same rules as `Phases.where`, from what was marked."""
    if mark.in_optimizer:
        return "optimizer"
    if task >= 0:
        return "recompute" if mark.recomputing else "backward"
    if mark.layer is not None:
        return "forward"
    outside = mark.step < 0 or not module_seen or backward_seen
    return "" if outside else "forward"
