"""Why a model could not be traced: the module, the line, and what to do."""

import linecache
import traceback

from torch import nn

from .standins import OwnBackward


def reason(model, error):
    """The text of the error that `tracing.trace` raises."""
    name = type(model).__name__
    said = str(error).strip().split("\n")[0][:200]
    where = _where(model, error)
    if isinstance(error, OwnBackward):
        return (f"{name} cannot be traced: {where} calls the autograd function {said}, whose "
                "backward export would lose: give that module's type in leaves=, or, if this is "
                "activation checkpointing, turn it off (stages recompute by themselves)")
    if "data-dependent" in said.lower() or type(error).__name__.startswith("DataDependent"):
        return (f"{name} cannot be traced: {where} depends on a tensor's values, which no trace "
                f"has ({said}): use torch.where or torch.cond there, or give that module's type in "
                "leaves=")
    return (f"{name} cannot be traced: {where} raises {type(error).__name__}: {said}. If the model "
            "does run on these example_inputs, change that line or give the module's type in "
            "leaves=; else correct the inputs")


def _where(model, error):
    """The innermost place in a module's code outside of torch, as "h.0 (Block), file:3, `code`"."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in paths:
            code = frame.f_code
            if code.co_name not in ("_call_impl", "_wrapped_call_impl", "__call__"):
                text = linecache.getline(code.co_filename, line).strip()
                path = paths[id(module)]
                found = (f"{path} ({type(module).__name__})" if path else
                         f"{type(module).__name__}.{code.co_name}")
                found += f", {code.co_filename.rpartition('/')[2]}:{line}, `{text}`,"
    return found or "its forward"
