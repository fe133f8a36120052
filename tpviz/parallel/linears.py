"""Linear layers as they are found: which kinds are known, their weight's dims, who owns a weight.

Known are ``nn.Linear``, weight (out, in), and Hugging Face's ``Conv1D``, weight (in, out), as they
are and not subclasses of them, whose forward may do anything.
"""

from torch import nn

LOOKS_LINEAR = ("Linear", "Conv1D", "Dense")


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is Hugging Face's layer with weight (in, out); torch's convolution is another."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def known(module: nn.Module) -> bool:
    """Whether its forward is x W^T + b and nothing else."""
    return type(module) is nn.Linear or is_conv1d(module)


def looks_linear(module: nn.Module) -> bool:
    """Whether people would call it a linear layer: these are listed where they are left alone."""
    return any(word in base.__name__ for base in type(module).__mro__ for word in LOOKS_LINEAR)


def out_dim(module: nn.Module) -> int:
    """The dim of the weight with the output features; that of the input's is the other."""
    return 1 if is_conv1d(module) else 0


def widths(module: nn.Module) -> tuple[int, int]:
    """(output features, input features)."""
    out, ins = module.weight.shape  # pyright: ignore[reportGeneralTypeIssues]
    return (ins, out) if is_conv1d(module) else (out, ins)  # pyright: ignore[reportReturnType]


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
