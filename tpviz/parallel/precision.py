"""Which modules of a float64 model compute in less: seen in one forward, by module.

Some models do so on purpose (norms of Gemma, losses of Hugging Face's language models). Two correct
programs then differ by that rounding, though all parameters are float64. What depends on no
parameter (tables of positions) is the same in both, and does not count.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

LOSS = "the loss"


class _Watch(TorchFunctionMode):
    """Notes results below float64, by the path of the module that is in its forward."""

    def __init__(self):
        super().__init__()
        self.inside, self.found = [], {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        reduced = [t for t in _tensors(result) if _reduced(t.dtype)]
        # in the forward of an autograd function results need no gradient, but its inputs may
        if reduced and any(t.requires_grad for t in (*reduced, *_tensors((args, kwargs)))):
            path = self.inside[-1] if self.inside else LOSS
            seen = (self.found.get(path), *(t.dtype for t in reduced))
            self.found[path] = max(filter(None, seen), key=lambda dtype: torch.finfo(dtype).eps)
        return result


@contextmanager
def watched(model: torch.nn.Module) -> Iterator[dict[str, torch.dtype]]:
    """While inside, the forward of ``model`` is watched. Gives {path of a module: the lowest dtype
    below float64 that it computes in}; what is around the model is `LOSS`."""
    watch, hooks = _Watch(), []

    def leave(*_):
        watch.inside.pop()  # what a hook returns would be the module's output

    for path, module in model.named_modules():
        hooks.append(
            module.register_forward_pre_hook(lambda *_, path=path: watch.inside.append(path))
        )
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        with watch:
            yield watch.found
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _reduced(dtype):
    return (dtype.is_floating_point or dtype.is_complex) and torch.finfo(dtype).eps > torch.finfo(
        torch.float64
    ).eps


def lowest(found: dict[str, torch.dtype]) -> torch.dtype:
    """The dtype with the coarsest rounding of those that `watched` gave; float64 for none."""
    return max(found.values(), key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)
