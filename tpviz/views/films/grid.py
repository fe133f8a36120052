"""A block of AxoNN as an animation: every operation of its program once, with its tensors.

`step.parts` lists the operations in order; the tensors on x and y come from ATP's animation
(`tpviz.views.films.blocks`), those of the depth axis are here. Rows are those of the whole batch,
cut over data and z. No torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tpviz.core.step import Collective, Overlapped, Part
from tpviz.core.workload import GPT
from tpviz.schemes.axonn.step import GatherWeight, Scatter, num_local_parameters, parts
from tpviz.schemes.axonn.strategy import AxoNN

from .blocks import block_frames, in_hidden
from .captions import (
    ALL,
    HERE,
    LAYERS,
    OVER,
    SAID,
    TWICE,
    Dim,
    Frame,
    GatherInFlight,
    Tensor,
    exchanged,
)


def grid_frames(s: AxoNN, w: GPT) -> list[Frame]:
    """The `Frame` list of one block in the middle of the model, for an `AxoNN`.

    Forward, backward, then the block's share of the gradient all-reduces at the end of a step. Of
    several microbatches it is the last one. Axes of one rank have no frame.
    """
    return _GridFilm(s, w).all()


class _GridFilm:
    """``todo`` are the plane's frames of each phase; ``gathers`` the all-gathers not yet issued."""

    def __init__(self, s, w):
        w = replace(w, layers=min(w.layers, 3))  # blocks before and after it are all alike
        self.s, self.w, self.frames = s, w, []
        self.sizes = {axis: n for axis, n in s.axes.items() if n > 1}
        self.rows = tuple(axis for axis in ("data", "z") if axis in self.sizes)
        self.number = w.layers // 2
        one = replace(w, batch=w.batch // s.accumulation)
        self.program = parts(replace(s, accumulation=1), one)
        self.tokens = one.batch * one.seq
        plane = [self.widened(frame) for frame in block_frames(s.layout, s.local(w))]
        self.plane_forward = [frame for frame in plane if frame.phase == "forward"]
        self.todo = {phase: list(self.plane_forward) for phase in ("forward", "recompute")}
        if s.recompute == "selective":
            again = {
                o for part in self.program if part.phase == "recompute" for o in part.operations
            }
            self.todo["recompute"] = [f for f in self.plane_forward if again & {*f.kernels}]
        self.todo["backward"] = [frame for frame in plane if frame.phase == "backward"]
        cut, again = "z" in self.sizes, s.accumulation > 1
        self.weights: dict[str, str] = dict.fromkeys(LAYERS, "piece" if cut else "block")
        gradient = "leaving" if cut and "ors" in s.overlap else "piece" if cut else "block"
        self.gradients: dict[str, str] = dict.fromkeys(LAYERS, gradient if again else "")
        self.together = cut and s.gather == "block"
        ahead = cut and "oag" in s.overlap
        self.gathers = gathers(self.program, self.number, self.together) if ahead else []

    def all(self):
        """Every operation of the block, and the gradient all-reduces at the end of the step."""
        before = "forward"
        for part in self.program:
            if part.phase == "backward" and before == "forward":
                self.collect()
            before = part.phase
            inside = part.layer.startswith(f"blocks.{self.number}.")
            for operation in part.operations:
                if inside:
                    self.do(part.phase, operation)
                elif isinstance(operation, GatherWeight):
                    self.gathers = self.gathers[1:]
        assert not any(self.todo[phase] for phase in ("forward", "backward")), "frames left over"
        self.end()
        return self.frames

    # -- tensors -------------------------------------------------------------------------------
    def widened(self, frame):
        """A frame of the plane with the rows of all replicas and all of z in its tensors."""
        names = "product", "moving", "line"
        changed = {name: tuple(map(self.wide, getattr(frame, name))) for name in names}
        words = frame.words.replace(TWICE.format("y"), "Every rank of y computes the same heads.")
        return frame._replace(words=words, **changed)

    def wide(self, tensor):
        if isinstance(tensor, str):
            return tensor
        dims = {
            name: dim._replace(size=self.tokens, axes=self.rows)
            for name in ("rows", "cols")
            if (dim := getattr(tensor, name)).letters == "T"
        }
        tensor = tensor._replace(**dims)
        return self.to_sum(tensor, ("z", "data")) if tensor.name == "dW" else tensor

    def to_sum(self, tensor, over):
        """A partial sum over these axes, as far as they have more than one rank."""
        axes = [axis for axis in over if axis in self.sizes]
        return tensor._replace(partial=axes[0] if axes else "", later=tuple(axes[1:]))

    # -- operations ----------------------------------------------------------------------------
    def do(self, phase, operation):
        """The frame of one operation of the program."""
        if isinstance(operation, GatherWeight):
            self.gather(phase, operation.payload)
        elif isinstance(operation, Scatter):
            self.scatter(operation.payload)
        else:
            self.on_plane(phase, operation)

    def on_plane(self, phase, operation):
        frame = self.todo[phase].pop(0)
        if frame.kernels and frame.moves and not isinstance(operation, Overlapped):
            self.todo[phase].insert(0, frame._replace(moving=(), moves=()))
            alone = exchanged(frame.moving[0], operation, frame.moving[1])
            words = f"{SAID['all_reduce'].format(operation.axis)} {NOW}"
            frame = frame._replace(product=(), kernels=(), words=words, **alone)
        stands = (frame.kernels + frame.moves)[0]
        if frame.kernels and frame.moves:
            stands = Overlapped(*frame.moves, *frame.kernels)  # pyright: ignore[reportArgumentType]
        assert stands == operation, f"{stands} of the plane's film is not the program's {operation}"
        words = frame.words
        if frame.product and frame.product[-1].name == "dW":
            self.gradients = {**self.gradients, frame.layer: "block"}
            dx = frame.moving[0].name if frame.moving else ""
            axes = [axis for axis in ("z", "data") if axis in self.sizes]
            words = words_of_gradient(axes, dx, bool(frame.moving))
        self.add(frame._replace(part=phase, words=words))
        following = self.todo[phase][0].layer if self.todo[phase] else ""
        if frame.layer in LAYERS and following != frame.layer:
            self.hold(self.let_go(phase, frame.layer), "piece")

    def let_go(self, phase, layer):
        """The layers whose gathered weights are freed after this one's kernels."""
        if phase == "backward":  # else a scatter ends them
            return [layer] if self.together and self.s.keep else []
        if "z" not in self.sizes or self.stays(phase):
            return []
        if self.together:
            return LAYERS if layer == "down" else []
        return [layer]

    def stays(self, phase):
        """Whether what is gathered in this phase outlives it."""
        return self.s.keep and not (phase == "forward" and self.s.recompute == "full")

    def hold(self, layers, what: str):
        self.weights = {**self.weights, **dict.fromkeys(layers, what)}

    def fellows(self, layer):
        """The layers whose weights are in one collective with that of ``layer``."""
        return LAYERS if self.together else [layer]

    def message(self, tensor):
        """A weight, or its gradient, with the others in the same collective."""
        return all_four(tensor, self.w) if self.together else tensor

    def gather(self, phase, payload):
        """An all-gather of weight shards; with OAG the next one is prefetched."""
        if "z" not in self.sizes:
            return
        layer = self.todo[phase][0].layer
        weight = self.message(self.weight("qkv" if self.together else layer))
        self.hold(self.fellows(layer), "block")
        sentences = [GATHER_ALL if self.together else GATHER]
        sentences += [AGAIN] * (phase != "forward")
        if phase != "backward":
            it = ("All of it", "the last of them") if self.together else ("It", "this layer")
            sentences.append((KEPT if self.stays(phase) else DROPPED).format(*it))
        ahead, self.gathers = self.gathers[:1], self.gathers[1:]
        next_one = PREFETCH.format(self.gathers[0].name) if self.gathers else LAST
        sentences.append(next_one if ahead else WAITED)
        move = Collective("z", "all_gather", payload)
        fields = exchanged(sharded(weight), move, weight)
        self.add(Frame(phase, layer, words=" ".join(sentences), **fields))

    def weight(self, layer):
        """W of a layer, not transposed, as in the GEMMs of ATP's animation."""
        return next(f.product[1] for f in self.plane_forward if f.layer == layer and f.product)

    def scatter(self, payload):
        """A reduce-scatter of a weight's gradient."""
        if "z" not in self.sizes:
            return
        last = self.frames[-1]
        before, fellows = self.message(last.product[-1]), self.fellows(last.layer)
        after = self.to_sum(sharded(before), ["data"])
        later = "ors" in self.s.overlap
        state = "leaving" if later else "piece"
        self.gradients = {**self.gradients, **dict.fromkeys(fellows, state)}
        self.hold(fellows, "piece")
        move = Collective("z", "reduce_scatter", payload)
        words = SCATTER_ALL if self.together else SCATTER
        words = f"{words} {LATER if later else NOW}"
        self.add(Frame("backward", last.layer, words=words, **exchanged(before, move, after)))

    def collect(self):
        """Wait for the reduce-scatters in flight."""
        self.gradients = {
            layer: "piece" if state == "leaving" else state
            for layer, state in self.gradients.items()
        }

    def end(self):
        """The block's share of the gradient all-reduces over z and data."""
        waits = "leaving" in self.gradients.values()
        self.collect()
        layers = self.w.layers
        more, now = (
            num_local_parameters(self.s, replace(self.w, layers=n)) for n in (layers + 1, layers)
        )
        in_pieces, whole = (a - b for a, b in zip(more, now))
        for layer, name, numbers, own, over in (
            ("biases", "db", whole, "yx", ["z", "data"]),
            ("all", "dW, db", in_pieces + whole, "zyx", ["data"]),
        ):
            axis = over[0]
            if axis not in self.sizes:
                continue
            buffer = flat(name, numbers, {a: self.s.axes[a] for a in own})
            before, after = self.to_sum(buffer, over), self.to_sum(buffer, over[1:])
            move = Collective(axis, "all_reduce", numbers * self.w.itemsize)
            words = f"{ENDS[axis]} {COLLECTED}" if waits else ENDS[axis]
            waits = False
            self.add(Frame("sync", layer, words=words, **exchanged(before, move, after)))

    def add(self, frame):
        """A frame, with what the rank holds after it and what is in flight during it."""
        leaving = [name for name in LAYERS if self.gradients[name] == "leaving"]
        flights = (*self.gathers[:1], *(GatherInFlight("reduce_scatter", name) for name in leaving))
        held = {"weights": self.weights, "gradients": self.gradients}
        self.frames.append(frame._replace(in_flight=flights, **held))


def gathers(program: Iterable[Part], number: int, together: bool) -> list[GatherInFlight]:
    """The `GatherInFlight` of every gather of a program, in order; blocks are counted from
    ``number``.

    together : whether the weights of a block are gathered in one collective.
    """
    flights, of_sublayer = [], {"attention": ("qkv", "out"), "mlp": ("up", "down")}
    for part in program:
        last = part.layer.rpartition(".")[2]
        names = list(of_sublayer.get(last, ())) if part.phase != "backward" else []
        block = int(part.layer.split(".")[1]) - number if part.layer.startswith("blocks.") else None
        for operation in part.operations:
            if isinstance(operation, GatherWeight):
                name = names.pop(0) if names else last
                name = ALL if block is not None and together else name
                flights.append(GatherInFlight("all_gather", name, block))
    return flights


# -- tensors of several shards, and the words ------------------------------------------------------
def sharded(tensor: Tensor) -> Tensor:
    """A weight, or its gradient, sharded over z."""
    return tensor.cut("z", "cols")


def all_four(tensor: Tensor, w: GPT) -> Tensor:
    """qkv's weight, or its gradient -> those of all four layers, side by side as one matrix.

    Each is cut over both axes of the plane, this one over qkv's.
    """
    size = w.block_matrices // w.hidden
    return tensor._replace(cols=tensor.cols._replace(letters=in_hidden(size, w.hidden), size=size))


def flat(name: str, numbers: int, axes: Mapping[str, int]) -> Tensor:
    """A buffer of ``numbers`` on every rank, in which several parameters' gradients are reduced.

    axes : {axis: ranks} of those along which ranks have buffers of their own.
    """
    cols = Dim("n", numbers * prod(axes.values()), tuple(a for a, n in axes.items() if n > 1))
    return Tensor(name, Dim("1", 1), cols, "gradients")


def words_of_gradient(axes: Sequence[str], dx: str, hidden: bool) -> str:
    """Of the GEMM of a weight's gradient; dx : the tensor all-reduced meanwhile if ``hidden``."""
    words = HERE
    if axes:
        words = (
            "Both factors are on the rank already, but only of its own rows: the result is a "
            f"partial sum over {' and '.join(axes)}."
        )
    return f"{words} {OVER.format(dx)}" if hidden else words


GATHER = (
    "The ranks of each z group all-gather their shards of W: each then has the block of its x and "
    "y for this GEMM."
)
GATHER_ALL = (
    "The ranks of each z group all-gather their shards of all four weights of the block, in one "
    "collective (here one matrix): each then has the blocks of its x and y for this GEMM and the "
    "next three."
)
KEPT = "{} stays until backward."
DROPPED = "{} is freed after {}."
AGAIN = "The freed weight is gathered again."
LAST = "It was prefetched (OAG): kernels wait only for the rest of it."
PREFETCH = LAST + " Now the prefetch of {} is issued."
WAITED = "The kernels wait for it."
SCATTER = "The ranks of each z group add their partial sums of dW, and each keeps its own shard."
SCATTER_ALL = (
    "The ranks of each z group add their partial sums of all four dW, in one collective (here one "
    "matrix), and each keeps its own shards."
)
LATER = "The wait is at the end of backward (ORS): the next kernels start at once."
NOW = "The kernels wait for it."
ENDS = {
    "z": "Parameters that are not sharded (biases, LayerNorm) are the same along z, but each "
    "rank's gradient is of its own rows: one all-reduce, in a buffer with those of all other "
    "blocks; shown is the share of this one.",
    "data": "Each replica has gradients of its own rows: one all-reduce of all that a rank holds, "
    "in a buffer with those of all other blocks; shown is the share of this one.",
}
COLLECTED = "Before that the rank waits for all reduce-scatters in flight."
