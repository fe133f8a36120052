"""A block of AxoNN as a film: every operation of its program once, with the tensors in it.

`step.parts` says which operations there are and in which order; the tensors of the plane come from
ATP's film (`tpviz.films.blocks`), those of the depth axis are here. Rows are those of the whole
batch, cut over data and z. No torch.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tpviz.films.blocks import block_frames
from tpviz.films.captions import TWICE, verb
from tpviz.schemes.axonn.step import GatherWeight, Scatter, num_local_parameters, parts
from tpviz.step import Collective, Overlapped, Part

from . import grid_captions as say
from .grid_captions import ALL, LAYERS, Flight, GridFrame

if TYPE_CHECKING:
    from tpviz.schemes.axonn.strategy import AxoNN
    from tpviz.workload import GPT


def grid_frames(s: "AxoNN", w: "GPT") -> list[GridFrame]:
    """The `GridFrame` list of one block in the middle of the model, for an `AxoNN`.

    Forward, backward, then the block's share of what is summed at the end of a step. Of several
    microbatches it is the last one. Axes of one rank do nothing and have no frame.
    """
    return _Film(s, w).all()


class _Film:
    """``todo`` are the plane's frames of each phase; ``asks`` the program's gathers to come."""

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
        forward, backward = (
            [f for f in plane if f.phase == phase] for phase in ("forward", "backward")
        )
        self.plane_forward = forward
        self.todo = {"forward": list(forward), "recompute": list(forward), "backward": backward}
        cut, again = "z" in self.sizes, s.accumulation > 1
        self.weights: dict[str, str] = dict.fromkeys(LAYERS, "piece" if cut else "block")
        later = cut and "ors" in s.overlap
        self.gradients: dict[str, str] = dict.fromkeys(
            LAYERS, ("leaving" if later else "piece" if cut else "block") if again else ""
        )
        self.together = cut and s.gather == "block"
        self.asks = (
            asks(self.program, self.number, self.together) if (cut and "oag" in s.overlap) else []
        )

    def all(self):
        """Every operation of the block, and the sums at the end."""
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
                    self.asks = self.asks[1:]
        assert not any(self.todo[phase] for phase in ("forward", "backward")), "frames left over"
        self.end()
        return self.frames

    # -- tensors -------------------------------------------------------------------------------
    def widened(self, frame):
        """A frame of the plane with the rows of all replicas and all of z in its tensors."""
        changed = {
            name: tuple(map(self.wide, getattr(frame, name)))
            for name in ("product", "moving", "line")
        }
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
        """A term of the sums over these axes, as far as they have ranks."""
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
            frame = frame._replace(
                product=(),
                kernels=(),
                active=(0, 4),
                line=(frame.moving[0], verb(operation), "→", frame.moving[1]),
                words=f"{say.SUM.format(operation.axis)} {say.NOW}",
            )
        stands = (
            Overlapped(*frame.moves, *frame.kernels)  # pyright: ignore[reportArgumentType]
            if frame.kernels and frame.moves
            else (frame.kernels + frame.moves)[0]
        )
        assert stands == operation, f"{stands} of the plane's film is not the program's {operation}"
        words = frame.words
        if frame.product and frame.product[-1].name == "dW":
            self.gradients = {**self.gradients, frame.layer: "block"}
            dx = frame.moving[0].name if frame.moving else ""
            words = say.words_of_gradient(
                [a for a in ("z", "data") if a in self.sizes], dx, bool(frame.moving)
            )
        self.add(
            phase,
            frame.layer,
            words,
            product=frame.product,
            moving=frame.moving,
            kernels=frame.kernels,
            moves=frame.moves,
            line=frame.line,
            active=frame.active,
        )
        following = self.todo[phase][0].layer if self.todo[phase] else ""
        if frame.layer in LAYERS and following != frame.layer:
            self.hold(self.let_go(phase, frame.layer), "piece")

    def let_go(self, phase, layer):
        """The layers whose gathered blocks end with the kernels of this one."""
        if phase == "backward":  # else a scatter ends them
            return [layer] if self.together and self.s.keep else []
        if "z" not in self.sizes or self.stays(phase):
            return []
        if self.together:
            return LAYERS if layer == "down" else []
        return [layer]

    def stays(self, phase):
        """Whether what is gathered in this phase outlives it."""
        return self.s.keep and not (phase == "forward" and self.s.recompute)

    def hold(self, layers, what: str):
        self.weights = {**self.weights, **dict.fromkeys(layers, what)}

    def fellows(self, layer):
        """The layers whose weights are in one message with that of ``layer``."""
        return LAYERS if self.together else [layer]

    def message(self, tensor):
        """A weight, or its gradient, with what is in one message with it."""
        return say.all_four(tensor, self.w.mlp_ratio) if self.together else tensor

    def gather(self, phase, payload):
        """The pieces of a message come together; with OAG the next ones are sent for."""
        if "z" not in self.sizes:
            return
        layer = self.todo[phase][0].layer
        weight = self.message(self.weight("qkv" if self.together else layer))
        self.hold(self.fellows(layer), "block")
        said = [say.GATHER_ALL if self.together else say.GATHER]
        said += [say.AGAIN] * (phase != "forward")
        if phase != "backward":
            it = ("All of it", "the last of them") if self.together else ("It", "this layer")
            said.append((say.KEPT if self.stays(phase) else say.DROPPED).format(*it))
        ahead, self.asks = self.asks[:1], self.asks[1:]
        said.append(
            say.WAITED
            if not ahead
            else say.PREFETCH.format(self.asks[0].name)
            if self.asks
            else say.LAST
        )
        move = Collective("z", "all_gather", payload)
        self.add(
            phase,
            layer,
            " ".join(said),
            moving=(say.pieces(weight), weight),
            moves=(move,),
            line=(say.pieces(weight), verb(move), "→", weight),
            active=(0, 4),
        )

    def weight(self, layer):
        """W of a layer, not transposed, as the GEMMs of the plane's film have it."""
        return next(f.product[1] for f in self.plane_forward if f.layer == layer and f.product)

    def scatter(self, payload):
        """The terms of a weight's gradient are summed, piece by piece."""
        if "z" not in self.sizes:
            return
        last = self.frames[-1]
        before, fellows = self.message(last.product[-1]), self.fellows(last.layer)
        after = self.to_sum(say.pieces(before), ["data"])
        later = "ors" in self.s.overlap
        self.gradients = {
            **self.gradients,
            **dict.fromkeys(fellows, "leaving" if later else "piece"),
        }
        self.hold(fellows, "piece")
        move = Collective("z", "reduce_scatter", payload)
        words = say.SCATTER_ALL if self.together else say.SCATTER
        self.add(
            "backward",
            last.layer,
            f"{words} {say.LATER if later else say.NOW}",
            moving=(before, after),
            moves=(move,),
            line=(before, verb(move), "→", after),
            active=(0, 4),
        )

    def collect(self):
        """Wait for scatters under way."""
        self.gradients = {
            layer: "piece" if state == "leaving" else state
            for layer, state in self.gradients.items()
        }

    def end(self):
        """The block's share of the sums over z and data."""
        waits = "leaving" in self.gradients.values()
        self.collect()
        more, now = (
            num_local_parameters(self.s, replace(self.w, layers=n))
            for n in (self.w.layers + 1, self.w.layers)
        )
        in_pieces, whole = (a - b for a, b in zip(more, now))
        for layer, name, numbers, own, over in (
            ("biases", "db", whole, "yx", ["z", "data"]),
            ("all", "dW, db", in_pieces + whole, "zyx", ["data"]),
        ):
            axis = over[0]
            if axis not in self.sizes:
                continue
            buffer = say.flat(name, numbers, {a: self.s.axes[a] for a in own})
            before, after = self.to_sum(buffer, over), self.to_sum(buffer, over[1:])
            move = Collective(axis, "all_reduce", numbers * self.w.itemsize)
            words = f"{say.ENDS[axis]} {say.COLLECTED}" if waits else say.ENDS[axis]
            waits = False
            self.add(
                "sync",
                layer,
                words,
                moving=(before, after),
                moves=(move,),
                line=(before, verb(move), "→", after),
                active=(0, 4),
            )

    def add(self, phase, layer, words, **fields):
        leaving = [
            Flight("reduce_scatter", name) for name in LAYERS if self.gradients[name] == "leaving"
        ]
        self.frames.append(
            GridFrame(
                phase,
                layer,
                words=words,
                under_way=(*self.asks[:1], *leaving),
                weights=self.weights,
                gradients=self.gradients,
                **fields,
            )
        )


def asks(program: Iterable[Part], number: int, together: bool) -> list[Flight]:
    """The `Flight` of every gather of a program, in order; blocks are counted from ``number``.

    together : whether the weights of a block are gathered in one message.
    """
    found = []
    for part in program:
        names = (
            {"attention": ["qkv", "out"], "mlp": ["up", "down"]}.get(
                part.layer.rpartition(".")[2], []
            )
            if part.phase != "backward"
            else []
        )
        for _ in filter(lambda o: isinstance(o, GatherWeight), part.operations):
            name = names.pop(0) if names else part.layer.rpartition(".")[2]
            block = part.layer.startswith("blocks.")
            name = ALL if block and together else name
            found.append(
                Flight(
                    "all_gather", name, int(part.layer.split(".")[1]) - number if block else None
                )
            )
    return found
