"""The exercises of notebook 07, on times by cost models, chunks, a scale model and a slow rank (the
choice of an axis is in `axes`); and of notebook 01, on bus bandwidth and your own ring."""

from functools import lru_cache
from itertools import product
from math import ceil, floor, inf, log2

import numpy as np

from tpviz.cluster import clusters
from tpviz.cluster.clock.injected_faults import Faults
from tpviz.cluster.collectives import cost
from tpviz.core.trace.ledger import wire_bytes
from tpviz.core.workload import GPT
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.verbs.simulate import simulate

from .causes import same
from .checks import Case, Mistake, RankProgram, right_numbers, right_shape, silent, whole_numbers
from .formula import Formula, Question
from .told import told
from .variants import Terms, Variants, general


def _draw(rng, *choices):
    return [choice[int(rng.integers(len(choice)))] for choice in choices]


# --- ring_time ---
def _ring_time(payload, n, latency, bandwidth):
    hops, volume = cost("ring", "all_reduce", payload, n)
    return hops * latency + volume / bandwidth


def _draw_ring_time(rng):
    for n in (4, 2, 8, 6):  # with 2 ranks different mistakes take equally long
        payload, *rates = _draw(
            rng, (240_000, 4_800_000, 96_000_000), (5.3e-6, 2.1e-5, 1.1e-4), (1.3e9, 4.9e9, 1.9e10)
        )
        yield payload, n, *rates


def _ring_mistakes(payload, n, latency, bandwidth):
    steps, whole = 2 * (n - 1), payload / bandwidth
    return {
        "you returned payload / bandwidth": whole,
        "you returned only the time": steps / n * whole,
        "counted one latency": steps / n * whole + latency,
        "counted a latency for each half": steps / n * whole + 2 * latency,
        "latencies are right": steps * latency + whole,
        "you returned half of the time": steps / 2 * (latency + whole / n),
        "you counted 2n steps of 1/n": 2 * n * (latency + whole / n),
        "number of steps is right": steps * (latency + whole),
        "you returned the time": 2 * log2(n) * (latency + whole),
        "each message is 1/n": steps * latency + 2 * whole,
        "you returned the time with 4": _ring_time(payload, 4, latency, bandwidth),
    }


RING_TIME = Formula(
    **told("ring_time"), draw=_draw_ring_time, solution=_ring_time, mistakes=_ring_mistakes
)


# --- bus_bandwidth ---
def _draw_bus(rng):
    for collective, n in (
        ("all_reduce", 8),
        ("all_gather", 4),
        ("reduce_scatter", 3),
        ("all_to_all", 8),
    ):
        payload, seconds = _draw(rng, (2**20, 2**24, 3 * 2**20), (0.002, 0.013, 0.25))
        yield collective, payload, n, seconds


BUS = Formula(
    **told("bus_bandwidth"),
    draw=_draw_bus,
    solution=lambda collective, payload, n, seconds: wire_bytes(collective, payload, n) / seconds,
    mistakes=lambda collective, payload, n, seconds: {
        "that is algbw s / t": payload / seconds,
        "2 n-1 /n": 2 * (n - 1) / n * payload / seconds,
        "multiply algbw by the factor do": payload / seconds / wire_bytes(collective, 1, n),
        "all-reduce goes round the ring": (
            (n - 1) / n * payload / seconds if collective == "all_reduce" else None
        ),
        "payload is the full tensor": wire_bytes(collective, payload, n) * n / seconds,
    },
)


# --- best_chunks ---
TIE = 1e-5
"""Two numbers of chunks that differ by less of their time are equally good: none such is asked."""


def _pipeline(chunks, payload, links, latency, bandwidth):
    """T(C) = (C + links - 1) (latency + payload / C / bandwidth); derived."""
    return (chunks + links - 1) * (latency + payload / chunks / bandwidth)


def _best(*sizes):
    """The smallest C with the smallest T(C); T has one minimum, so stop when it rises."""
    chunks, least = 1, inf
    while (time := _pipeline(chunks, *sizes)) < least:
        chunks, least = chunks + 1, time
    return chunks - 1


def _draw_chunks(rng):
    told = False  # a root rounded in any one way is wrong for some
    while not told:
        asked = list(_chains(rng))
        answers = [(_roots(*sizes), _best(*sizes)) for sizes in asked]
        told = all(any(roots[k] != best for roots, best in answers) for k in answers[0][0])
    return asked  # pyright: ignore[reportPossiblyUnbound]


def _chains(rng):
    for links in (4, 8, 16, 3):
        tied = True  # the root itself, rounded, is then as good as the better of its neighbours
        while tied:
            payload, *rates = _draw(
                rng, (1_000_003, 4_000_037, 9_000_011), (1e-5, 2e-5, 4e-5), (1e10, 2e10)
            )
            sizes = payload, links, *rates
            best = _best(*sizes)
            near = (_pipeline(c, *sizes) for c in (best - 1, best + 1) if c)
            tied = min(near) < (1 + TIE) * _pipeline(best, *sizes)
        yield sizes  # pyright: ignore[reportPossiblyUnbound]


def _roots(payload, links, latency, bandwidth):
    """{how a number of chunks is wrong: it}."""
    root = ((links - 1) * payload / latency / bandwidth) ** 0.5
    return {
        "whole number above the root": ceil(root),
        "whole number below the root": max(1, floor(root)),
        "only the last message passes all": round((root**2 * links / (links - 1)) ** 0.5),
        "number of links less": round((root**2 / (links - 1)) ** 0.5),
        "that is the square": round(root**2),
    }


def _chunks_wrong(question, got):
    sizes, best = question.arguments.values(), question.answer
    if got < 1 or int(got) != got:
        return CHUNKS.say("you returned but chunks are whole", question=question, got=got)
    mine, least = (1e6 * _pipeline(c, *sizes) for c in (int(got), best))
    side = "more chunks are" if got < best else "fewer chunks are"
    why = (
        CHUNKS.say("step is shorter")
        if got < best
        else CHUNKS.say("each chunk adds one more latency")
    )
    known = [CHUNKS.say(key) for key, root in _roots(*sizes).items() if root == got]
    payload, links, latency, bandwidth = sizes
    of_all = (links * payload / latency / bandwidth) ** 0.5
    if not known and got in (floor(of_all), ceil(of_all)):
        known = [CHUNKS.say("only the last message passes all")]
    return CHUNKS.say(
        "t us but us is possible",
        question=question,
        chunks=int(got),
        mine=mine,
        least=least,
        side=side,
        why=why,
    ) + "".join(f" {words}." for words in known)


CHUNKS = Formula(**told("best_chunks"), draw=_draw_chunks, solution=_best, wrong=_chunks_wrong)


# --- scale_rates ---
def _draw_rates(rng):
    for make, c in zip(
        (clusters.nvswitch, clusters.perlmutter, clusters.nvlink_pairs),
        rng.permutation([2, 4, 8, 16, 32]).tolist(),
    ):
        whole = make()
        level = int(rng.integers(len(whole.levels)))
        given, answer = (
            (
                cluster.device.flops["float32"],
                cluster.device.memory_bandwidth,
                cluster.levels[level].p2p,
                cluster.levels[level].latency,
            )
            for cluster in (whole, whole.scale_model(hidden=c))
        )
        asked = dict(zip(RATES.parameters, (*given, c)))
        yield Question(asked, answer, f"{whole.name} with hidden sizes 1/{c}")


def _rates_wrong(question, got):
    names, rates = list(question.arguments)[:4], list(question.arguments.values())[:4]
    why = {
        "flops": RATES.say("flops of a gemm have"),
        "memory_bandwidth": RATES.say("activations have one hidden size"),
        "bandwidth": RATES.say("activation that is all-reduced"),
        "latency": RATES.say("latency is a time already"),
    }
    for name, mine, right, whole in zip(names, got, question.answer, rates):
        if not same(mine, right):
            return f"for {question}: {name} {whole:.4g} became {mine:.4g}, but {why[name]}."


RATES = Formula(
    **told("scale_rates"),
    draw=_draw_rates,
    parts=("flops", "memory_bandwidth", "bandwidth", "latency"),
    wrong=_rates_wrong,
)


# --- find_straggler ---
@lru_cache(maxsize=1)
def _captured():
    from tpviz.verbs.capture import capture

    strategy, workload = Megatron(tp=4), GPT()
    return strategy, workload, capture(strategy, workload)


def _draw_straggler(rng):
    strategy, workload, program = _captured()
    cluster = clusters.nvswitch(4).scale_model(hidden=64, slow_motion=10)
    for slow in rng.permutation(4).tolist():
        factor, first = float(rng.uniform(1.2, 1.6)), 0
        while first in (0, 3):  # the rank of who always says the same, or finds ends equal
            faults = Faults({slow: factor}, jitter=0.05, seed=int(rng.integers(1000)))
            trace = simulate(strategy, workload, cluster, faults=faults, capture=program)
            trace = _to_last_sum(trace)
            busy, waited = (
                {r: _total(trace, r, kind) for r in trace.ranks} for kind in ("compute", "wait")
            )
            first = max(waited, key=waited.__getitem__)
        known = {"busy": busy, "waited": waited}
        yield Question({"trace": trace}, slow, f"one of the traces ({workload!r})", known)


def _to_last_sum(trace):
    """The trace up to where all ranks leave their last all-reduce together: work after that is
    longest on the slow rank, which would then be found without the waits."""
    sums = trace.select(kind="comm", name="all_reduce")
    return trace.where((trace["end"] <= sums["end"].max()) & (trace["kind"] != "step"))


def _total(trace, rank, kind):
    rows = trace.select(rank=rank, kind=kind)
    return float((rows["end"] - rows["start"]).sum())


def _straggler_wrong(question, got):
    busy, waited = question.known["busy"], question.known["waited"]
    if got not in waited:
        return STRAGGLER.say("the ranks", ranks=", ".join(map(str, waited)), got=got)
    computing, waiting = (
        ", ".join(f"rank {r} {1e3 * s:.3g} ms" for r, s in of.items()) for of in (busy, waited)
    )
    if got == max(waited, key=waited.get):
        return STRAGGLER.say(
            "rank computes least and waits longest", got=got, computing=computing, waiting=waiting
        )
    trace = question.arguments["trace"]
    ends = {float(trace.select(rank=r)["end"].max()) for r in trace.ranks}
    if got == trace.ranks[0] and len(ends) == 1:
        return STRAGGLER.say(
            "rank did you compare when", got=got, end=1e3 * ends.pop(), waiting=waiting
        )
    return STRAGGLER.say("rank it waits while", got=got, waiting=waiting)


STRAGGLER = Formula(**told("find_straggler"), draw=_draw_straggler, wrong=_straggler_wrong)


# --- ring_all_reduce ---
def _make_ring(rng, axes):
    n = axes["world"]
    inputs = [whole_numbers(rng, n * int(1 + rng.integers(1, 5))) for _ in range(n)]
    inputs = [x[: min(map(len, inputs))] for x in inputs]
    return Case([(x,) for x in inputs], [sum(inputs)] * n, terms=Terms(inputs))


def _sends(axes, case):
    n, block = axes["world"], case.expected[0].nbytes // axes["world"]
    return [("world", message, 2 * (n - 1), block) for message in ("send", "recv")]


def _along_the_ring(attempt):
    rows = attempt.trace.select(kind="comm", name="send")
    for members in np.unique(rows["members"]).tolist():
        sender, receiver = map(int, members.split(","))
        if receiver != (sender + 1) % attempt.size:
            return RING.say("rank sent to rank", sender=sender, receiver=receiver, attempt=attempt)


def _blocks(attempt):
    (count, sent, _), (steps, least, _) = (
        led.total(collective="send") for led in (attempt.ledger, attempt.needed)
    )
    if (count, sent) != (steps, least):
        return RING.say(
            "busiest rank sent messages",
            count=count,
            sent=sent,
            attempt=attempt,
            steps=steps,
            each=least // steps,
            least=least,
        )


def _ring_run(inputs, first=0, second=1, ops=("add", "copy"), into=-1):
    """What ranks have after the two rounds; first, second: the block after its own with which a
    rank begins each; into: the received block's place after the sent one's."""
    n, blocks = len(inputs), [np.split(x.copy(), len(inputs)) for x in inputs]
    for begin, op in zip((first, second), ops):
        for step in range(n - 1):
            sent = [blocks[r][(r - step + begin) % n].copy() for r in range(n)]
            for r in range(n):
                place = (r - step + begin + into) % n
                blocks[r][place] = sent[r - 1] + (blocks[r][place] if op == "add" else 0)
    return [np.concatenate(of) for of in blocks]


def _ring_variants(attempt):
    """Rounds that begin with another block, or add where they copy."""
    inputs, n = [x for (x,) in attempt.case.inputs], attempt.size
    copy = RING.say("you add in the second round")
    for begin in range(n):
        done = (begin + 1) % n
        for second in range(n):
            if second != done:
                yield (
                    RING.say("second round begins with block", second=second, n=n, done=done),
                    _ring_run(inputs, begin, second),
                )
            yield copy, _ring_run(inputs, begin, second, ("add", "add"))
        yield (
            RING.say("you copy in the first round"),
            _ring_run(inputs, begin, done, ("copy", "copy")),
        )
        yield RING.say("rounds are exchanged"), _ring_run(inputs, begin, done, ("copy", "add"))
        yield RING.say("what arrives is taken"), _ring_run(inputs, begin, done, into=0)


def _partial_blocks(attempt):
    """Judge: of which ranks' blocks a wrong block is the sum."""
    n = attempt.size
    given = [np.split(x, n) for (x,) in attempt.case.inputs]
    for rank in [rank for rank in range(n) if rank not in attempt.right]:
        got, want = (np.split(of[rank], n) for of in (attempt.outputs, attempt.case.expected))
        for block in [b for b in range(n) if not np.array_equal(got[b], want[b])]:
            for other in (block, *range(n)):
                for times in product(range(3), repeat=n):
                    total = sum(k * given[r][other] for r, k in enumerate(times))
                    if np.array_equal(got[block], total):
                        parts = " + ".join(f"{k} x rank {r}" for r, k in enumerate(times) if k)
                        of = "" if other == block else f" of block {other}, not its own"
                        return RING.say(
                            "on rank block", rank=rank, block=block, parts=parts or "zero", of=of
                        )


RING = RankProgram(
    **told("ring_all_reduce"),
    make=_make_ring,
    sends=_sends,
    judges=(
        Mistake(
            "is a collective of the library",
            lambda a: "`, `".join(sorted(a.names() - {"send", "recv", "barrier"})),
        ),
        silent,
        right_shape,
        _along_the_ring,
        Mistake(
            "after sends each rank",
            lambda a: a.count("send") == a.size - 1 and not a.all_right and a.count("send"),
        ),
        _blocks,
        Variants(_ring_variants),
        Variants(general),
        _partial_blocks,
        right_numbers,
    ),
    worlds=({"world": 4}, {"world": 3}),
)
