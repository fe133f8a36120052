"""Python of ours that torch.compile must run and not compile.

While a compiled function runs, Dynamo looks at every Python frame that starts in its thread, also
at those that C++ calls: hooks, kernels, process groups.
"""

from types import FunctionType

import torch

_frames = torch._C._dynamo.eval_frame  # pyright: ignore[reportAttributeAccessIssue]


def leave_alone(*functions: FunctionType, with_callees: bool = True) -> None:
    """Have Dynamo run these functions, and by default whatever they call, as plain Python."""
    skip = _frames._FrameAction.SKIP
    inner = skip if with_callees else _frames._FrameAction.DEFAULT
    for function in functions:
        _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, inner))
