"""The exercises of notebook 05 on memory: which layers each stage recomputes, and what it then
holds."""

from collections.abc import Callable
from math import ceil, floor
from typing import Any

from ..schedules import schedule, timeline
from ..schemes.merak.strategy import Merak
from .formula import Formula, Question, same
from .merak import NOTEBOOK, SCP

# --- merak_keep ---


def dropped(name: str, p: int, layers: int, keep: float) -> tuple[int, ...]:
    """Layers that each stage recomputes, by the strategy itself."""
    from ..workload import GPT

    s = Merak(pp=p, microbatches=p + 4, schedule=name, recompute="stage_aware", keep=keep)
    return tuple(s.num_recomputed(GPT(layers=p * layers, batch=p + 4)))


def by_rule(
    p: int,
    layers: int,
    keep: float,
    corrected: bool = True,
    part: Callable[[int], float] | None = None,
    counted: Callable[[float], int] = floor,
) -> tuple[int, ...]:
    """The same by hand, with mistakes; part(s): k of stage s. None: the rule's."""
    part = part or (lambda s: keep * (p - 1) / (p - 1 - s))
    k = [min(1.0, part(s)) for s in range(p - 1)] + [1.0]
    if corrected and p > 2:
        k[p - 2] = k[p - 3]
    return tuple(counted(layers * (1 - x) + (1e-9 if counted is floor else -1e-9)) for x in k)


def _make_keep(rng):
    questions = []
    for name, p, layers in (("1f1b", 4, 12), (SCP, 4, 12), (SCP, 8, 10), (SCP, 2, 16)):
        keep = int(rng.integers(8, 20)) / 100
        while not _clear(p, layers, keep):
            keep = int(rng.integers(8, 20)) / 100
        asked: dict[str, Any] = dict(zip(("name", "p", "layers", "keep"), (name, p, layers, keep)))
        questions.append(Question(asked, dropped(*asked.values())))
    return questions


def _clear(p, layers, keep):
    """Whether no stage is so near a whole number of layers that it hangs on rounding."""
    kept = (layers * keep * (p - 1) / (p - 1 - s) for s in range(p - 1))
    return all(abs(count - round(count)) > 0.01 for count in kept)


def _keep_wrong(question, got):
    name, p, layers, keep = question.arguments.values()
    words, corrected = f"for {question}: ", name == SCP
    if corrected and same(got, by_rule(p, layers, keep, False)):
        return (
            f"{words}stage {p - 2} is wrong. Under the shifted critical path it has as many "
            f"microbatches in flight as stage {p - 3}, so it can keep no larger part."
        )
    if not corrected and same(got, by_rule(p, layers, keep)):
        return (
            f"{words}stage {p - 2} is wrong. It has one microbatch more in flight under the "
            "shifted critical path alone; this is 1F1B."
        )
    if same(got, by_rule(p, layers, keep, False, lambda s: keep)):
        return (
            f"{words}every stage keeps the same part, though later ones have fewer "
            "microbatches in flight, and room for more."
        )
    if same(got, by_rule(p, layers, keep, corrected, lambda s: keep * p / (p - s))):
        return (
            f"{words}the microbatch that goes backward is all there on every stage. Those that "
            "share the room are the others: p - 1 - s of them, not p - s."
        )
    for counted, how in ((ceil, "up"), (round, "to the nearest")):
        if same(got, by_rule(p, layers, keep, corrected, counted=counted)):
            return f"{words}you rounded {how}; the released code rounds down what it recomputes."
    if any(x < 0 for x in got):
        return f"{words}a part k above 1 means all layers: then the stage recomputes none."
    if same(got[:-1], question.answer[:-1]):
        return f"{words}the last stage goes backward right after its forward: it keeps everything."


KEEP = Formula(
    name="merak_keep",
    title="Which layers does each stage recompute?",
    notebook=NOTEBOOK,
    prompt="Stage-aware recomputation: stage 0 keeps the activations of a part `keep` of its "
    "layers, and recomputes the others. Later stages have fewer microbatches in flight. "
    "While one of n_s microbatches goes backward, the n_s - 1 others hold their part k_s: "
    "(n_s - 1) k_s is to be the same on all stages but the last, which keeps all (k = 1). "
    "No k is above 1. Under 1F1B n_s = p - s; under the shifted critical path stage p-2 has "
    "as many in flight as p-3, and gets the same k (if there is a p-3). Return how many of "
    "its `layers` each of the `p` stages recomputes, p numbers, rounded down; `name` is "
    f'"1f1b" or "{SCP}".',
    starter="""def merak_keep(name, p, layers, keep):
    return [int(layers * (1 - keep)) for stage in range(p)]  # the same part everywhere?""",
    hints=(
        "Find n_s of each stage first. Which k makes (n_s - 1) k the same as on stage 0?",
        "k_s = keep (p - 1) / (p - 1 - s), at most 1. The last stage keeps everything; under the "
        "shifted critical path k of p-2 is that of p-3.",
        "`k = [min(1, keep * (p - 1) / (p - 1 - s)) for s in range(p - 1)] + [1]`, `if name != "
        '"1f1b" and p > 2: k[p - 2] = k[p - 3]`, `return [int(layers * (1 - x) + 1e-9) for x in '
        "k]`.",
    ),
    success="What the released code chooses by hand, k of stage 0, can be computed: as much as the "
    "memory of stage 0 allows.",
    make=_make_keep,
    needs=None,
    checks=(_keep_wrong,),
)


# --- merak_memory ---


def peak(name: str, p: int, m: int, s: int, whole: float, inputs: float, keep: float) -> float:
    """Bytes at the peak, from what the clock says is held when."""
    line = timeline(schedule(name, p, m))
    checkpointed = keep * whole + (1 - keep) * inputs
    return max(
        full * (whole + (1 - keep) * inputs) + kept * checkpointed for _, full, kept in line.held(s)
    )


def _make_memory(rng):
    questions = []
    for name, p, m, s in (("1f1b", 4, 8, 0), ("1f1b", 6, 4, 1), (SCP, 4, 8, 2), (SCP, 6, 12, 3)):
        whole, inputs = 100 * int(rng.integers(20, 90)), 10 * int(rng.integers(5, 30))
        keep = int(rng.integers(1, 8)) / 8
        asked: dict[str, Any] = dict(
            zip(
                ("name", "p", "m", "s", "whole", "inputs", "keep"),
                (name, p, m, s, whole, inputs, keep),
            )
        )
        questions.append(Question(asked, peak(*asked.values())))
    return questions


def _memory_wrong(question, got):
    name, p, m, s, whole, inputs, keep = question.arguments.values()
    n = timeline(schedule(name, p, m)).peak_in_flight[s]

    def by(n, backward=1.0, ends=1.0, behind=0):
        """By the formula, with mistakes."""
        return whole * (backward + (n - 1) * keep) + ends * inputs * (n - behind)

    words, drop = f"for {question}: ", 1 - keep
    if same(got, whole * n):
        return f"{words}that is without recomputation: all {n} microbatches whole."
    if same(got, by(n, keep, drop)):
        return (
            f"{words}you have {n} microbatches as they are kept. When one goes backward, what "
            "it recomputed is there too."
        )
    if same(got, by(n, 1.0, 0.0)):
        return f"{words}what is recomputed needs its input, which each microbatch holds."
    if same(got, by(n, 1.0, 1.0)):
        return (
            f"{words}inputs are held of the recomputed part of the layers alone: "
            f"{drop:g} of `inputs`."
        )
    if same(got, by(n, 1.0, drop, behind=1)):
        return f"{words}the microbatch that goes backward holds its inputs as well."
    for other, why in (
        (
            n - 1,
            "one too few"
            if name != SCP
            else "one too few: count the forwards before the first backward",
        ),
        (p - s, f"but there are only {m}"),
        (m, "all of them"),
    ):
        if other != n and same(got, by(other, 1.0, drop)):
            return f"{words}you have {other} microbatches in flight, {why}; there are {n}."


MEMORY = Formula(
    name="merak_memory",
    title="What does a stage hold at the peak?",
    notebook=NOTEBOOK,
    prompt="`whole`: bytes of the activations of one microbatch on one stage. `inputs`: bytes of "
    "the inputs of its layers, which is all that a recomputed layer keeps. A part `keep` "
    "of the layers keeps everything, the others their input. Return the bytes of "
    "activations and inputs that rank `s` of `p` holds at the peak, with `m` microbatches, "
    f'under `name` ("1f1b" or "{SCP}"): while one microbatch goes backward, all of it '
    "is there (and its inputs still are). Not the last rank.",
    starter="""def merak_memory(name, p, m, s, whole, inputs, keep):
    return m * (keep * whole + (1 - keep) * inputs)  # as they are kept?""",
    hints=(
        "How many microbatches are in flight (`merak_in_flight`), and how many of them are whole?",
        "n of them; one is whole, n - 1 hold `keep` of it, and all n the inputs of what is "
        "recomputed.",
        "`n = min(m, p - s)`, one more on rank p-2 of the shifted critical path; `return whole * "
        "(1 + (n - 1) * keep) + inputs * n * (1 - keep)`.",
    ),
    success="Beside it are parameters, gradients and the optimizer's state: what is left of the "
    "device's memory decides how much stage 0 can keep.",
    make=_make_memory,
    needs=None,
    checks=(_memory_wrong,),
)
