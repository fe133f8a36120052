"""AxoNN's 4D algorithm: a 3D grid x, y, z for every matrix product, times data parallelism.

Singh et al., arXiv 2305.13525 (4D), arXiv 2502.08145 (SC24). A weight's output features lie over
x, its input features over y, and the resulting block is split into flat shards over z, which also
shares the batch: z gathers weights and scatters their gradients, y adds up forward, x adds up
backward; in every second layer x and y are exchanged. Layouts as in the authors' code, equations
derived.

>>> AxoNN(x=2, z=2, data=2).axes
{'data': 2, 'z': 2, 'y': 1, 'x': 2}
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd, prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import divides, divisors
from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.grid.layout import Layout
from tpviz.schemes.grid.tensor import TensorParallel
from tpviz.schemes.knobs import accumulation_knob, knob, recompute_knob
from tpviz.schemes.strategy import register

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.cost import Memory
    from tpviz.core.step import Operation, Part, Step
    from tpviz.schemes.gpt.pointwise import Held


__all__ = ["GPT", "AxoNN"]

OVERLAPS = ("oar", "ors", "oag")


@register
class AxoNN(TensorParallel):
    """Shards every matrix product over a grid of x, y and z ranks, with ``data`` replicas of the
    grid. x and y move activations, z and data move weights and gradients.

    x alone is Megatron-LM, z alone shards all weights as FSDP does, data alone is DDP.
    ``recompute`` may be True for "full" and False for "none".
    """

    x: int = knob(
        2, help="ranks over a first layer's output features (heads, MLP width)", low=1, high=1024
    )
    y: int = knob(1, help="ranks over its input features (the residual stream)", low=1, high=1024)
    z: int = knob(
        2, help="ranks over the shards of a weight's block, and over the batch", low=1, high=65536
    )
    data: int = knob(1, help="replicas of the grid, which share the batch", low=1, high=65536)
    overlap: tuple[str, ...] = knob(
        OVERLAPS,
        help="hide all-reduces (oar) and reduce-scatters (ors), send for weights ahead (oag)",
        choices=OVERLAPS,
    )
    order: str = knob(
        "xyz",
        help="rank order, neighbours first: the paper's xyz, the code's yxz",
        choices=("xyz", "yxz"),
    )
    keep: bool = knob(True, help="keep gathered weights until backward, else gather them again")
    gather: str = knob(
        "weight",
        help="weights per collective: one (the paper's), or all of a block's, as FSDP does",
        choices=("weight", "block"),
    )
    recompute: str = recompute_knob()
    accumulation: int = accumulation_knob()
    tune: bool = knob(False, help="time the layouts of each product first, take the fastest")
    clip: float = knob(0.0, help="largest norm of the gradient (0: any)", low=0.0, high=1e6)

    shares_batch, shares, scheme = "data", ("data", "z"), "tpviz.schemes.axonn"
    every_block = False
    flat_over = shares
    parent_axis = MappingProxyType({"z_ahead": "z"})

    def __post_init__(self):
        if isinstance(self.recompute, bool):
            object.__setattr__(self, "recompute", "full" if self.recompute else "none")
        super().__post_init__()

    @property
    def axes(self) -> dict[str, int]:
        plane = {"y": self.y, "x": self.x} if self.order == "xyz" else {"x": self.x, "y": self.y}
        return {"data": self.data, "z": self.z} | plane

    @property
    def layout(self) -> Layout:
        """The plane of x and y, as the `Layout` of ATP: heads over x alone."""
        return Layout("x", "y", self.x, self.y)

    def check(self, workload: GPT) -> None:
        self.check_dense(workload)
        w = workload
        divides("hidden", w.hidden, "y", self.y, step=w.hidden_step)
        sizes = w.divisible | {"vocab": (w.vocab, 0)}
        also = gcd(*(size for size, _ in sizes.values()))
        for name, (size, within) in sizes.items():
            divides(name, size, "x", self.x, also=also, within=within)
        divides("batch", w.batch, "data * z * accumulation", self.data * self.z * self.accumulation)
        blocks = {name: prod(shape) for name, shape in self.blocks(w.one_layer).items()}
        common = gcd(w.batch // (self.data * self.accumulation), *blocks.values())
        for name, size in blocks.items():  # within: nobody can choose a block's size
            divides(f"block of {name}", size, "z", self.z, also=common, within=size)

    def local(self, workload: GPT) -> GPT:
        """The workload of one microbatch of one rank."""
        return workload.with_batch(workload.batch // (self.data * self.z * self.accumulation))

    def held(self, workload: GPT, rank: int = 0) -> "Held":
        shards = self.z if self.accumulation > 1 else 0
        return self.layout.held(self.local(workload), shards)

    def blocks(self, workload: GPT) -> dict[str, tuple[int, ...]]:
        """{weight: shape of the block that is cut over z}."""
        axes, splits, shapes = self.axes, self.splits(workload), workload.parameter_shapes()
        return {
            name: tuple(
                size // axes[dict(splits[name])[dim]] for dim, size in enumerate(shapes[name])
            )
            for name in shapes
            if name.endswith(
                (
                    "qkv.weight",
                    "out.weight",
                    "up.weight",
                    "down.weight",
                    "token.weight",
                    "head.weight",
                )
            )
        }

    def flat_ranges(self, workload: GPT) -> dict[str, dict[str, Any]]:
        """{weight: {"axis", "ranges": what each z index keeps of the flat block}}."""
        if self.z == 1:
            return {}
        sizes = {name: prod(shape) // self.z for name, shape in self.blocks(workload).items()}
        return {
            name: {"axis": "z", "ranges": [[k * n, (k + 1) * n] for k in range(self.z)]}
            for name, n in sizes.items()
        }

    def cut_over(self, workload: GPT) -> dict[str, Any]:
        found = dict(super().cut_over(workload))
        return found | {name: (*found.get(name, ()), "z") for name in self.blocks(workload)}

    def flat_shapes(self, workload: GPT) -> dict[str, tuple[int, ...]]:
        blocks = self.blocks(workload)
        flat = {name: (prod(shape) // self.z,) for name, shape in blocks.items()}
        return super().flat_shapes(workload) | flat

    def check_split_backward(self) -> None:
        raise ValueError(
            "AxoNN's gradients of weights are scattered over z as soon as they are there, so they "
            f"cannot wait: use ATP(mesh=({self.x}, {self.y}), attention='A1'), or schedule='1f1b'"
        )

    def pieces(self, workload: GPT, split: bool = False) -> "dict[str, list[Operation]]":
        from .step import pieces

        if split:
            self.check_split_backward()
        return pieces(self, workload)

    def lowered(self, parts: "Sequence[Part]") -> "Sequence[Part]":
        from .step import lowered

        return lowered(self, parts)

    def least_of(self, parts: "Sequence[Part]") -> "Sequence[Part]":
        """The parts without the weights' collectives, which kernels may hide."""
        from .step import without_weights

        return without_weights(parts)

    def gathered(self, workload: GPT) -> tuple[int, int]:
        """(bytes kept per block, bytes held for a moment) of gathered weights, an upper bound: the
        block's, with ``keep``; and twice the largest block or table, in use and prefetched."""
        if self.z == 1:
            return 0, 0
        blocks = self.blocks(workload.one_layer)
        sizes = {name: prod(shape) * workload.itemsize for name, shape in blocks.items()}
        block = sum(size for name, size in sizes.items() if name.startswith("blocks."))
        return self.keep * block, 2 * max(block, *sizes.values())

    def step(self, workload: GPT) -> "Step":
        from .step import step

        return step(self, workload)

    def memory(self, workload: GPT) -> "Memory":
        from .memory import memory

        return memory(self, workload)

    def communication(self, workload: GPT, cluster: "Cluster", mesh: Mesh | None = None) -> float:
        """Seconds by `paper.communication`: the papers' model as we read it."""
        from .paper import communication

        return communication(self, workload, cluster, mesh)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> Iterator[Self]:
        """Every grid (x, y, z, data) of all ranks, with all overlaps, weights kept and gathered one
        by one: gathering whole blocks changes neither the grid nor the bytes."""
        for x, y, z in product(divisors(world_size), repeat=3):
            if world_size % (x * y * z) == 0:
                grid = {"x": x, "y": y, "z": z, "data": world_size // (x * y * z)}
                if all(cls.allows(*size) for size in grid.items()):
                    yield cls(**grid)  # pyright: ignore[reportArgumentType]
