"""The exercise of notebook 13 on the size of T3's tracker, whose records are simulated."""

from dataclasses import replace

from tpviz.evidence.t3_hardware import Gemm, Machine, simulate

from .causes import same
from .formula import Asked, Formula
from .told import told

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
        words = TRACKER.say(
            "on gpus compute units records", gemm=gemm, ranks=ranks, cus=cus, machine=machine
        )
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
            return TRACKER.say("each element gets two", words=words, got=got)
        if same(got[0], counted * gemm.wavefronts) or same(got[0], 2):
            return TRACKER.say("part of a tile", words=words, counted=counted, got=got)
        return TRACKER.say("counter triggers at not", words=words, counted=counted, got=got)
    if got[1] < 1 or got[1] != int(got[1]) or int(got[1]) & (int(got[1]) - 1):
        return TRACKER.say("sets the number must be", words=words, got=got)
    if got[1] > sets:
        return TRACKER.say("with sets no update waits", words=words, got=got, sets=sets)
    full = ""
    if got[1] * records >= question.known["peak"]:
        full = " " + TRACKER.say("there are records enough")
    return TRACKER.say(
        "with sets updates wait simulated",
        words=words,
        got=got,
        waits=stalls(gemm, ranks, machine, int(got[1])),
        peak=question.known["peak"],
        records=records,
        full=full,
    )


TRACKER = Formula(**told("t3_tracker"), draw=_draw_tracker, solution=_tracker, wrong=_tracker_wrong)
