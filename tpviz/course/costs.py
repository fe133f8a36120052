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
        "you returned payload / bandwidth, the time to send the tensor once. In a ring all-reduce "
        "each rank sends 2(n-1) messages: how large is one, and what does each cost besides its "
        "bytes?": whole,
        "you returned only the time of the bytes. A ring all-reduce takes 2(n-1) steps, one after "
        "another, and each adds one latency.": steps / n * whole,
        "the time of the bytes is right, but you counted one latency: each of the 2(n-1) steps has "
        "one.": steps / n * whole + latency,
        "the time of the bytes is right, but you counted a latency for each half: each of the "
        "2(n-1) steps has one.": steps / n * whole + 2 * latency,
        "the latencies are right, but for the bytes you counted the tensor once: each rank sends "
        "2(n-1)/n times the tensor on a ring.": steps * latency + whole,
        "you returned half of the time: this is only the reduce-scatter. The all-gather takes as "
        "long again.": steps / 2 * (latency + whole / n),
        "you counted 2n steps of 1/n of the tensor; a ring needs 2(n-1): the last rank to reduce a "
        "block does not send it to itself.": 2 * n * (latency + whole / n),
        "the number of steps is right, but you sent the whole tensor in each. In a ring each "
        "message is one block of the tensor: of how many?": steps * (latency + whole),
        "you returned the time of a tree, 2 log2(n) messages of the whole tensor. In a ring there "
        "are more steps, and each message is smaller.": 2 * log2(n) * (latency + whole),
        "each message is 1/n of the tensor, not 1/(n-1).": steps * latency + 2 * whole,
        "you returned the time with 4 ranks: steps and blocks depend on `n`.": (
            _ring_time(payload, 4, latency, bandwidth)
        ),
    }


RING_TIME = Formula(
    title="The time of a ring all-reduce",
    prompt="Write the time (s) of a ring all-reduce of a tensor of `payload` bytes over `n` ranks. "
    "A message of m bytes takes `latency` + m / `bandwidth` (s, bytes/s).",
    starter="""def ring_time(payload, n, latency, bandwidth):
    return payload / bandwidth""",
    concept="Count the steps of the microscope's ring, and the bytes of one message.",
    principle="A reduce-scatter and an all-gather, n-1 steps each, every message one n-th of the "
    "tensor.",
    shape="The number of steps times the time of one message, which has two terms.",
    success="This is the alpha-beta model: latency times hops, plus bytes over bandwidth.",
    draw=_draw_ring_time,
    solution=_ring_time,
    mistakes=_ring_mistakes,
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
    title="From a measured time to busbw",
    prompt='A `collective` ("all_reduce", "all_gather", "reduce_scatter" or "all_to_all") of '
    "`payload` bytes (the full tensor) on `n` ranks took `seconds`. Return its busbw in bytes/s.",
    starter="""def bus_bandwidth(collective, payload, n, seconds):
    return payload / seconds""",
    concept="algbw is the rate that the program observes; busbw is the rate of a link.",
    principle="The least bytes that a rank must send: 2(n-1)/n of the tensor for an all-reduce, "
    "(n-1)/n for the other three.",
    shape="The starter's expression times a factor without unit, which depends on `collective` "
    "and `n`.",
    success="busbw of different collectives and group sizes can be compared with a link.",
    draw=_draw_bus,
    solution=lambda collective, payload, n, seconds: wire_bytes(collective, payload, n) / seconds,
    mistakes=lambda collective, payload, n, seconds: {
        "that is algbw, S / t. busbw counts the bytes that each rank has to send, which for this "
        "collective is not S.": payload / seconds,
        f"2(n-1)/n is for an all-reduce, which goes round the ring twice; {collective} goes round "
        "once.": 2 * (n - 1) / n * payload / seconds,
        "multiply algbw by the factor, do not divide by it.": (
            payload / seconds / wire_bytes(collective, 1, n)
        ),
        "an all-reduce goes round the ring twice: 2(n-1)/n.": (
            (n - 1) / n * payload / seconds if collective == "all_reduce" else None
        ),
        "`payload` is the full tensor: a rank sends (n-1)/n of it, not n - 1 of them.": (
            wire_bytes(collective, payload, n) * n / seconds
        ),
    },
)


# --- best_chunks ---
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
        payload, *rates = _draw(
            rng, (1_000_003, 4_000_037, 9_000_011), (1e-5, 2e-5, 4e-5), (1e10, 2e10)
        )
        yield payload, links, *rates


def _roots(payload, links, latency, bandwidth):
    """{how a number of chunks is wrong: it}."""
    root = ((links - 1) * payload / latency / bandwidth) ** 0.5
    return {
        "The whole number above the root is not always the better one": ceil(root),
        "The whole number below the root is not always the better one": max(1, floor(root)),
        "Only the last message passes all links: the root has links - 1": round(
            (root**2 * links / (links - 1)) ** 0.5
        ),
        "The number of links, less one, is in the root": round((root**2 / (links - 1)) ** 0.5),
        "That is the square of the best number: the root is missing": round(root**2),
    }


def _chunks_wrong(question, got):
    sizes, best = question.arguments.values(), question.answer
    if got < 1 or int(got) != got:
        return f"for {question}: you returned {got:.6g}, but chunks are whole, and at least 1."
    mine, least = (1e6 * _pipeline(c, *sizes) for c in (int(got), best))
    side = "more chunks are" if got < best else "fewer chunks are"
    why = (
        "a step is shorter, and the last link starts earlier"
        if got < best
        else "each chunk adds one more latency"
    )
    known = [words for words, root in _roots(*sizes).items() if root == got]
    payload, links, latency, bandwidth = sizes
    of_all = (links * payload / latency / bandwidth) ** 0.5
    if not known and got in (floor(of_all), ceil(of_all)):
        known = ["Only the last message passes all links: the root has links - 1"]
    return (
        f"for {question}: T({int(got)}) = {mine:.6g} us, but {least:.6g} us is possible: "
        f"{side} faster here ({why})." + "".join(f" {words}." for words in known)
    )


CHUNKS = Formula(
    title="How many chunks?",
    prompt="`payload` bytes pass along a chain of `links` links, pipelined in C chunks: T(C) = (C "
    "+ links - 1) (latency + payload / (C bandwidth)). Return the whole number C that makes T "
    "smallest.",
    starter="""def best_chunks(payload, links, latency, bandwidth):
    return 1""",
    concept="Many chunks fill the pipeline sooner, but each chunk adds the latency again.",
    principle="Multiply T out: one part grows with C, one falls with 1/C. Their sum is smallest "
    "where they are equal; then look at the two whole numbers next to it.",
    shape="A root in closed form, the whole number below it (at least 1) and the one above it, "
    "then the one of the two with the smaller T.",
    success="The same square root sizes the buckets of DDP and the chunks that hide an all-reduce.",
    draw=_draw_chunks,
    solution=_best,
    wrong=_chunks_wrong,
)


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
        "flops": "the FLOPs of a GEMM have two hidden sizes, so they shrink by c^2; the rate must "
        "shrink as much to keep the time",
        "memory_bandwidth": "activations have one hidden size, so their bytes shrink by c",
        "bandwidth": "an activation that is all-reduced has one hidden size, so its bytes shrink "
        "by c",
        "latency": "a latency is a time already, and all times must stay equal",
    }
    for name, mine, right, whole in zip(names, got, question.answer, rates):
        if not same(mine, right):
            return f"for {question}: {name} {whole:.4g} became {mine:.4g}, but {why[name]}."


RATES = Formula(
    title="The rates of a scale model",
    prompt="A model whose hidden sizes are divided by `c` must take as long on an emulated "
    "cluster as the full model on the real one. Given the real `flops` (FLOP/s), "
    "`memory_bandwidth`, link `bandwidth` (bytes/s) and `latency` (s), return the four values of "
    "the emulated cluster, in this order. (No slow motion.)",
    starter="""def scale_rates(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c, memory_bandwidth / c, bandwidth / c, latency / c""",
    concept="Time = amount / rate. Which amounts shrink by c, which by c squared, which not at "
    "all?",
    principle="FLOPs of X[tokens, h] W[h, 4h] have two hidden sizes; an activation [tokens, h] has "
    "one; a latency has none.",
    shape="Four numbers in the order of the parameters: each is the real value divided by a "
    "power of `c`, and the powers differ.",
    success="`cluster.scale_model(hidden=c)` does it. Weights shrink by c^2 too, so data "
    "parallelism sends too few bytes by a factor c in such a model.",
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
        return f"the ranks are {', '.join(map(str, waited))}; you returned {got!r}."
    computing, waiting = (
        ", ".join(f"rank {r} {1e3 * s:.3g} ms" for r, s in of.items()) for of in (busy, waited)
    )
    if got == max(waited, key=waited.get):
        return (
            f"rank {got} computes least and waits longest in this trace: it arrives early, and "
            f"waits for another one. Computing: {computing}. Waiting: {waiting}."
        )
    trace = question.arguments["trace"]
    ends = {float(trace.select(rank=r)["end"].max()) for r in trace.ranks}
    if got == trace.ranks[0] and len(ends) == 1:
        return (
            f"it is not rank {got}. Did you compare when the ranks end? All leave the last "
            f"all-reduce together, at {1e3 * ends.pop():.4g} ms, so none is first or last, and "
            f"Python's min and max give the first of equals. Waiting: {waiting}."
        )
    return (
        f"it is not rank {got}: it waits while it has nothing to compute, for another rank. The "
        f"rank that the others wait for waits least. Waiting: {waiting}."
    )


STRAGGLER = Formula(
    title="Find the slow rank",
    prompt="One rank of four computes more slowly than the others. Given the `trace` of a step of "
    "`Megatron(tp=4)`, up to the end of its last all-reduce, return the number of that "
    'rank. `trace.ranks` are the ranks; `trace.select(rank=r, kind="wait")` are rows '
    'with arrays `["start"]` and `["end"]` (s).',
    starter="""def find_straggler(trace):
    ends = {r: trace.select(rank=r)["end"].max() for r in trace.ranks}
    return min(ends, key=ends.get)  # who ends first?""",
    concept="No rank leaves an all-reduce before the last rank has entered. Which rank never "
    "waits?",
    principle="Add up, for each rank, the time it is blocked. The slow rank arrives last, so it is "
    "blocked least.",
    shape="As the starter: a dict {rank: seconds}, with a sum of differences for each rank, "
    "then the rank of its least or largest value.",
    success="`tv.compare(...).residual` names stragglers by comparing each kernel with its "
    "simulation.",
    draw=_draw_straggler,
    wrong=_straggler_wrong,
)


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
            return (
                f"rank {sender} sent to rank {receiver}: on a ring, rank r sends only to rank "
                f"(r + 1) % {attempt.size}."
            )


def _blocks(attempt):
    (count, sent, _), (steps, least, _) = (
        led.total(collective="send") for led in (attempt.ledger, attempt.needed)
    )
    if (count, sent) != (steps, least):
        return (
            f"the busiest rank sent {count} messages with {sent} bytes in all; a ring of "
            f"{attempt.size} needs {steps} messages of {least // steps} bytes, {least} in all: "
            "send one block at a time, and add at each step."
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
    copy = "you add in the second round too: what arrives there is complete, so overwrite"
    for begin in range(n):
        done = (begin + 1) % n
        for second in range(n):
            if second != done:
                yield (
                    f"the second round begins with block (rank + {second}) % {n}. After the first "
                    f"one, rank r has the whole sum of block (r + {done}) % {n}: send that one",
                    _ring_run(inputs, begin, second),
                )
            yield copy, _ring_run(inputs, begin, second, ("add", "add"))
        yield (
            "you copy in the first round too: there each rank adds its own block to what arrives",
            _ring_run(inputs, begin, done, ("copy", "copy")),
        )
        yield (
            "the rounds are exchanged: first add, then copy",
            _ring_run(inputs, begin, done, ("copy", "add")),
        )
        yield (
            "what arrives is taken as the block that was sent. The previous rank sends another "
            "one: block (rank - i - 1)",
            _ring_run(inputs, begin, done, into=0),
        )


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
                        return (
                            f"on rank {rank}, block {block} is {parts or 'zero'}{of}; each rank's "
                            "once is right. Which block does rank r send in step i, and what does "
                            "it do with the one it gets: add in the first n-1 steps, copy in the "
                            "last n-1?"
                        )


RING = RankProgram(
    title="Your own ring all-reduce",
    prompt="Return the sum of `x` (1-D) over all ranks on every rank, with messages only to the "
    "next rank: 2(n-1) steps, each sending one n-th of `x`. `dist.isend(block, to)` and "
    "`dist.irecv(block, source)` return handles to `.wait()` for. The length of `x` divides by "
    "the number of ranks.",
    starter="""def ring_all_reduce(x):
    blocks = list(x.chunk(dist.get_world_size()))  # n tensors; this rank is dist.get_rank()
    return torch.cat(blocks)""",
    concept="Step i of the microscope's ring: which block does rank 0 send, which one does it get?",
    principle="n-1 steps that add: in step i send block (rank - i) % n, and add the received one "
    "to block (rank - i - 1) % n. Then n-1 steps that copy, starting with block (rank + 1) % n.",
    shape="Two loops of n-1 steps. Both bodies have an empty tensor to receive into, an isend, "
    "an irecv and two waits; the first loop then adds, the second copies. `blocks` are "
    "views of `x`.",
    success="This is the ring of Thakur, Rabenseifner and Gropp, in a dozen lines.",
    make=_make_ring,
    sends=_sends,
    judges=(
        Mistake(
            lambda a: "`, `".join(sorted(a.names() - {"send", "recv", "barrier"})),
            "`{it}` is a collective of the library: use only `dist.isend` and `dist.irecv` (or "
            "`send` and `recv`).",
        ),
        silent("the trace shows no message: every rank still has only its own tensor."),
        right_shape,
        _along_the_ring,
        Mistake(
            lambda a: a.count("send") == a.size - 1 and not a.all_right and a.count("send"),
            "after {it} sends each rank has one reduced block. Now send the reduced blocks round "
            "the ring.",
        ),
        _blocks,
        Variants(_ring_variants),
        Variants(general),
        _partial_blocks,
        right_numbers,
    ),
    worlds=({"world": 4}, {"world": 3}),
)
