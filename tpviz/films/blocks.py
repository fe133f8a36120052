"""A block of ATP as a film: frame by frame which tensors meet, and who holds which part of them.

`step.pieces` says which kernels and collectives there are, `Layout.splits` who holds what of the
weights. A tensor walks through them, and its layout follows from each operation, so that no mesh is
written out by hand. No torch.
"""

from math import prod
from typing import TYPE_CHECKING

from tpviz.schemes.atp.step import pieces
from tpviz.step import Chunks, Collective, Overlapped, Pipeline

from .captions import (
    AGAIN,
    ALONE,
    CORE,
    CUT,
    FORWARD,
    HERE,
    MEANWHILE,
    NORM,
    OVER,
    TWICE,
    Dim,
    Frame,
    Tensor,
    verb,
    words_of,
)

if TYPE_CHECKING:
    from tpviz.schemes.atp.layout import Layout
    from tpviz.workload import GPT

LIKE = 4
"""From one chunk more than this on, those in the middle share a frame."""


def block_frames(at: "Layout", w: "GPT") -> list[Frame]:
    """The `Frame` list of one block, forward and backward, for a `layout.Layout`."""
    film = _Film(at, w)
    film.forward()
    film.backward()
    return film.frames


class _Film:
    """``x`` is the tensor on its way; ``kept`` what forward keeps for backward."""

    def __init__(self, at, w):
        self.at, self.frames, self.kept = at, [], {}
        self.parts, self.splits = pieces(at, w), at.splits(w)
        self.sizes = {at.inside: at.i, at.stream: at.s}
        self.letters = {n * w.hidden: f"{n if n > 1 else ''}H" for n in (1, 3, w.mlp_ratio)}
        self.tokens, self.hidden, self.ratio = w.batch * w.seq, w.hidden, w.mlp_ratio
        self.heads = w.heads

    # -- the block -----------------------------------------------------------------------------
    def forward(self):
        self.x = self.stream("X", "activations")
        self.start("attention")
        self.norm("norm1")
        self.linear("qkv", "attention.qkv", 3, "QKV", inner="LN(X)")
        self.core("A", "activations", 1)
        self.linear("out", "attention.out", 1, "Z")
        self.join("out")
        self.x = self.x._replace(name="X")  # the residual stream goes on in the same layout
        self.start("mlp")
        self.norm("norm2")
        if self.todo and isinstance(self.todo[0], Pipeline):
            self.pipeline()
        else:
            self.linear("up", "mlp.up", self.ratio, "U", inner="LN(X)")
            self.linear("down", "mlp.down", 1, "Z", inner="GELU(U)")
        self.join("down")

    def backward(self):
        self.x = self.stream("dZ", "gradients")
        for layer, weight, result in (("down", "mlp.down", "dU"), ("up", "mlp.up", "dX")):
            self.back(layer, weight, result)
        self.norm_back("norm2")
        self.x = self.x._replace(name="dZ")
        self.back("out", "attention.out", "dA")
        self.start("core_back")
        self.core("dQKV", "gradients", 3)
        self.back("qkv", "attention.qkv", "dX")
        self.norm_back("norm1")
        assert not self.todo, "the film has left out operations of the step"

    # -- small words ---------------------------------------------------------------------------
    def start(self, part):
        assert not getattr(self, "todo", None), "the film has left out operations of the step"
        self.part, self.todo = part, list(self.parts[part])

    def next_move(self, axis, collective) -> Collective | None:
        """The next operation if it is this collective, else None."""
        op = self.todo[0] if self.todo else None
        if isinstance(op, Collective) and op[:2] == (axis, collective):
            return self.todo.pop(0)  # pyright: ignore[reportReturnType]
        return None

    def dim(self, size, *axes):
        letters = "T" if size is None else self.letters.get(size, str(size))
        return Dim(letters, size or self.tokens, tuple(a for a in axes if self.sizes[a] > 1))

    def stream(self, name, kind):
        """The residual stream, as `Layout` lays it."""
        rows = self.dim(None, *[self.at.inside] * self.at.sp)
        return Tensor(name, rows, self.dim(self.hidden, *[self.at.stream] * (not self.at.l2)), kind)

    def weight(self, name):
        """W[in, out], cut as `Layout.splits` has it; its dims there are (out, in)."""
        cuts = dict(self.splits[f"blocks.0.{name}.weight"])
        out = {"qkv": 3, "up": self.ratio}.get(name.split(".")[1], 1) * self.hidden
        into = self.ratio * self.hidden if name == "mlp.down" else self.hidden
        return Tensor("W", self.dim(into, cuts[1]), self.dim(out, cuts[0]), "parameters")

    def add(self, layer, words, **fields):
        self.frames.append(Frame(self.part, layer, words=words, **fields))

    def moved(self, before, move):
        """A tensor after a collective on it."""
        if move.collective == "reduce_scatter":
            return before.cut(move.axis, "rows" if move.axis == self.at.inside else "cols")
        return before.whole(move.axis)

    def collective(self, layer, move, before=None):
        """A frame for a collective of ``x`` alone."""
        before = before or self.x
        after = self.moved(before, move)
        line = (before, verb(move), "→", after)
        self.add(
            layer, words_of(move), moving=(before, after), moves=(move,), line=line, active=(0, 4)
        )
        return after

    # -- parts of the block --------------------------------------------------------------------
    def norm(self, layer):
        """Two numbers a token, summed; the normalised x goes into the next layer."""
        move = self.next_move(self.at.stream, "all_reduce")
        if move:
            two = Tensor(
                "sums of dX" if self.part.endswith("_back") else "sums of X",
                self.x.rows,
                Dim("2", 2),
                self.x.kind,
                move.axis,
            )
            self.collective(layer, move, two)
            self.frames[-1] = self.frames[-1]._replace(words=NORM.format(move.axis))

    def norm_back(self, layer):
        self.start(f"{layer}_back")
        self.join(layer)
        self.norm(layer)

    def join(self, layer):
        """The features gathered, for a LayerNorm of whole tokens."""
        move = self.next_move(self.at.stream, "all_gather")
        if move:
            self.x = self.collective(layer, move)

    def core(self, name, kind, times):
        """Attention itself: whole heads, each on its rank."""
        kernel = self.todo.pop(0)
        cols = self.dim(times * self.hidden)._replace(axes=self.x.cols.axes)
        heads = self.heads // prod(self.sizes[a] for a in cols.axes)
        result = Tensor(name, self.x.rows, cols, kind)
        twice = "" if self.at.a3 or self.at.s == 1 else " " + TWICE.format(self.at.stream)
        self.add(
            "core",
            CORE.format(heads, self.heads) + twice,
            product=(self.x, result),
            kernels=(kernel,),
            line=(self.x, "→ attention →", result),
            active=(0, 3),
        )
        self.x = result

    def gathered(self, layer, inner, weight):
        """The input of a layer, with gathers if the program has them; cut for nothing if it may."""
        self.x = self.x._replace(name=inner or self.x.name)
        missing = [a for a in weight.rows.axes if a not in self.x.cols.axes]
        self.free = f"{CUT} " if missing else ""
        for axis in missing:
            self.x = self.x.cut(axis, "cols")
        for axis in (self.at.inside, self.at.stream):
            move = self.next_move(axis, "all_gather")
            if move:
                self.x = self.collective(layer, move)

    def linear(self, layer, name, times, result, inner=""):
        """Forward: gathers, the GEMM, the sum of its results."""
        weight = self.weight(name)
        self.gathered(layer, inner, weight)
        self.kept[layer] = self.x
        op = self.todo.pop(0)
        if isinstance(op, Chunks):
            kernel, move, count = op
        else:
            kernel, count = op, 1
            move = next(filter(None, (self.next_move(*key) for key in self.sums(weight))), None)
        stage = self.stage(layer, weight, self.x, result, kernel, move)
        self.flow([(stage, k) for k in range(count)], count)
        self.x = stage.moving[1] if move else stage.product[-1]

    def sums(self, weight):
        """What may follow a GEMM over the axes of the weight's rows."""
        return [(a, kind) for a in weight.rows.axes for kind in ("all_reduce", "reduce_scatter")]

    def stage(self, layer, weight, x, result, kernel, move):
        """A GEMM and its sum as one `Frame`, to be shown one after the other by `flow`."""
        y = Tensor(result, x.rows, weight.cols, "activations", next(iter(weight.rows.axes), ""))
        line = (x, "·", weight, "→", y)
        moving = ()
        if move:
            moving = y, self.moved(y, move)
            line += (verb(move), "→", moving[1])
        words = self.free + (FORWARD.format(y.partial) if y.partial else ALONE)
        return Frame(
            self.part,
            layer,
            (x, weight, y),
            moving,
            (kernel,),
            (move,) if move else (),
            line=line,
            active=(0, 5),
            words=words,
        )

    def flow(self, stages, count):
        """Each stage's GEMM while the sum of the one before is under way; then the last sum."""
        found, before = [], None
        for stage, k in [*stages, (None, 0)]:
            frame = stage._replace(moving=(), moves=()) if stage else None
            if frame and count > 1:
                frame = frame._replace(chunk=self.rows(k, count))
            if before and before[0].moves:
                frame = self.with_sum(frame, *before, count)
            if frame:
                found.append(frame)
            before = (stage, k)
        if count > LIKE:
            found = merged(found, len(stages) // count)
        self.frames += found

    def rows(self, k, count):
        """Which rows chunk k has; those of whole sequences lie in every part of a cut sequence."""
        return k, count, self.at.i if self.at.sp else 1

    def with_sum(self, frame, before, k, count):
        """The frame with the sum of the stage before in flight; alone where there is no frame."""
        moved = {
            "moving": before.moving,
            "moves": before.moves,
            "moved_chunk": self.rows(k, count) if count > 1 else (),
        }
        if frame:
            words = f"{frame.words} {MEANWHILE}"
            return frame._replace(words=words, **moved)
        return before._replace(
            product=(),
            kernels=(),
            active=(4, len(before.line)),
            words=words_of(before.moves[0]),
            **moved,
        )

    def pipeline(self):
        """Chunks through up and down: down of a chunk follows up of the next one."""
        up, down = self.weight("mlp.up"), self.weight("mlp.down")
        self.gathered("up", "LN(X)", up)
        first, first_move, second, second_move, count = self.todo.pop(0)  # pyright: ignore[reportAssignmentType]
        a = self.stage("up", up, self.x, "U", first, first_move)
        inner = (a.moving[1] if first_move else a.product[-1])._replace(name="GELU(U)")
        b = self.stage("down", down, inner, "Z", second, second_move)
        self.kept |= {"up": self.x, "down": inner}
        order = [(a, 0)]
        for k in range(1, count + 1):
            order += [(a, k)] * (k < count) + [(b, k - 1)]
        self.flow(order, count)
        self.x = b.moving[1] if second_move else b.product[-1]

    # -- backward ------------------------------------------------------------------------------
    def back(self, layer, name, result):
        """Gradients of the input, then of the weight while that of the input is summed."""
        self.start(f"{layer}_back")
        weight, x = self.weight(name), self.kept[layer]
        self.gathered(layer, "", weight.transposed)
        dy = self.x
        dx = Tensor(result, dy.rows, weight.rows, "gradients", next(iter(weight.cols.axes), ""))
        self.backprop(layer, dy, weight.transposed, dx, x)
        op = self.todo.pop(0)
        move, kernel = op if isinstance(op, Overlapped) else (None, op)
        dw = Tensor("dW", weight.rows, weight.cols, "gradients")
        line, fields, words = (x.transposed, "·", dy, "→", dw), {}, HERE
        if move:
            fields = {"moving": (dx, self.moved(dx, move)), "moves": (move,)}
            words += " " + OVER.format(dx.name)
        self.add(
            layer,
            words,
            product=(x.transposed, dy, dw),
            kernels=(kernel,),
            line=line,
            active=(0, 5),
            **fields,
        )
        self.x = fields["moving"][1] if move else dx

    def backprop(self, layer, dy, weight, dx, x):
        """The GEMM of the input's gradient; under it the input is gathered again, if it is."""
        op = self.todo.pop(0)
        words = self.free + (FORWARD if dx.partial else ALONE).format(dx.partial)
        fields = {"kernels": (op,)}
        if isinstance(op, Overlapped):
            again = x.cut(op.move.axis, "rows")
            fields = {"kernels": (op.kernel,), "moving": (again, x), "moves": (op.move,)}
            words += " " + AGAIN
        self.add(
            layer,
            words,
            product=(dy, weight, dx),
            line=(dy, "·", weight, "→", dx),
            active=(0, 5),
            **fields,
        )


def merged(found: list[Frame], each: int) -> list[Frame]:
    """Frames of many chunks: the first two rounds, those alike as one, and the last ones."""
    head, tail = found[: 3 * each], found[-2 * each :]
    alike = found[3 * each : -2 * each]
    if not alike:
        return found
    one = next((f for f in alike if f.moves), alike[0])
    one = one._replace(
        kernels=tuple(k for f in alike for k in f.kernels),
        moves=tuple(m for f in alike for m in f.moves),
        words=f"{one.words} {len(alike)} such steps, shown as one.",
    )
    return [*head, one, *tail]
