"""Which part of the step is running, found from outside the program.

Forward: a module's forward is on the stack (PyTorch's global module hooks). Backward: autograd is
running a graph task; the layer comes from the node's sequence number, which autograd hands out in
forward order. Recompute: a module's forward inside a graph task. Sync: a reduction issued while a
gradient is being accumulated (where DDP and our data parallelism hook in), or after backward within
a marked step. Optimizer: between PyTorch's optimizer-step hooks. A label (`tpviz.labels`) overrides
all of these.
"""

from bisect import bisect_right

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from tpviz import labels

_task_id = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_next_sequence = torch._C._autograd._get_sequence_nr
_REDUCTIONS = {"all_reduce", "reduce_scatter", "reduce"}


class Phases:
    """Follows one program on one rank between `start` and `stop`."""

    def __init__(self):
        self.step = -1
        self.in_optimizer = False
        self.module_seen = self.backward_seen = False
        self.stack = []  # (layer, entered inside a backward?)
        self.boundaries = [(-1, "")]  # (first autograd sequence number, layer)
        self.names = {}  # module -> qualified name; emptied by `stop`
        self.handles = []

    def start(self):
        self.handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
            optimizer_hooks.register_optimizer_step_pre_hook(self._optimizer_begins),
            optimizer_hooks.register_optimizer_step_post_hook(self._optimizer_ends),
        ]

    def stop(self):
        for handle in self.handles:
            handle.remove()
        self.names.clear()

    def where(self, collective=""):
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
        if self.backward_seen:
            return ("sync" if collective in _REDUCTIONS else ""), -1
        return "forward", -1

    def layer_of(self, sequence):
        """The layer whose forward made the autograd node with this sequence number."""
        at = bisect_right(self.boundaries, sequence, key=lambda b: b[0])
        return self.boundaries[at - 1][1]

    def _enter(self, module, args):
        if not self.stack and module not in self.names:
            for name, part in module.named_modules():
                self.names.setdefault(part, name)  # the outermost module seen first names its parts
        self._push(self.names.get(module) or type(module).__name__)

    def _push(self, layer):
        self.module_seen = True
        self.stack.append((layer, _task_id() >= 0))
        self.boundaries.append((_next_sequence(), layer))

    def _leave(self, module, args, output):
        self.stack.pop()
        self.boundaries.append((_next_sequence(), self.stack[-1][0] if self.stack else ""))

    def _optimizer_begins(self, *_):
        self.in_optimizer = True

    def _optimizer_ends(self, *_):
        self.in_optimizer = False
