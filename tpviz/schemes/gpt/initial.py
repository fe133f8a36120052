"""Initial parameters, one generator per name: any rank can make any of them, and slice its part.

No broadcast is needed, and a split model starts from bit for bit the numbers of the one-process
model.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from torch import nn

    from tpviz.core.workload import GPT


def initial(workload: "GPT", name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The full initial value of the parameter ``name``, drawn in float64 on the CPU, then cast.

    Weights as in GPT-2: normal, 0.02, and 0.02 / sqrt(2 layers) for the two that write to the
    residual stream. Biases and norms' parameters get noise of 0.02 too (about 0 and 1): at
    exactly 0 or 1 a scheme could add a bias twice and nobody would see it.
    """
    shape = workload.parameter_shapes()[name]
    generator = torch.Generator().manual_seed(crc32(f"{workload.seed}/{name}".encode()))
    value = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").mul_(0.02)
    if name.endswith(("attention.out.weight", "mlp.down.weight", "mlp.shared_down.weight")):
        value /= sqrt(2 * workload.layers)
    elif "norm" in name and name.endswith("weight"):
        value += 1
    return value.to(dtype)


@torch.no_grad()
def load_initial(
    module: "nn.Module",
    workload: "GPT",
    take: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, full: full,
    copies: Mapping[str, str] | tuple[()] = (),
) -> None:
    """Fill each parameter of ``module`` with ``take(name, full value)``, this rank's part.

    copies : {name: the parameter of the model that it is a copy of}.
    """
    for name, parameter in module.named_parameters():
        if isinstance(parameter, FakeTensor):
            continue  # a program that is captured, not run, has no numbers
        name = dict(copies).get(name, name)
        parameter.copy_(take(name, initial(workload, name)))
