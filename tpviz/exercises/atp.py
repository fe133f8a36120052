"""The exercises of notebook 03 on numbers: who owns what, what is sent, which mesh is best."""

from typing import TYPE_CHECKING, Any

from ..mesh import Mesh
from .formula import Formula, Question, same

if TYPE_CHECKING:
    from ..schemes.atp.strategy import ATP
    from ..workload import GPT

NOTEBOOK = "03_atp"
NAMES = {"qkv": "attention.qkv", "up": "mlp.up", "out": "attention.out", "down": "mlp.down"}


def strategy_of(mesh: tuple[int, int], order: str = "column", **knobs: Any) -> "ATP":
    """The `ATP` of a mesh (d1, d2)."""
    from ..schemes.atp.strategy import ATP  # loads torch, which showing a task does not need

    return ATP(mesh=mesh, order=order, **knobs)


# --- atp_owned ---


def _cut(strategy, workload, weight, coords):
    """(first row, row after the last, first column, column after the last), from `splits`."""
    name = f"blocks.0.{NAMES[weight]}.weight"
    found = [0, 0, 0, 0]
    for dim, axis in strategy.splits(workload)[name]:
        part = workload.parameter_shapes()[name][dim] // strategy.axes[axis]
        found[2 * dim : 2 * dim + 2] = coords[axis] * part, (coords[axis] + 1) * part
    return tuple(found)


def _make_owned(rng):
    from ..workload import GPT

    questions = []
    for weight in NAMES:
        # No square: there another order and ranks counted along d1 first are one mistake.
        for mesh, order in (((2, 4), "column"), ((4, 2), "column"), ((2, 4), "row")):
            w = GPT(layers=1, hidden=16 * int(rng.integers(1, 4)), heads=8, vocab=64)
            rank, strategy = int(rng.integers(1, mesh[0] * mesh[1])), strategy_of(mesh, order)
            shape = w.parameter_shapes()[f"blocks.0.{NAMES[weight]}.weight"]
            asked = {"weight": weight, "shape": shape, "mesh": mesh, "order": order, "rank": rank}
            answer, known = _owned_facts(strategy, w, weight, rank)
            words = f"{weight} {list(shape)} on mesh {mesh}, order {order}, rank {rank}"
            questions.append(Question(asked, answer, words, known))
    return questions


def _owned_facts(strategy, workload, weight, rank):
    """(the answer, typical wrong ones): the first and second layers of a pair exchange the axes."""
    coords = Mesh(strategy.axes).coords(rank)
    turned = {"d1": rank % strategy.mesh[0], "d2": rank // strategy.mesh[0]}
    right = _cut(strategy, workload, weight, coords)
    other = strategy_of(strategy.mesh, "row" if strategy.order == "column" else "column")
    return right, {
        "turned": _cut(strategy, workload, weight, turned),
        "other axes": _cut(other, workload, weight, coords),
        "transposed": right[2:] + right[:2],
    }


def _owned_wrong(question, got):
    _, shape, _, order, rank = question.arguments.values()
    mistake = next((name for name, wrong in question.known.items() if same(got, wrong)), None)
    if mistake == "turned":
        return (
            f"for {question}: you counted ranks along d1 first. d2 is the inner axis, its "
            f"ranks are neighbours: rank {rank} is (rank // d2, rank % d2)."
        )
    if mistake == "transposed" and shape[0] != shape[1]:
        return (
            f"for {question}: rows and columns are exchanged. A weight is (out, in): its rows "
            "are the output features."
        )
    if mistake == "other axes" and order == "row":
        return (
            f"for {question}: that would be so in the other order. In row order d2 does "
            "what d1 does in column order, and the other way round."
        )
    if mistake == "other axes":
        return (
            f"for {question}: the axes are exchanged. What a first layer (qkv, up) spreads its "
            "output over, the second (out, down) contracts: that is why the pair needs no "
            "resharding."
        )


OWNED = Formula(
    name="atp_owned",
    title="Which block of the weight is mine?",
    notebook=NOTEBOOK,
    prompt='`weight` ("qkv", "up", "out" or "down") has `shape` (out, in). On a `mesh` '
    '(d1, d2), d2 the axis of neighbouring ranks, in `order` "column" or "row", return '
    "the block that `rank` holds: (first row, row after the last, first column, column "
    "after the last).",
    starter="""def atp_owned(weight, shape, mesh, order, rank):
    rows, columns = shape
    return 0, rows // mesh[0], 0, columns // mesh[1]  # everyone's block is that of rank 0?""",
    hints=(
        "Two axes cut the two dims of each weight: which axis cuts the rows, which the columns?",
        "Column order: a first layer (qkv, up) has its rows (outputs) over d1 and its columns over "
        "d2; a second layer (out, down) the other way round; row order exchanges d1 and d2.",
        '`i, j = divmod(rank, mesh[1])`; rows over d1 if `(weight in ("qkv", "up")) == (order '
        '== "column")`, else over d2. With k of n for the rows: `k * rows // n, (k + 1) * rows '
        "// n`, and the same with the other axis for the columns.",
    ),
    success="`strategy.splits(workload)` says the same for every parameter, and the ranks load by "
    "it. Of qkv the rows are grouped by head, so that a cut never divides a head.",
    make=_make_owned,
    needs=None,
    checks=(_owned_wrong,),
)


# --- atp_wire_bytes ---


def block_bytes(strategy: "ATP", workload: "GPT") -> float:
    """Wire bytes of one block and rank from the strategy's ledger, without LayerNorm's statistics.

    The ledger of two blocks minus that of one. The statistics are two numbers a token, of two
    norms, each way (see `tpviz.schemes.atp.step`).
    """
    from dataclasses import replace

    one, two = (strategy.ledger(replace(workload, layers=n)).total()[2] for n in (1, 2))
    s, tokens = strategy.layout.s, workload.batch * workload.seq
    statistics = 4 * 2 * tokens * max(workload.itemsize, 4) * 2 * (s - 1) / s
    return two - one - statistics


def _make_wire(rng):
    from ..workload import GPT

    questions = []
    for mesh, order in (
        ((4, 2), "column"),
        ((2, 4), "row"),
        ((2, 2), "column"),
        ((8, 1), "column"),
        ((4, 2), "row"),
        ((2, 8), "column"),
    ):
        w = GPT(
            hidden=16 * int(rng.integers(1, 9)),
            heads=16,
            vocab=64,
            seq=16 * int(rng.integers(1, 5)),
            batch=int(rng.integers(1, 7)),
            dtype=("float32", "bfloat16")[len(questions) % 2],
        )
        asked = {
            "d1": mesh[0],
            "d2": mesh[1],
            "order": order,
            "tokens": w.batch * w.seq,
            "hidden": w.hidden,
            "itemsize": w.itemsize,
        }
        questions.append(Question(asked, block_bytes(strategy_of(mesh, order), w)))
    return questions


def _wire_wrong(question, got):
    d1, d2, order, tokens, hidden, itemsize = question.arguments.values()
    i, s = (d1, d2) if order == "column" else (d2, d1)
    unit, n = tokens * hidden * itemsize, i * s
    mistakes = [
        (question.answer / 2, "that is forward alone (or backward alone): a step has both."),
        (
            unit * (12 / i + 4 / s),
            "these are the payloads of the sums; on a ring of n ranks each "
            "rank sends 2(n-1)/n of a payload.",
        ),
        (
            8 * unit / n * ((s - 1) + 3 * (i - 1)),
            f"the axes are exchanged. In {order} order the wide tensors (3 h and 4 h features, cut "
            f"over {'d1' if order == 'column' else 'd2'}) are summed over the other axis.",
        ),
        (
            4 * unit / n * (2 * (i - 1) + 3 * (s - 1)),
            "the MLP is four hidden sizes wide: up's sum in forward and down's in backward "
            "carry 4 h "
            "features, not h.",
        ),
        (8 * unit * (n - 1) / n, "that is Megatron's 1D: here each sum has only one axis's ranks."),
    ]
    for wrong, words in mistakes:
        if same(got, wrong):
            return f"for {question}: {words}"
    return (
        f"for {question}: the ledger has {question.answer:,.6g} bytes, you returned "
        f"{got:,.6g}, {got / question.answer:.3g} times as many."
    )


WIRE = Formula(
    name="atp_wire_bytes",
    title="What a block sends on a 2D mesh",
    notebook=NOTEBOOK,
    prompt="Return the bytes that one rank sends (on rings) for one block of a GPT, forward and "
    'backward, on a mesh (`d1`, `d2`) in `order` "column" or "row": `tokens` = batch x '
    "seq, MLP 4 `hidden` wide, `itemsize` bytes a number. Leave the LayerNorms' few numbers "
    "out. Your formula is held against the ledgers of real meshes.",
    starter="""def atp_wire_bytes(d1, d2, order, tokens, hidden, itemsize):
    n = d1 * d2
    return 8 * tokens * hidden * itemsize * (n - 1) / n  # Megatron's""",
    hints=(
        "Each of the four layers has one sum in forward and one in backward. Over which axis, and "
        "how wide is what is summed?",
        "Column order, per token: over d2 payloads of 3 h + 4 h forward and h + 4 h backward, all "
        "over d1; over d1 h + h forward and h + h backward, all over d2. A ring sends 2(n-1)/n of "
        "each.",
        '`if order == "row": d1, d2 = d2, d1`, then `return 8 * tokens * hidden * itemsize / '
        "(d1 * d2) * ((d1 - 1) + 3 * (d2 - 1))`.",
    ),
    success="With (N, 1) it is Megatron's. On a square-ish mesh it falls as 1 / sqrt(N): this is "
    "why communication decreases with scaling, if the links of both axes keep their "
    "bandwidth.",
    make=_make_wire,
    needs=None,
    checks=(_wire_wrong,),
)


# --- atp_best_mesh ---


def _seconds(d1, d2, b1, b2):
    """Time of a block in units of 8 tokens h e / N: (d1-1)/B1 + 3 (d2-1)/B2 (derived)."""
    return (d1 - 1) / b1 + 3 * (d2 - 1) / b2


def _make_best(rng):
    questions = []
    for sizes, ratio in (
        ((16, 32), 1),
        ((64, 128), 4),
        ((8, 32), 24),
        ((4, 8), 1),
        ((32, 64), 0.25),
        ((16, 64), 1.25),
        ((64, 256), 5 / 3),
    ):
        # none of these has two best meshes; the last two tell a weight of 3 from 2 and from 4
        size = int(rng.choice(sizes))
        b1 = float(rng.choice([1.2e10, 1.7e10, 2.5e10, 4e10]))
        asked = {"world_size": size, "b1": b1, "b2": ratio * b1}
        meshes = [(size >> k, 1 << k) for k in range(size.bit_length())]
        times = {mesh: _seconds(*mesh, b1, ratio * b1) for mesh in meshes}
        questions.append(Question(asked, min(times, key=times.get), "", times))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return questions


def _best_wrong(question, got):
    (size, b1, b2), times = question.arguments.values(), question.known
    if got not in times:
        return (
            f"for {question}: {got} is no mesh of {size} ranks; there are "
            f"{', '.join(map(str, times))}."
        )
    excess = times[got] / times[question.answer]
    words = (
        f"for {question}: mesh {got} spends {excess:.3g} times as long on communication as is "
        "possible"
    )
    if got == (size, 1):
        return f"{words}. One axis alone sends almost the whole activation: share it with d2."
    if got[0] == got[1]:
        return f"{words}. A square would be best if both axes had the same load and bandwidth."
    unweighted = min(times, key=lambda m: (m[0] - 1) / b1 + (m[1] - 1) / b2)
    exchanged = min(times, key=lambda m: 3 * (m[0] - 1) / b1 + (m[1] - 1) / b2)
    if got in (unweighted, exchanged):
        return (
            f"{words}. Weigh the axes: in column order the sums over d2 carry three times what "
            "those over d1 carry."
        )
    side = "d2 has too many ranks" if got[1] > question.answer[1] else "d1 has too many ranks"
    return f"{words}: {side}."


BEST_MESH = Formula(
    name="atp_best_mesh",
    title="The best mesh for two bandwidths",
    notebook=NOTEBOOK,
    prompt="`world_size` (a power of two) ranks, column order. Rings over d1 get `b1` bytes/s per "
    "rank, rings over d2 get `b2`, whatever the mesh. Return the mesh (d1, d2) with the "
    "least communication time.",
    starter="""def atp_best_mesh(world_size, b1, b2):
    return world_size, 1""",
    hints=(
        "Write the time as bytes over d1 / b1 plus bytes over d2 / b2.",
        "Up to a common factor it is (d1 - 1) / b1 + 3 (d2 - 1) / b2: try every d1 that divides.",
        "`meshes = [(world_size >> k, 1 << k) for k in range(world_size.bit_length())]`, then "
        "`return min(meshes, key=lambda m: (m[0] - 1) / b1 + 3 * (m[1] - 1) / b2)`.",
    ),
    success="That is the search in one order, as we read the paper: for every mesh two bandwidths "
    "and a sum. What b1 and b2 are on a real machine depends on the mesh; the "
    "communication matrix says it.",
    make=_make_best,
    needs=None,
    checks=(_best_wrong,),
)
