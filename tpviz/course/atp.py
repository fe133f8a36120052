"""The exercises of notebook 10 on numbers: shards, bytes sent, the best mesh, and the number of
chunks."""

from dataclasses import replace
from functools import lru_cache

from tpviz.cluster import Cluster, clusters
from tpviz.core.mesh import Mesh
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.schemes.atp.strategy import ATP
from tpviz.verbs.predict import predict

from .causes import same
from .formula import Asked, ChoiceQuestion, Formula, Question, least

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
            words = f"{weight} {list(shape)} on mesh {mesh}, order {order}, rank {rank}"
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
        "you counted ranks along d1 first. d2 is the inner axis, its ranks are neighbours: rank "
        f"{rank} is (rank // d2, rank % d2).": _cut_by_hand(weight, shape, mesh, order, turned),
        "that is the answer for the other order. In row order d1 and d2 are swapped compared with "
        "column order.": other if order == "row" else None,
        "the axes are swapped. The second layer (out, down) contracts over the axis that shards "
        "the first layer's (qkv, up) output: so the pair needs no resharding.": other,
        "rows and columns are exchanged. A weight is (out, in): its rows are the output "
        "features.": right[2:] + right[:2] if shape[0] != shape[1] else None,
        "return where a block ends (the row after the last), not how many rows it has.": (
            right[0],
            right[1] - right[0],
            right[2],
            right[3] - right[2],
        ),
        "that is rank 0's block: each rank has its own.": _cut_by_hand(
            weight, shape, mesh, order, (0, 0)
        ),
        "the axis of the rows shards the columns too: each dim has its own axis.": _cut_by_hand(
            weight, shape, mesh, order, (at[0], at[0] % mesh[1])
        ),
    }


OWNED = Formula(
    title="Which block of the weight does a rank hold?",
    prompt='`weight` ("qkv", "up", "out" or "down") has `shape` (out, in). On a `mesh` (d1, d2), '
    'd2 the axis of neighbouring ranks, in `order` "column" or "row", return the block that `rank` '
    "holds: (first row, row after the last, first column, column after the last).",
    starter="""def atp_owned(weight, shape, mesh, order, rank):
    rows, columns = shape
    return 0, rows // mesh[0], 0, columns // mesh[1]  # everyone's block is that of rank 0?""",
    concept="Two axes shard the two dims of each weight: which axis shards the rows, which the "
    "columns?",
    principle="Column order: a first layer (qkv, up) has its rows (outputs) over d1 and its "
    "columns over d2; a second layer (out, down) the reverse; row order swaps d1 and d2.",
    shape="A `divmod` gives the two part numbers. A condition on `weight` and `order` decides "
    "which belongs to the rows. Then start and end of part k of n, for each dim.",
    success="`strategy.splits(workload)` has the same for every parameter, and the ranks load "
    "their shards by it. The rows of qkv are grouped by head, so that no head is split.",
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
        w = GPT(
            hidden=16 * int(rng.integers(1, 9)),
            heads=16,
            vocab=64,
            seq=16 * int(rng.integers(1, 5)),
            batch=int(rng.integers(1, 7)),
            dtype=("float32", "bfloat16")[number % 2],
        )
        values = (*mesh, order, w.batch * w.seq, w.hidden, w.itemsize)
        answer = block_bytes(ATP(mesh=mesh, order=order), w)
        yield Question(dict(zip(WIRE.parameters, values)), answer)


def _wire_mistakes(d1, d2, order, tokens, hidden, itemsize):
    i, s = (d1, d2) if order == "column" else (d2, d1)
    unit, n = tokens * hidden * itemsize, i * s
    right = _wire(d1, d2, order, tokens, hidden, itemsize)
    return {
        "that is only forward (or only backward): a step has both.": (
            4 * unit / n * ((i - 1) + 3 * (s - 1))
        ),
        "that is forward: backward has an all-reduce for each layer as well.": (
            2 * unit / n * (2 * (i - 1) + 7 * (s - 1))
        ),
        "that is backward: forward has an all-reduce for each layer as well.": (
            2 * unit / n * (2 * (i - 1) + 5 * (s - 1))
        ),
        "these are the payloads of the all-reduces; on a ring of n ranks each rank sends 2(n-1)/n "
        "of a payload.": unit * (12 / i + 4 / s),
        f"the axes are swapped. In {order} order the wide tensors (3 h and 4 h features, sharded "
        f"over {'d1' if order == 'column' else 'd2'}) are all-reduced over the other axis.": (
            8 * unit / n * ((s - 1) + 3 * (i - 1))
        ),
        "the MLP is four hidden sizes wide: up's all-reduce in forward and down's in backward "
        "carry 4 h, not h.": 4 * unit / n * (2 * (i - 1) + 3 * (s - 1)),
        "that is Megatron's 1D: here each all-reduce spans only one axis.": 8 * unit * (n - 1) / n,
        "these are counts of numbers: each has `itemsize` bytes.": right / itemsize,
        "qkv is three hidden sizes wide: its all-reduce in forward carries 3 h, not h.": (
            4 * unit / n * (2 * (i - 1) + 5 * (s - 1))
        ),
        **{
            words: 2 * unit / n * (light * (i - 1) + wide * (s - 1))
            for (light, wide), words in _LEFT_OUT.items()
        },
        "a GPT's MLP and attention have four all-reduces forward and four backward: you left out "
        "those of the wide tensors.": 8 * unit / n * (i - 1),
    }


_LEFT_OUT = {
    (4, 14): "you doubled forward. In backward qkv's input has h features, not 3 h: its wide "
    "all-reduces carry h and 4 h.",
    (4, 9): "the all-reduce of qkv's 3 h in forward is left out.",
    (4, 8): "one all-reduce of 4 h is left out: up has one in forward, down in backward.",
    (4, 11): "the all-reduce of h in backward, of the output projection, is left out.",
    (3, 12): "one all-reduce over the light axis is left out: out and down have one each in "
    "forward, qkv and up in backward.",
    (2, 12): "over the light axis forward and backward have two all-reduces of h each.",
    (4, 15): "one all-reduce of 3 h too many: in forward qkv's output has 3 h, in backward its "
    "input h.",
}
"""{whole weights of the two axes, of 4 and 12: the words}."""


def _wire(d1, d2, order, tokens, hidden, itemsize):
    """As derived; compared with the ledgers in a test."""
    i, s = (d1, d2) if order == "column" else (d2, d1)
    return 8 * tokens * hidden * itemsize / (i * s) * ((i - 1) + 3 * (s - 1))


WIRE = Formula(
    title="Bytes that a block sends on a 2D mesh",
    prompt="Return the bytes that one rank sends (on rings) for one block of a GPT, forward and "
    'backward, on a mesh (`d1`, `d2`) in `order` "column" or "row": `tokens` = batch x seq, '
    "MLP 4 `hidden` wide, `itemsize` bytes a number. Leave the LayerNorms' few numbers out. Your "
    "formula is compared with the ledgers of real meshes.",
    starter="""def atp_wire_bytes(d1, d2, order, tokens, hidden, itemsize):
    n = d1 * d2
    return 8 * tokens * hidden * itemsize * (n - 1) / n  # Megatron's""",
    concept="Each of the four layers has one all-reduce in forward and one in backward. Over "
    "which axis, and how wide is its tensor?",
    principle="Column order, per token: over d2 payloads of 3 h + 4 h forward and h + 4 h "
    "backward, all over d1; over d1 h + h forward and h + h backward, all over d2. A ring sends "
    "2(n-1)/n of each.",
    shape="A common factor times a weighted sum of (d1 - 1) and (d2 - 1), with whole weights. "
    "The other order exchanges d1 and d2.",
    success="With (N, 1) it is Megatron's. On a square-ish mesh it falls as 1 / sqrt(N): this is "
    "why communication decreases with scaling, if the links of both axes keep their bandwidth.",
    draw=_draw_wire,
    solution=_wire,
    mistakes=_wire_mistakes,
)


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
    if got not in times:
        return (
            f"for {question}: {got} is no mesh of {size} ranks; there are "
            f"{', '.join(map(str, times))}."
        )
    excess = times[got] / times[question.answer]
    words = (
        f"for {question}: mesh {got} spends {excess:.3g} times the minimal time on communication"
    )
    if got[0] == got[1]:
        return f"{words}. A square would be best if both axes had the same load and bandwidth."

    def by(load1, load2, b1=b1, b2=b2):
        return min(times, key=lambda m: load1 * (m[0] - 1) / b1 + load2 * (m[1] - 1) / b2)

    for mesh, why in (
        ((size, 1), "One axis alone sends almost the whole activation: share it with d2."),
        (
            by(1, 1),
            "Weight the axes: in column order the all-reduces over d2 carry three times the bytes "
            "of those over d1.",
        ),
        (
            by(3, 1),
            "Is the weight of 3 on d1? In column order it is the all-reduces over d2 that carry "
            "three times the bytes.",
        ),
        (
            by(1, 3, b2, b1),
            "Each axis has its own bandwidth: the bytes over d1 are divided by b1, those over d2 "
            "by b2.",
        ),
        (question.answer[::-1], "The sizes are exchanged: a mesh is (d1, d2)."),
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
    return (
        "your meshes are those where the larger of the two terms is least. The all-reduces over d1 "
        "and over d2 come one after another: minimize the sum of the terms."
    )


BEST_MESH = Formula(
    title="The best mesh for two bandwidths",
    prompt="`world_size` (a power of two) ranks, column order. Rings over d1 get `b1` bytes/s per "
    "rank, rings over d2 get `b2`, for every mesh. Return the mesh (d1, d2) with the least "
    "communication time.",
    starter="""def atp_best_mesh(world_size, b1, b2):
    return world_size, 1""",
    concept="Write the time as bytes over d1 / b1 plus bytes over d2 / b2.",
    principle="Both terms have the form (d - 1) / bandwidth. In column order the axis d2 sends "
    "three times the bytes of d1. Try every d1 that divides.",
    shape="All meshes (d1, d2) of `world_size` ranks, and the minimum of them by a key of two "
    "terms.",
    success="That is the search in one order, as we read the paper: for every mesh two bandwidths "
    "and the sum of two times. On a real machine b1 and b2 depend on the mesh; the communication "
    "matrix gives them.",
    draw=_draw_best,
    solution=lambda *asked: least(_mesh_seconds(*asked)),
    wrong=_best_wrong,
    overall=_best_by_maximum,
)


# --- atp_mesh_for ---
def _machines():
    """(cluster, description of its links) of 8 devices each."""
    return (
        (clusters.nvlink_pairs(4, rings="single"), "only pairs of neighbours have fast links"),
        (
            clusters.nvswitch_nodes(2, 4, nics=1),
            "four neighbours have fast links, and the two nodes share one NIC each",
        ),
        (
            clusters.torus(2, 4),
            "a mesh whose d2 is the ring of 2, or whose d1 is the ring of 4, has separate links "
            "for each axis",
        ),
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
    load = "the heavy axis, with three times the bytes," if worst == wide else "the light axis"
    load = "the only axis" if 1 in got[:2] else load
    return (
        f"Its kernels wait most for {worst} ({show_seconds(exposed[worst])}): {load} in "
        f"{strategy.order} order, and a rank gets {bandwidth / 1e9:.3g} GB/s on it."
    )


MESH_FOR = ChoiceQuestion(
    title="Choose the mesh for the machine",
    prompt='Guess before you search: three machines of 8 devices, `cluster.name` "NVLink-pair '
    'PCIe box", "2 NVSwitch nodes, 1 NIC each" and "2 x 4 torus" (neighbouring ranks lie '
    "along its side of 2). For a given `cluster` and `workload` return (d1, d2, order) of the ATP "
    "that takes least time. Write a guess for each, or a function that computes it: each answer "
    "is timed by `tv.predict`, and within 1 % of the best is right.",
    starter="""def atp_mesh_for(cluster, workload):
    return 8, 1, "column"  # Megatron everywhere?""",
    concept="One axis carries three times the bytes of the other: give it the fast links, and no "
    "more ranks than these connect.",
    principle="In column order the heavy axis is d2, of neighbouring ranks. How many neighbours "
    "have fast links? A group that spans nodes shares the inter-node links with all others.",
    shape="Three tuples chosen by `cluster.name`; or a minimum over the strategies "
    "that `tv.ATP.meshes` lists, each of which has a `.mesh` and an "
    "`.order`.",
    success="No mesh is best everywhere, so the paper searches.",
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
        asked.append(Asked(values, f"hidden={hidden} with {1e6 * hop:.3g} us a hop"))
    return [asked[k] for k in rng.permutation(len(asked)).tolist()]


def _count_wrong(question, got):
    if got < question.answer:
        return (
            "More chunks are faster here: after a layer's last GEMM only one chunk's all-reduce "
            "remains."
        )
    return (
        "Fewer chunks are faster here: each all-reduce adds the latency of its hops, which "
        "outweighs the communication hidden."
    )


CHUNK_COUNT = ChoiceQuestion(
    title="How many chunks hide the all-reduces?",
    prompt=f"Return the number of chunks, one of {COUNTS}, with which `tv.ATP(mesh=mesh, "
    "chunks=c)` takes least time for a step of `workload` on `cluster`; within 1 % is right. Use "
    "`tv.predict(strategy, workload, cluster).step_time`, or reason with the time of a GEMM, of "
    "an all-reduce and of its hops.",
    starter="""def atp_chunk_count(cluster, workload, mesh):
    return 1""",
    concept="A chunk's all-reduce runs during the next chunk's GEMM. Which part cannot be hidden?",
    principle="With GEMM g, all-reduce a, latency l: T(C) = max(g + a / C + l, g / C + a + C l). "
    "With the longer g, more chunks expose less of a; with the longer a, each chunk costs one l.",
    shape="A minimum over the six numbers of the task, with one prediction for each.",
    success="The model assumes that a split GEMM takes as long as a whole one. On a real device "
    "small GEMMs are slower, and slower still while an all-reduce runs, so the best number of "
    "chunks may be smaller.",
    kind="a number of chunks",
    draw=_draw_chunk_count,
    solution=chunk_times,
    wrong=_count_wrong,
)
