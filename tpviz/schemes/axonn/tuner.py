"""Which way to lay out the operands of a matrix product: tried once, decided by all ranks together.

C (m, n) = A (m, k) B (k, n) in three forms. Operands are row-major (the last dim is contiguous; the
authors' labels are those of column-major libraries, in which A and B trade places):

====  ==========  ==========  =============================================
form  A lies as   B lies as   as torch lays it out without any copy in
====  ==========  ==========  =============================================
NN    (m, k)      (k, n)      the input's gradient, dY W
NT    (m, k)      (n, k)      forward, X W^T with W (out, in)
TN    (k, m)      (k, n)      the weight's gradient, dY^T X
====  ==========  ==========  =============================================

An operand that lies the other way is copied first, and the copy is timed too. The numbers are those
of one product; only rounding can differ from form to form.
"""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from tpviz.schemes.collectives import Group

    from .layers import DepthLinear

FORMS = ("NN", "NT", "TN")
NATURAL = {"forward": "NT", "input": "NN", "weight": "TN"}
"""{pass: form without a copy}; what is taken for a signature that was not timed."""


class Signature(NamedTuple):
    """A product: its sizes, and which of a layer's three it is (a key of `NATURAL`)."""

    m: int
    n: int
    k: int
    pass_: str


def product(
    a: torch.Tensor, b: torch.Tensor, form: str, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """a b (+ bias), with both operands laid out as ``form`` says."""
    a, b = _laid(a, form[0] == "T"), _laid(b, form[1] == "T")
    return a @ b if bias is None else torch.addmm(bias, a, b)


def _laid(matrix, transposed):
    return matrix.t().contiguous().t() if transposed else matrix.contiguous()


class Tuner:
    """Chooses the form of each matrix product of a model, per `Signature`, the same on all ranks.

    groups : process groups whose ranks must agree: the form whose slowest rank is fastest wins.
    repeats : timed runs of a form, after one untimed run. clock : function giving seconds.
    """

    def __init__(
        self,
        groups: "Sequence[Group]",
        repeats: int = 5,
        clock: Callable[[], float] = perf_counter,
    ):
        self.groups, self.repeats, self.clock = groups, repeats, clock
        self.chosen: dict[Signature, str] = {}
        self.seconds: dict[Signature, dict[str, float]] = {}

    def prepare(self, layers: "Iterable[DepthLinear]", rows: int) -> None:
        """Time the products of linear ``layers`` (out, in) on ``rows`` tokens, on every rank at
        once; does nothing on meta or fake tensors."""
        for layer in layers:
            out, into = layer.pieces.shape
            for signature in (
                Signature(rows, out, into, "forward"),
                Signature(rows, into, out, "input"),
                Signature(out, into, rows, "weight"),
            ):
                if signature not in self.chosen and not isinstance(layer.weight, FakeTensor):
                    self._decide(signature, layer.weight.detach())

    # -- the products, as `tpviz.schemes.grid.operators.Products` ----------------------------------
    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x W^T (+ b)."""
        return self._product(x.flatten(0, -2), weight.t(), "forward", bias).unflatten(
            0, x.shape[:-1]
        )

    def input(self, grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the input."""
        return self._product(grad.flatten(0, -2), weight, "input").unflatten(0, grad.shape[:-1])

    def weight(
        self, x: torch.Tensor, grad: torch.Tensor, bias: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The gradients of (weight, bias); None for the bias unless ``bias``."""
        rows = grad.flatten(0, -2)
        return (self._product(rows.t(), x.flatten(0, -2), "weight"), rows.sum(0) if bias else None)

    def _product(self, a, b, pass_, bias=None):
        signature = Signature(a.shape[0], b.shape[1], a.shape[1], pass_)
        return product(a, b, self.chosen.get(signature, NATURAL[pass_]), bias)

    def _decide(self, signature, like):
        m, n, k, pass_ = signature
        natural = NATURAL[pass_]
        a = like.new_ones(k, m).t() if natural[0] == "T" else like.new_ones(m, k)
        b = like.new_ones(n, k).t() if natural[1] == "T" else like.new_ones(k, n)
        seconds = torch.tensor(
            [self._median(a, b, form) for form in FORMS], dtype=torch.float64, device=like.device
        )
        for group in self.groups:
            if group.size() > 1:
                dist.all_reduce(seconds, op=dist.ReduceOp.MAX, group=group)
        self.seconds[signature] = dict(zip(FORMS, seconds.tolist()))
        self.chosen[signature] = min(FORMS, key=self.seconds[signature].get)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def _median(self, a, b, form):
        product(a, b, form)
        found = []
        for _ in range(self.repeats):
            _finish(a)
            start = self.clock()
            product(a, b, form)
            _finish(a)
            found.append(self.clock() - start)
        return median(found)


def _finish(tensor):
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
