"""The exercise of notebook 13 on the size of T3's tracker, whose records are simulated."""

from dataclasses import replace

from tpviz.evidence.t3_hardware import Gemm, Machine, simulate

from .causes import same
from .formula import Asked, Formula

# --- t3_tracker ---
MOST = 512


def fewest_sets(gemm: Gemm, ranks: int, machine: Machine) -> int:
    """The smallest power of two of sets with which no update waits (simulated). From one that has
    no stalls half as many may have; with stalls fewer never do better."""
    sets = MOST
    while sets > 1 and not stalls(gemm, ranks, machine, sets // 2):
        sets //= 2
    return sets


def stalls(gemm: Gemm, ranks: int, machine: Machine, sets: int) -> int:
    """Updates that wait for a record of the tracker."""
    return simulate(gemm, ranks, replace(machine, tracker_sets=sets), "t3").tracker.stalls


def _draw_tracker(rng):
    # a stage is less, or more, than a chunk
    asked = [
        (1024, ((128, 128), (128, 64))[int(rng.integers(2))], waves, cus, (2, 4), (4, 8))
        for cus, waves in zip((4, 32), rng.permutation([1, 2]).tolist())
    ]
    # here some sets are full before others: as many records as the peak do not do
    tile = ((96, 64), (64, 96))[int(rng.integers(2))]
    asked.append((768, tile, 2, int(rng.choice([4, 32])), (3, 3), (4, 4)))
    for size, tile, waves, cus, records, worlds in asked:
        gemm = Gemm(size, size, int(rng.choice([256, 512])), tile=tile, wavefronts=waves)
        machine = Machine(cus=cus, tracker_records=int(rng.choice(records)))
        ranks = int(rng.choice(worlds))
        words = f"{gemm!r} on {ranks} GPUs, {cus} compute units, {machine.tracker_records} records"
        known = {"peak": simulate(gemm, ranks, machine, "t3").tracker.peak}
        yield Asked((gemm, ranks, machine), words, known)


def _tracker(gemm, ranks, machine):
    rows, columns = gemm.tile
    return 2 * (rows // gemm.wavefronts) * columns, fewest_sets(gemm, ranks, machine)


def _tracker_wrong(question, got):
    gemm, ranks, machine = question.arguments.values()
    if len(got) != 2:
        return None
    (counted, sets), words, records = question.answer, f"for {question}: ", machine.tracker_records
    if not same(got[0], counted):
        if same(got[0], counted / 2):
            return (
                f"{words}each element gets two: the GPU's own store and its neighbour's update. "
                f"With {got[0]:g} a tile is sent before it is reduced."
            )
        if same(got[0], counted * gemm.wavefronts) or same(got[0], 2):
            return (
                f"{words}a part of a tile, one wavefront's, has its own counter, which counts the "
                f"updates of all its elements: {counted}, not {got[0]:g}."
            )
        return f"{words}the counter triggers at {counted}, not {got[0]:g}."
    if got[1] < 1 or got[1] != int(got[1]) or int(got[1]) & (int(got[1]) - 1):
        return f"{words}{got[1]:g} sets: the number must be a power of two."
    if got[1] > sets:
        return f"{words}with {got[1]:g} sets no update waits, but with {sets} none does either."
    full = ""
    if got[1] * records >= question.known["peak"]:
        full = " There are records enough, but each part has its set, and some are full before."
    return (
        f"{words}with {got[1]:g} sets {stalls(gemm, ranks, machine, int(got[1]))} updates wait "
        f"(simulated). Up to {question.known['peak']} parts are in flight at once, and a set "
        f"holds {records}.{full}"
    )


TRACKER = Formula(
    title="How large is the tracker?",
    prompt="The tracker counts the updates of each part of a tile (a tile of `gemm.tile` has "
    "`gemm.wavefronts` of them, cut along its rows), in a ring reduce-scatter. Return (count, "
    "sets): the number of updates of single elements at which a part at a middle position is sent "
    "on; and the smallest power of two of sets, of `machine.tracker_records` parts each, with "
    "which no update ever waits for a record. `from tpviz.evidence.t3_hardware import simulate`; "
    '`simulate(gemm, ranks, machine, "t3").tracker` has `.peak`, the most in flight at once, '
    "and `.stalls`; `dataclasses.replace(machine, tracker_sets=64)` is a machine with 64 sets.",
    starter="""def t3_tracker(gemm, ranks, machine):
    rows, columns = gemm.tile
    return rows * columns, 1""",
    concept="How many updates does one element get before it may be sent? How many elements has a "
    "part? And how long is a part in flight: from its first update to its last.",
    principle="Two for each element. A partial sum may arrive before the own store, so parts of "
    "all chunks in flight have a record: simulate it, and look at the peak.",
    shape="A product of sizes divided by the parts of a tile; and a loop that doubles `sets` "
    "while its simulation stalls.",
    success="The paper's tracker has 256 entries in 19 kB (from notes on it). Its behaviour when "
    "full is not known; here the update waits.",
    draw=_draw_tracker,
    solution=_tracker,
    wrong=_tracker_wrong,
)
