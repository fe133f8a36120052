"""Why a model could not be traced: the module, the line, and what to do."""

import linecache
import traceback

from torch import nn

from .leaves import NoShape
from .standins import OwnBackward


def reason(model: nn.Module, error: BaseException) -> str:
    """The text of the error that `tracing.trace` raises."""
    said, kind = _said(error), type(error).__name__
    where = f"{type(model).__name__} cannot be traced: {_where(model, error)}"
    causes = [error]
    while causes[-1].__cause__ or causes[-1].__context__:
        causes.append(causes[-1].__cause__ or causes[-1].__context__)  # pyright: ignore[reportArgumentType]
    leaf = next((cause for cause in causes if isinstance(cause, NoShape)), None)
    if leaf:
        return (
            f"{where} calls the leaf {leaf}, whose forward does not run on tensors without "
            f"numbers ({_said(leaf.__cause__)}): give it a method shape, called with the "
            "arguments of forward, that returns the output's shape as a torch.Size, as in "
            f"{leaf.kind}.shape = lambda self, x, *others: x.shape"
        )
    if isinstance(error, OwnBackward):
        return (
            f"{where} calls the autograd function {said}, whose backward export would lose: "
            "give that module's type in leaves=, or, if this is activation checkpointing, turn "
            "it off (stages recompute by themselves)"
        )
    if "data-dependent" in said.lower() or "DataDependent" in kind or "Unbacked" in kind:
        return (
            f"{where} depends on a tensor's values, which a trace has not ({said}): use "
            "torch.where there, or give that module's type in leaves="
        )
    return (
        f"{where} raises {kind}: {said}. If the model does run on these example_inputs, change "
        "that line or give the module's type in leaves=; else correct the inputs"
    )


def _said(error):
    return str(error).strip().split("\n")[0][:200].rstrip(".")


def _where(model, error):
    """The innermost place in the code of one of the model's modules, as "h.0 (Block), file:3,
    `code`,"."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = "its forward"
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        calling = code.co_name in ("_call_impl", "_wrapped_call_impl", "__call__")
        if isinstance(owner, nn.Module) and id(owner) in paths and not calling:
            path, kind = paths[id(owner)], type(owner).__name__
            text = linecache.getline(code.co_filename, line).strip()
            found = (
                f"{f'{path} ({kind})' if path else kind}, "
                f"{code.co_filename.rpartition('/')[2]}:{line}, `{text}`,"
            )
    return found
