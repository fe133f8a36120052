"""The exercises of notebook 10 on numbers: shards, bytes sent, the best mesh, and the number of
chunks."""

from dataclasses import replace
from functools import lru_cache, partial

from tpviz.cluster import Cluster, clusters
from tpviz.core.mesh import Mesh
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.schemes.atp.strategy import ATP
from tpviz.verbs.predict import predict

from .causes import same
from .formula import Asked, ChoiceQuestion, Formula, Question, least
from .told import told

NAMES = {"qkv": "attention.qkv", "up": "mlp.up", "out": "attention.out", "down": "mlp.down"}


# --- atp_owned ---
def _cut(strategy, workload, weight, coords):
    """(first row, row after the last, first column, column after the last), from `splits`."""
    name = f"blocks.0.{NAMES[weight]}.weight"
    block = [0, 0, 0, 0]
    for dim, axis in strategy.splits(workload)[name]:
        part = workload.parameter_shapes()[name][dim] // strategy.axes[axis]
        block[2 * dim : 2 * dim + 2] = coords[axis] * part, (coords[axis] + 1) * part
    return tuple(block)


def _draw_owned(rng):
    for weight in NAMES:
        # No square: there another order and ranks counted along d1 first are one mistake.
        for mesh, order in (((2, 4), "column"), ((4, 2), "column"), ((2, 4), "row")):
            w = GPT(layers=1, hidden=16 * int(rng.integers(1, 4)), heads=8, vocab=64)
            rank, strategy = int(rng.integers(1, mesh[0] * mesh[1])), ATP(mesh=mesh, order=order)
            shape = w.parameter_shapes()[f"blocks.0.{NAMES[weight]}.weight"]
            asked = {"weight": weight, "shape": shape, "mesh": mesh, "order": order, "rank": rank}
            words = OWNED.say("on mesh order rank", **{**asked, "shape": list(shape)})
            coords = Mesh(strategy.axes).coords(rank)
            yield Question(asked, _cut(strategy, w, weight, coords), words)


def _owned(weight, shape, mesh, order, rank):
    return _cut_by_hand(weight, shape, mesh, order, divmod(rank, mesh[1]))


def _cut_by_hand(weight, shape, mesh, order, at):
    """The block at these coordinates: the first and second layers of a pair exchange the axes."""
    first = (weight in ("qkv", "up")) == (order == "column")
    sizes = zip(shape, (0, 1) if first else (1, 0))
    return tuple(k * size // mesh[axis] for size, axis in sizes for k in (at[axis], at[axis] + 1))


def _owned_mistakes(weight, shape, mesh, order, rank):
    at, turned = divmod(rank, mesh[1]), divmod(rank, mesh[0])[::-1]
    right = _cut_by_hand(weight, shape, mesh, order, at)
    other = _cut_by_hand(weight, shape, mesh, "row" if order == "column" else "column", at)
    return {
        "you counted ranks along d1 first": _cut_by_hand(weight, shape, mesh, order, turned),
        "that is the answer": other if order == "row" else None,
        "axes are swapped": other,
        "rows and columns are exchanged": right[2:] + right[:2] if shape[0] != shape[1] else None,
        "return where a block ends": (right[0], right[1] - right[0], right[2], right[3] - right[2]),
        "that is rank 0's block": _cut_by_hand(weight, shape, mesh, order, (0, 0)),
        "axis of the rows shards": _cut_by_hand(
            weight, shape, mesh, order, (at[0], at[0] % mesh[1])
        ),
    }


OWNED = Formula(
    **told("atp_owned"),
    draw=_draw_owned,
    parts=("first row", "row after the last", "first column", "column after the last"),
    solution=_owned,
    mistakes=_owned_mistakes,
)


# --- atp_wire_bytes ---
def block_bytes(strategy: ATP, workload: GPT) -> float:
    """Wire bytes of one block and rank from the strategy's ledger, without LayerNorm's statistics.

    The ledger of two blocks minus that of one. The statistics are two numbers per token, of two
    norms, in forward and backward (see `tpviz.schemes.grid.step`).
    """
    one, two = (strategy.ledger(replace(workload, layers=n)).total()[2] for n in (1, 2))
    s, tokens = strategy.layout.s, workload.batch * workload.seq
    statistics = 4 * 2 * tokens * max(workload.itemsize, 4) * 2 * (s - 1) / s
    return two - one - statistics


def _draw_wire(rng):
    for number, (mesh, order) in enumerate(
        (
            ((4, 2), "column"),
            ((2, 4), "row"),
            ((2, 2), "column"),
            ((8, 1), "column"),
            ((4, 2), "row"),
            ((2, 8), "column"),
        )
    ):
        hidden, seq, batch = (int(rng.integers(1, end)) for end in (9, 5, 7))
        dtype = ("float32", "bfloat16")[number % 2]
        w = GPT(hidden=16 * hidden, heads=16, vocab=64, seq=16 * seq, batch=batch, dtype=dtype)
        values = (*mesh, order, w.batch * w.seq, w.hidden, w.itemsize)
        answer = block_bytes(ATP(mesh=mesh, order=order), w)
        yield Question(dict(zip(WIRE.parameters, values)), answer)


def _wire_mistakes(d1, d2, order, tokens, hidden, itemsize):
    i, s = (d1, d2) if order == "column" else (d2, d1)
    unit, n = tokens * hidden * itemsize, i * s
    right = _wire(d1, d2, order, tokens, hidden, itemsize)
    return {
        "that is only forward or only": 4 * unit / n * ((i - 1) + 3 * (s - 1)),
        "that is forward": 2 * unit / n * (2 * (i - 1) + 7 * (s - 1)),
        "that is backward": 2 * unit / n * (2 * (i - 1) + 5 * (s - 1)),
        "these are the payloads": unit * (12 / i + 4 / s),
        WIRE.say("axes are swapped", order=order, wide="d1" if order == "column" else "d2"): (
            8 * unit / n * ((s - 1) + 3 * (i - 1))
        ),
        "mlp is four hidden sizes": 4 * unit / n * (2 * (i - 1) + 3 * (s - 1)),
        "that is megatron's 1d": 8 * unit * (n - 1) / n,
        "these are counts of numbers": right / itemsize,
        "qkv is three hidden sizes wide": 4 * unit / n * (2 * (i - 1) + 5 * (s - 1)),
        **{
            words: 2 * unit / n * (light * (i - 1) + wide * (s - 1))
            for (light, wide), words in _LEFT_OUT.items()
        },
        "gpt's mlp and attention have": 8 * unit / n * (i - 1),
    }


_LEFT_OUT = {
    (4, 14): "you doubled forward",
    (4, 9): "all-reduce of qkv's 3 h",
    (4, 8): "one all-reduce of 4 h",
    (4, 11): "all-reduce of h in backward",
    (3, 12): "one all-reduce over the light axis",
    (2, 12): "over the light axis forward",
    (4, 15): "one all-reduce of 3 h too",
}
"""{whole weights of the two axes, of 4 and 12: the words}."""


def _wire(d1, d2, order, tokens, hidden, itemsize):
    """As derived; compared with the ledgers in a test."""
    i, s = (d1, d2) if order == "column" else (d2, d1)
    return 8 * tokens * hidden * itemsize / (i * s) * ((i - 1) + 3 * (s - 1))


WIRE = Formula(**told("atp_wire_bytes"), draw=_draw_wire, solution=_wire, mistakes=_wire_mistakes)


# --- atp_best_mesh ---
def _seconds(d1, d2, b1, b2):
    """Time of a block in units of 8 tokens h e / N: (d1-1)/B1 + 3 (d2-1)/B2 (derived)."""
    return (d1 - 1) / b1 + 3 * (d2 - 1) / b2


def _mesh_seconds(world_size, b1, b2):
    """{mesh: its time}."""
    meshes = [(world_size >> k, 1 << k) for k in range(world_size.bit_length())]
    return {mesh: _seconds(*mesh, b1, b2) for mesh in meshes}


def _draw_best(rng):
    for sizes, ratio in (
        ((256, 1024), 12),  # each typical mistake has a mesh of its own here
        ((16, 32), 1),
        ((64, 128), 4),
        ((8, 32), 24),
        ((4, 8), 1),
        ((32, 64), 0.25),
        ((16, 64), 1.25),
        ((64, 256), 5 / 3),
        ((8,), 0.5),
    ):
        # none of these has two best meshes; the last three tell a weight of 3 from 2 and from 4,
        # and the sum of the terms from the larger one
        size = int(rng.choice(sizes))
        b1 = float(rng.choice([1.2e10, 1.7e10, 2.5e10, 4e10]))
        asked = size, b1, ratio * b1
        yield Asked(asked, known=_mesh_seconds(*asked))


def _best_wrong(question, got):
    (size, b1, b2), times = question.arguments.values(), question.known
    say = partial(BEST_MESH.say, question=question, got=got)
    if got not in times:
        return say("is no mesh of ranks", size=size, meshes=", ".join(map(str, times)))
    excess = times[got] / times[question.answer]
    words = say("mesh spends times the minimal time", excess=excess)
    if got[0] == got[1]:
        return BEST_MESH.say("square would be best if", words=words)

    def by(load1, load2, b1=b1, b2=b2):
        return min(times, key=lambda m: load1 * (m[0] - 1) / b1 + load2 * (m[1] - 1) / b2)

    for mesh, why in (
        ((size, 1), BEST_MESH.say("one axis alone sends almost")),
        (by(1, 1), BEST_MESH.say("weight the axes")),
        (by(3, 1), BEST_MESH.say("is the weight of 3")),
        (by(1, 3, b2, b1), BEST_MESH.say("each axis has its own bandwidth")),
        (question.answer[::-1], BEST_MESH.say("sizes are exchanged")),
    ):
        if got == mesh and got not in (by(1, 2), by(1, 4)):  # of other weights
            return f"{words}. {why}"
    side = "d2 has too many ranks" if got[1] > question.answer[1] else "d1 has too many ranks"
    return f"{words}: {side}."


def _best_by_maximum(answers):
    def larger(question, mesh):
        _, b1, b2 = question.arguments.values()
        return max((mesh[0] - 1) / b1, 3 * (mesh[1] - 1) / b2)

    for question, got in answers:
        least_one = min(larger(question, mesh) for mesh in question.known)
        if got not in question.known or not same(larger(question, got), least_one):
            return None
    return BEST_MESH.say("your meshes are those where")


BEST_MESH = Formula(
    **told("atp_best_mesh"),
    draw=_draw_best,
    solution=lambda *asked: least(_mesh_seconds(*asked)),
    wrong=_best_wrong,
    overall=_best_by_maximum,
)


# --- atp_mesh_for ---
def _machines():
    """(cluster, description of its links) of 8 devices each."""
    return (
        (
            clusters.nvlink_pairs(4, rings="single"),
            MESH_FOR.say("only pairs of neighbours have fast"),
        ),
        (clusters.nvswitch_nodes(2, 4, nics=1), MESH_FOR.say("four neighbours have fast links")),
        (clusters.torus(2, 4), MESH_FOR.say("mesh whose d2")),
    )


@lru_cache(maxsize=1)
def _workload():
    return GPT(layers=2, hidden=4096, heads=32, seq=1024, batch=4, vocab=32000, dtype="bfloat16")


def mesh_times(cluster: Cluster, workload: GPT) -> dict[tuple[int, int, str], float]:
    """{(d1, d2, order): predicted seconds of a step} of `ATP.meshes`."""
    return {
        (*s.mesh, s.order): predict(s, workload, cluster).step_time
        for s in ATP.meshes(workload, cluster.size)
    }


def _all_mesh_times(cluster, workload):
    """Also of meshes that are equivalent to another one."""
    times = mesh_times(cluster, workload)
    times.setdefault((1, cluster.size, "row"), times[cluster.size, 1, "column"])
    times.setdefault((cluster.size, 1, "row"), times[1, cluster.size, "column"])
    return times


def _draw_mesh_for(rng):
    machines = _machines()
    for number in rng.permutation(len(machines)).tolist():
        cluster, why = machines[number]
        yield Asked((cluster, _workload()), f"{cluster.name} ({why})")


def _mesh_wrong(question, got):
    cluster, w = question.arguments.values()
    strategy = ATP(mesh=got[:2], order=got[2])
    exposed = predict(strategy, w, cluster).exposed
    worst = max(exposed, key=exposed.__getitem__)
    bandwidth = cluster.axis_link(strategy.axes, worst).bandwidth
    wide = "d2" if strategy.order == "column" else "d1"
    load = MESH_FOR.say("heavy axis with three times") if worst == wide else "the light axis"
    load = "the only axis" if 1 in got[:2] else load
    return MESH_FOR.say(
        "its kernels wait most",
        worst=worst,
        wait=show_seconds(exposed[worst]),
        load=load,
        strategy=strategy,
        rate=bandwidth / 1e9,
    )


MESH_FOR = ChoiceQuestion(
    **told("atp_mesh_for"),
    kind="a mesh with its order",
    draw=_draw_mesh_for,
    solution=_all_mesh_times,
    wrong=_mesh_wrong,
)


# --- atp_chunk_count ---
COUNTS = (1, 2, 4, 8, 16, 32)


def chunk_times(
    cluster: Cluster, workload: GPT, mesh: tuple[int, int] = (4, 2)
) -> dict[int, float]:
    """{chunks: predicted seconds of a step}."""
    return {c: predict(ATP(mesh=mesh, chunks=c), workload, cluster).step_time for c in COUNTS}


def _draw_chunk_count(rng):
    base, asked = replace(_workload(), batch=32), []
    for hop, hidden in ((3.4e-6, 8192), (3e-5, 8192), (1e-4, 4096)):
        box = clusters.nvswitch(8)
        level = replace(box.levels[0], p2p=2e11, group=2e11, latency=hop)
        values = replace(box, levels=(level,)), replace(base, hidden=hidden), (4, 2)
        asked.append(Asked(values, f"hidden={hidden} with {1e6 * hop:.3g} µs a hop"))
    return [asked[k] for k in rng.permutation(len(asked)).tolist()]


def _count_wrong(question, got):
    if got < question.answer:
        return CHUNK_COUNT.say("more chunks are faster here")
    return CHUNK_COUNT.say("fewer chunks are faster here")


CHUNK_COUNT = ChoiceQuestion(
    **told("atp_chunk_count", COUNTS=COUNTS),
    kind="a number of chunks",
    draw=_draw_chunk_count,
    solution=chunk_times,
    wrong=_count_wrong,
)
