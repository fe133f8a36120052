"""The exercises of notebook 02 on runs: a scale model, a slow rank, a ring of one's own."""

from functools import lru_cache

import numpy as np

from .. import clusters
from ..trace import Ledger
from .checks import FIRST, right_numbers, right_shape
from .costs import NOTEBOOK
from .formula import Formula, Question, same
from .task import Case, Exercise, whole_numbers

# --- scale_rates ---


def _make_rates(rng):
    questions = []
    for make, c in zip(
        (clusters.nvswitch, clusters.perlmutter, clusters.nvlink_pairs),
        rng.permutation([2, 4, 8, 16, 32]).tolist(),
    ):
        whole = make()
        small, level = whole.scale_model(hidden=c), int(rng.integers(len(whole.levels)))
        flops, memory = whole.device.flops["float32"], whole.device.memory_bandwidth
        asked = {
            "flops": flops,
            "memory_bandwidth": memory,
            "bandwidth": whole.levels[level].p2p,
            "latency": whole.levels[level].latency,
            "c": c,
        }
        device, link = small.device, small.levels[level]
        answer = device.flops["float32"], device.memory_bandwidth, link.p2p, link.latency
        questions.append(Question(asked, answer, f"{whole.name} with hidden sizes 1/{c}"))
    return questions


def _rates_wrong(question, got):
    names, rates = list(question.arguments)[:4], list(question.arguments.values())[:4]
    why = {
        "flops": "the FLOPs of a GEMM have two hidden sizes, so they shrink by c^2; the rate must "
        "shrink as much for the time to stay",
        "memory_bandwidth": "activations have one hidden size, so their bytes shrink by c",
        "bandwidth": "an activation that is all-reduced has one hidden size, so its bytes shrink "
        "by c",
        "latency": "a latency is a time already, and all times are to stay",
    }
    for name, mine, right, whole in zip(names, got, question.answer, rates):
        if not same(mine, right):
            return f"for {question}: {name} {whole:.4g} became {mine:.4g}, but {why[name]}."


RATES = Formula(
    name="scale_rates",
    title="The rates of a scale model",
    notebook=NOTEBOOK,
    prompt="A model whose hidden sizes are divided by `c` is to take as long on an emulated "
    "cluster as the full model takes on the real one. Given the real `flops` (FLOP/s), "
    "`memory_bandwidth`, link `bandwidth` (bytes/s) and `latency` (s), return the four "
    "values of the emulated cluster, in this order. (No slow motion.)",
    starter="""def scale_rates(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c, memory_bandwidth / c, bandwidth / c, latency / c""",
    hints=(
        "Time = amount / rate. Which amounts shrink by c, which by c squared, which not at all?",
        "FLOPs of X[tokens, h] W[h, 4h] have two hidden sizes; an activation [tokens, h] has one; "
        "a latency has none.",
        "`return flops / c**2, memory_bandwidth / c, bandwidth / c, latency`.",
    ),
    success="`cluster.scale_model(hidden=c)` does it. Weights shrink by c^2 too, so what data "
    "parallelism sends is too light by c in such a model.",
    make=_make_rates,
    needs=None,
    checks=(_rates_wrong,),
)


# --- find_straggler ---


@lru_cache(maxsize=1)
def _captured():
    from ..schemes.megatron.strategy import Megatron
    from ..verbs.capture import capture
    from ..workload import GPT

    strategy, workload = Megatron(tp=4), GPT()
    return strategy, workload, capture(strategy, workload)


def _make_straggler(rng):
    from ..simulation.injected_faults import Faults
    from ..verbs.simulate import simulate

    strategy, workload, program = _captured()
    cluster, questions = clusters.nvswitch(4).scale_model(hidden=64, slow_motion=10), []
    for slow in rng.permutation(4).tolist():
        faults = Faults(
            {slow: float(rng.uniform(1.2, 1.6))}, jitter=0.05, seed=int(rng.integers(1000))
        )
        trace = _to_last_sum(simulate(strategy, workload, cluster, faults=faults, capture=program))
        busy, waited = (
            {r: _total(trace, r, kind) for r in trace.ranks} for kind in ("compute", "wait")
        )
        questions.append(
            Question(
                {"trace": trace},
                slow,
                f"one of the traces ({workload!r})",
                {"busy": busy, "waited": waited},
            )
        )
    return questions


def _to_last_sum(trace):
    """The trace up to where all ranks leave their last all-reduce together: what a rank does after
    that is longest on the slow one, and who ends last would be told without a look at the waits."""
    sums = trace.select(kind="comm", name="all_reduce")
    return trace.where((trace["end"] <= sums["end"].max()) & (trace["kind"] != "step"))


def _total(trace, rank, kind):
    rows = trace.select(rank=rank, kind=kind)
    return float((rows["end"] - rows["start"]).sum())


def _straggler_wrong(question, got):
    waited = question.known["waited"]
    if got not in waited:
        return f"the ranks are {', '.join(map(str, waited))}; you returned {got!r}."
    words = ", ".join(f"rank {r} {1e3 * s:.3g} ms" for r, s in waited.items())
    if got == max(waited, key=waited.get):
        return (
            f"rank {got} waits the longest in this trace: it is early, and waits for another "
            f"one. Waiting: {words}."
        )
    return (
        f"it is not rank {got}. All ranks leave an all-reduce together, so when they end says "
        f"little; but whom the others wait for waits least. Waiting: {words}."
    )


STRAGGLER = Formula(
    name="find_straggler",
    title="Find the slow rank",
    notebook=NOTEBOOK,
    prompt="One rank of four computes more slowly than the others. Given the `trace` of a step of "
    "`Megatron(tp=4)`, up to the end of its last all-reduce, return the number of that "
    'rank. `trace.ranks` are the ranks; `trace.select(rank=r, kind="wait")` are rows '
    'with arrays `["start"]` and `["end"]` (s).',
    starter="""def find_straggler(trace):
    ends = {r: trace.select(rank=r)["end"].max() for r in trace.ranks}
    return min(ends, key=ends.get)  # who ends first?""",
    hints=(
        "Nobody leaves an all-reduce before the last rank has come. Who never waits for it?",
        "Add up, for each rank, the time it is blocked. The slow rank arrives last, so it is "
        "blocked least.",
        '`w = {r: sum(t["end"] - t["start"]) for r in trace.ranks for t in '
        '[trace.select(rank=r, kind="wait")]}`, then `return min(w, key=w.get)`.',
    ),
    success="`tv.compare(...).residual` names stragglers by comparing each kernel with its "
    "simulation.",
    make=_make_straggler,
    needs=None,
    checks=(_straggler_wrong,),
)


# --- ring_all_reduce ---


def _make_ring(rng, axes):
    n = axes["world"]
    inputs = [whole_numbers(rng, n * int(1 + rng.integers(1, 5))) for _ in range(n)]
    inputs = [x[: min(map(len, inputs))] for x in inputs]
    return Case([(x,) for x in inputs], [sum(inputs)] * n)


def _sends(axes, case):
    n, block = axes["world"], case.expected[0].nbytes // axes["world"]
    return Ledger.of([("world", what, "", 2 * (n - 1), block, n) for what in ("send", "recv")])


def _other_collectives(attempt):
    others = attempt.names() - {"send", "recv", "barrier"}
    if others:
        return (
            f"`{'`, `'.join(sorted(others))}` is a collective of the library: build yours from "
            "`dist.isend` and `dist.irecv` (or `send` and `recv`) alone."
        )
    if not attempt.ledger:
        return "the trace shows no message: every rank still has only its own tensor."


def _along_the_ring(attempt):
    rows = attempt.trace.select(kind="comm", name="send")
    for members in np.unique(rows["members"]).tolist():
        sender, receiver = map(int, members.split(","))
        if receiver != (sender + 1) % attempt.size:
            return (
                f"rank {sender} sent to rank {receiver}: on a ring, rank r sends only to rank "
                f"(r + 1) % {attempt.size}."
            )


def _half_a_ring(attempt):
    n = attempt.size
    count = attempt.ledger.total(collective="send")[0]
    if count == n - 1 and len(attempt.right) < n:
        return (
            f"half way: after {n - 1} sends each rank has one finished block. Now pass the "
            "finished blocks round."
        )


def _blocks(attempt):
    (count, sent, _), (steps, least, _) = (
        led.total(collective="send") for led in (attempt.ledger, attempt.needed)
    )
    if (count, sent) != (steps, least):
        return (
            f"the busiest rank sent {count} messages with {sent} bytes in all; a ring of "
            f"{attempt.size} needs {steps} messages of {least // steps} bytes, {least} in all: "
            "send one block at a time, and add on the way."
        )


RING = Exercise(
    name="ring_all_reduce",
    title="A ring all-reduce of your own",
    notebook=NOTEBOOK,
    prompt="Return the sum of `x` (1-D) over all ranks on every rank, with messages to the next "
    "rank alone: 2(n-1) steps, each passing one n-th of `x`. `dist.isend(block, to)` and "
    "`dist.irecv(block, source)` return handles to `.wait()` for. The length of `x` divides "
    "by the number of ranks.",
    starter="""def ring_all_reduce(x):
    blocks = list(x.chunk(dist.get_world_size()))  # n tensors; this rank is dist.get_rank()
    return torch.cat(blocks)""",
    hints=(
        "Step i of the microscope's ring: which block does rank 0 send, which one does it get?",
        "n-1 steps that add: in step i send block (rank - i) % n, and add what comes to block "
        "(rank - i - 1) % n. Then n-1 steps that copy, starting with block (rank + 1) % n.",
        "In each step: `got = torch.empty_like(blocks[0])`, `s = dist.isend(blocks[a], (rank + 1) "
        "% n)`, `r = dist.irecv(got, (rank - 1) % n)`, wait for both, then `blocks[b] += got` or "
        "`blocks[b].copy_(got)`, with a and b from the second hint; at last `return x`.",
    ),
    success="Thakur, Rabenseifner and Gropp's ring, in a dozen lines.",
    make=_make_ring,
    needs=_sends,
    checks=(
        *FIRST,
        _other_collectives,
        right_shape,
        _along_the_ring,
        _half_a_ring,
        _blocks,
        right_numbers,
    ),
    worlds=({"world": 4}, {"world": 3}),
)
