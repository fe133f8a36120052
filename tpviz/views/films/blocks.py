"""A block of ATP as an animation: each frame's tensors, and which rank holds which shard.

`step.pieces` lists the kernels and collectives, `Layout.splits` the shards of the weights. A tensor
passes through them, and its layout follows from each operation, so that no mesh is written out by
hand. No torch.
"""

from math import prod

from tpviz.core.step import Chunks, Collective, Overlapped, PairInChunks
from tpviz.core.workload import GPT
from tpviz.schemes.grid.layout import Layout
from tpviz.schemes.grid.step import pieces

from . import captions as say
from .captions import Dim, Frame, Tensor, exchanged, multiplied, verb, words_of

LIKE = 4
"""From one chunk more than this on, those in the middle share a frame."""


def block_frames(at: Layout, w: GPT) -> list[Frame]:
    """The `Frame` list of one block, forward and backward, for a `layout.Layout`."""
    film = _BlocksFilm(at, w)
    film.forward()
    film.backward()
    return film.frames


class _BlocksFilm:
    """``x`` is the current activation or gradient; ``kept`` what forward keeps for backward."""

    def __init__(self, at, w):
        self.at, self.frames, self.kept = at, [], {}
        self.parts, self.splits = pieces(at, w), at.splits(w)
        self.sizes = {at.inside: at.i, at.stream: at.s}
        self.tokens, self.hidden, self.w = w.batch * w.seq, w.hidden, w
        self.normed = "LN(X)" if w.norm == "layer" else "RMS(X)"
        self.active = "SwiGLU(U)" if w.gated else "GELU(U)"

    # -- the block -----------------------------------------------------------------------------
    def forward(self):
        self.x = self.stream("X", "activations")
        self.start("attention")
        self.norm("norm1")
        self.linear("qkv", "attention.qkv", "QKV", inner=self.normed)
        self.core("A", "activations", self.w.query_features)
        self.linear("out", "attention.out", "Z")
        self.join("out")
        self.x = self.x._replace(name="X")  # the residual stream goes on in the same layout
        self.start("mlp")
        self.norm("norm2")
        if self.todo and isinstance(self.todo[0], PairInChunks):
            self.pipeline()
        else:
            self.linear("up", "mlp.up", "U", inner=self.normed)
            self.linear("down", "mlp.down", "Z", inner=self.active)
        self.join("down")

    def backward(self):
        self.x = self.stream("dZ", "gradients")
        for layer, weight, result in (("down", "mlp.down", "dU"), ("up", "mlp.up", "dX")):
            self.back(layer, weight, result)
        self.norm_back("norm2")
        self.x = self.x._replace(name="dZ")
        self.back("out", "attention.out", "dA")
        self.start("core_back")
        self.core("dQKV", "gradients", self.w.qkv_features)
        self.back("qkv", "attention.qkv", "dX")
        self.norm_back("norm1")
        assert not self.todo, "the animation has left out operations of the step"

    # -- small words ---------------------------------------------------------------------------
    def start(self, part):
        assert not getattr(self, "todo", None), "the animation has left out operations of the step"
        self.part, self.todo = part, list(self.parts[part])

    def next_move(self, axis, collective) -> Collective | None:
        """The next operation if it is this collective, else None."""
        op = self.todo[0] if self.todo else None
        if isinstance(op, Collective) and op[:2] == (axis, collective):
            return self.todo.pop(0)  # pyright: ignore[reportReturnType]
        return None

    def dim(self, size, *axes):
        letters = "T" if size is None else in_hidden(size, self.hidden)
        return Dim(letters, size or self.tokens, tuple(a for a in axes if self.sizes[a] > 1))

    def stream(self, name, kind):
        """The residual stream, as `Layout` lays it."""
        rows = self.dim(None, *[self.at.inside] * self.at.sp)
        return Tensor(name, rows, self.dim(self.hidden, *[self.at.stream] * (not self.at.l2)), kind)

    def weight(self, name):
        """W[in, out], cut as `Layout.splits` has it; its dims there are (out, in)."""
        cuts = {0: (), 1: ()}
        cuts |= {d: (axis,) for d, axis in self.splits[f"blocks.0.{name}.weight"]}
        out, into = self.w.block_shapes()[f"{name}.weight"]
        return Tensor("W", self.dim(into, *cuts[1]), self.dim(out, *cuts[0]), "parameters")

    def add(self, layer, words, **fields):
        self.frames.append(Frame(self.part, layer, words=words, **fields))

    def moved(self, before, move):
        """A tensor after a collective."""
        if move.collective == "reduce_scatter":
            return before.cut(move.axis, "rows" if move.axis == self.at.inside else "cols")
        return before.whole(move.axis)

    def collective(self, layer, move, before=None):
        """A frame for a collective of ``x`` alone."""
        before = before or self.x
        after = self.moved(before, move)
        self.add(layer, words_of(move), **exchanged(before, move, after))
        return after

    # -- parts of the block --------------------------------------------------------------------
    def norm(self, layer):
        """One or two numbers per token, all-reduced; the normalised x goes into the next layer."""
        move = self.next_move(self.at.stream, "all_reduce")
        if move:
            name = "sums of dX" if self.part.endswith("_back") else "sums of X"
            count, words = (2, say.NORM) if self.w.norm == "layer" else (1, say.RMS_NORM)
            sums = Tensor(name, self.x.rows, Dim(str(count), count), self.x.kind, move.axis)
            self.collective(layer, move, sums)
            self.frames[-1] = self.frames[-1]._replace(words=words.format(move.axis))

    def norm_back(self, layer):
        self.start(f"{layer}_back")
        self.join(layer)
        self.norm(layer)

    def join(self, layer):
        """The features gathered, for a norm of whole tokens."""
        move = self.next_move(self.at.stream, "all_gather")
        if move:
            self.x = self.collective(layer, move)

    def core(self, name, kind, features):
        """Attention: whole heads, each on its rank."""
        kernel = self.todo.pop(0)
        cols = self.dim(features)._replace(axes=self.x.cols.axes)
        heads = self.w.heads // prod(self.sizes[a] for a in cols.axes)
        result = Tensor(name, self.x.rows, cols, kind)
        twice = "" if self.at.a3 or self.at.s == 1 else " " + say.TWICE.format(self.at.stream)
        words = say.CORE.format(heads, self.w.heads) + twice
        line = {"line": (self.x, "→ attention →", result), "active": (0, 3)}
        self.add("core", words, product=(self.x, result), kernels=(kernel,), **line)
        self.x = result

    def gathered(self, layer, inner, weight):
        """The input of a layer: all-gathered, or sharded without communication."""
        cols = weight.rows._replace(axes=self.x.cols.axes)  # an activation may have changed them
        self.x = self.x._replace(name=inner or self.x.name, cols=cols)
        missing = [a for a in weight.rows.axes if a not in self.x.cols.axes]
        self.free = f"{say.CUT} " if missing else ""
        for axis in missing:
            self.x = self.x.cut(axis, "cols")
        for axis in (self.at.inside, self.at.stream):
            move = self.next_move(axis, "all_gather")
            if move:
                self.x = self.collective(layer, move)

    def linear(self, layer, name, result, inner=""):
        """Forward: all-gathers, the GEMM, the all-reduce or reduce-scatter of its result."""
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
        """A GEMM and the collective on its result as one `Frame`, which `flow` shows in turn."""
        y = Tensor(result, x.rows, weight.cols, "activations", next(iter(weight.rows.axes), ""))
        words = self.free + (say.FORWARD.format(y.partial) if y.partial else say.ALONE)
        frame = Frame(self.part, layer, words=words, **multiplied(x, weight, y, kernel))
        if not move:
            return frame
        after = self.moved(y, move)
        line = (*frame.line, verb(move), "→", after)
        return frame._replace(moving=(y, after), moves=(move,), line=line)

    def flow(self, stages, count):
        """Each stage's GEMM while the previous one's collective is in flight; then the last one."""
        frames, before = [], None
        for stage, k in [*stages, (None, 0)]:
            frame = stage._replace(moving=(), moves=()) if stage else None
            if frame and count > 1:
                frame = frame._replace(chunk=self.rows(k, count))
            if before and before[0].moves:
                frame = self.with_sum(frame, *before, count)
            if frame:
                frames.append(frame)
            before = (stage, k)
        self.frames += merged(frames, len(stages) // count) if count > LIKE else frames

    def rows(self, k, count):
        """The rows of chunk k; chunks of whole sequences have rows in every shard of a sequence."""
        return k, count, self.at.i if self.at.sp else 1

    def with_sum(self, frame, before, k, count):
        """The frame with the previous stage's collective in flight; that alone without a frame."""
        chunk, [move] = self.rows(k, count) if count > 1 else (), before.moves
        if frame:
            frame = frame._replace(words=f"{frame.words} {say.MEANWHILE}")
        else:
            words, active = words_of(move), (4, len(before.line))
            frame = before._replace(product=(), kernels=(), active=active, words=words)
        return frame._replace(moving=before.moving, moves=(move,), moved_chunk=chunk)

    def pipeline(self):
        """Chunks through up and down: down of a chunk follows up of the next one."""
        up, down = self.weight("mlp.up"), self.weight("mlp.down")
        self.gathered("up", self.normed, up)
        first, first_move, second, second_move, count = self.todo.pop(0)  # pyright: ignore[reportAssignmentType]
        a = self.stage("up", up, self.x, "U", first, first_move)
        inner = a.moving[1] if first_move else a.product[-1]
        cols = down.rows._replace(axes=inner.cols.axes)
        inner = inner._replace(name=self.active, cols=cols)
        b = self.stage("down", down, inner, "Z", second, second_move)
        self.kept |= {"up": self.x, "down": inner}
        order = [(a, 0)]
        for k in range(1, count + 1):
            order += [(a, k)] * (k < count) + [(b, k - 1)]
        self.flow(order, count)
        self.x = b.moving[1] if second_move else b.product[-1]

    # -- backward ------------------------------------------------------------------------------
    def back(self, layer, name, result):
        """Gradients of the input, then of the weight while that of the input is all-reduced."""
        self.start(f"{layer}_back")
        weight, x = self.weight(name), self.kept[layer]
        self.gathered(layer, "", weight.transposed)
        dy = self.x
        dx = Tensor(result, dy.rows, weight.rows, "gradients", next(iter(weight.cols.axes), ""))
        self.backprop(layer, dy, weight.transposed, dx, x)
        op = self.todo.pop(0)
        move, kernel = op if isinstance(op, Overlapped) else (None, op)
        dw = Tensor("dW", weight.rows, weight.cols, "gradients")
        fields, words, self.x = multiplied(x.transposed, dy, dw, kernel), say.HERE, dx  # pyright: ignore[reportArgumentType]
        if move:
            self.x = self.moved(dx, move)
            fields |= {"moving": (dx, self.x), "moves": (move,)}
            words += " " + say.OVER.format(dx.name)
        self.add(layer, words, **fields)

    def backprop(self, layer, dy, weight, dx, x):
        """The GEMM of the input's gradient, overlapped with gathering the input again if needed."""
        op = self.todo.pop(0)
        words = self.free + (say.FORWARD if dx.partial else say.ALONE).format(dx.partial)
        kernel, fields = op, {}
        if isinstance(op, Overlapped):
            kernel, fields = op.kernel, {"moving": (x.cut(op.move.axis, "rows"), x)}
            fields["moves"] = (op.move,)  # pyright: ignore[reportArgumentType]
            words += " " + say.AGAIN
        self.add(layer, words, **multiplied(dy, weight, dx, kernel), **fields)  # pyright: ignore[reportArgumentType]


def in_hidden(size: int, hidden: int) -> str:
    """ "H", "4H", "2.69H": a number of features in hidden sizes."""
    return f"{round(size / hidden, 2):g}H" if size != hidden else "H"


def merged(frames: list[Frame], each: int) -> list[Frame]:
    """Frames of many chunks: the first two rounds, those alike as one, and the last ones."""
    head, tail = frames[: 3 * each], frames[-2 * each :]
    alike = frames[3 * each : -2 * each]
    if not alike:
        return frames
    one = next((f for f in alike if f.moves), alike[0])
    one = one._replace(
        kernels=tuple(k for f in alike for k in f.kernels),
        moves=tuple(m for f in alike for m in f.moves),
        words=f"{one.words} {len(alike)} such steps, shown as one.",
    )
    return [*head, one, *tail]
