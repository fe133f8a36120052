"""Which blocks of a GPT are on which stage of the pipeline (no torch).

Stage 0 has the embedding besides its blocks, the last one the head and the loss. How many blocks
each has is a layout: "even", "balanced", or stage by stage in the words of Megatron-LM's
``--pipeline-model-parallel-layout``: E for the embedding, t for a block (transformer layer), L for
the head and the loss, | where a stage ends; x*n and (x)*n repeat, commas mean nothing.

Megatron-LM's older options are layouts, too. Where embedding and loss count as layers
(``account_for_embedding_in_pipeline_split``, ``account_for_loss_in_pipeline_split``), the first and
the last stage have a block less; ``decoder_first_pipeline_num_layers`` and
``decoder_last_pipeline_num_layers`` are their counts: `written((2, 4, 4, 2))`.

>>> counts("Et*3|(tt|)*2,L")
(3, 2, 2, 0)
>>> written((3, 2, 2, 0))
'Ettt|(tt|)*2,L'
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise, product
from typing import Any

from tpviz.core.checks import text, whole_number

TOKENS, HEAD = "embed.token.weight", "head.weight"
"""The two ends' weights; where they are one, the last stage has a copy under the second name."""
RULES = ("even", "balanced")
"""Layouts that follow from the workload."""
V_SHAPED = ("zb_v", "dualpipe_v")
"""Schedules whose stages go down the ranks and come back."""
MOST = 1024
"""How often a part of a layout may be repeated."""
_ITEM = re.compile(r"(?:([EtLm|])|\(([^()]+)\)(?=\*))(?:\*(\d{1,6}))?")


def layout_text(name: str, value: Any) -> str:
    """A layout as the knob keeps it: one of `RULES`, or as `written`. value : such a text, or how
    many blocks each stage has. Raises ``ValueError`` for anything else."""
    if isinstance(value, (tuple, list)):
        return written([whole_number(f"blocks of a stage in {name}", n, 0) for n in value])
    return value if text(name, value) in RULES else written(counts(value))


@lru_cache(maxsize=1024)
def counts(layout: str) -> tuple[int, ...]:
    """The number of blocks of each stage in a layout that is written out.

    A stage may have no block. Raises ``ValueError`` that quotes what is wrong; "m", Megatron-LM's
    multi-token prediction, is no part of `tpviz.GPT`.
    """
    unrolled = _unrolled(layout, layout.replace(",", "").replace(" ", ""))
    if "m" in unrolled:
        raise ValueError(
            f"layout={layout!r}: m is a layer of multi-token prediction, which a tv.GPT does not "
            "have: leave it out"
        )
    if not re.fullmatch(r"E[t|]*L", unrolled):
        raise ValueError(
            f"layout={layout!r} must have one E (embedding) at its beginning, one L (head and "
            "loss) at its end, and t (blocks) and | (end of a stage) between them: 'Ett|ttL'"
        )
    return tuple(stage.count("t") for stage in unrolled.split("|"))


def _unrolled(layout, part):
    """A part of a layout without repetitions."""
    found, at = [], 0
    while at < len(part):
        if not (item := _ITEM.match(part, at)):
            raise ValueError(
                f"layout={layout!r}: {part[at : at + 20]!r} is no layout: use {', '.join(RULES)}, "
                "counts such as (2, 2), or E, t, L and | as in 'Ett|(t*4|)*2,ttL'"
            )
        letter, group, times = item.groups()
        times = whole_number(f"a repetition in layout={layout!r}", int(times or 1), 1, MOST)
        found.append((letter or _unrolled(layout, group)) * times)
        at = item.end()
    return "".join(found)


def written(counts: Sequence[int]) -> str:
    """The layout of stages with so many blocks. Raises ``ValueError`` if there are no stages."""
    if not counts:
        raise ValueError("layout has no stage: give the number of blocks of each, as (2, 2)")
    first, *others = (f"t*{n}" if n > 3 else "t" * n for n in counts)
    if not others:
        return f"E{first}L"
    middle = ((blocks, len(list(same))) for blocks, same in groupby(others[:-1]))
    repeated = (f"({blocks}|)*{n}," if n > 1 else f"{blocks}|" for blocks, n in middle)
    return f"E{first}|{''.join(repeated)}{others[-1]}L"


@lru_cache(maxsize=256)
def layers_of(layers: int, stages: int) -> tuple[range, ...]:
    """The blocks of each stage where they are as equal as can be, the later ones larger."""
    return ranges(layers * (s + 1) // stages - layers * s // stages for s in range(stages))


def ranges(counts: Iterable[int]) -> tuple[range, ...]:
    """The blocks of stages with so many each."""
    return tuple(range(a, b) for a, b in pairwise(accumulate(counts, initial=0)))


@lru_cache(maxsize=256)
def balanced(
    layers: int, rank_of: tuple[int, ...], block: tuple[float, ...], head: float
) -> tuple[int, ...]:
    """How many of ``layers`` blocks each stage has, so that the slowest rank takes as short as can
    be (derived).

    rank_of : each stage's rank. block : what a block costs on each rank; head : what the head
    costs on the last stage. All stages between the first and the last have a block at least.

    Where all blocks are alike, it is exact to give each next one to the rank that is done with it
    first. Of its stages the one with least gets it; of equals the last, since fewer microbatches
    are in flight there.
    """
    stages = len(rank_of)
    found = [int(0 < s < stages - 1) for s in range(stages)]
    rank, own = [0.0] * len(block), [0.0] * stages

    def add(stage, cost):
        own[stage] += cost
        rank[rank_of[stage]] += cost

    add(-1, head)
    for stage, n in enumerate(found):
        add(stage, n * block[rank_of[stage]])
    for _ in range(layers - sum(found)):
        ends = [(rank[r] + block[r], own[s], -s) for s, r in enumerate(rank_of)]
        stage = -min(ends)[2]
        found[stage] += 1
        add(stage, block[rank_of[stage]])
    return tuple(found)


@lru_cache(maxsize=256)
def balanced_unlike(
    blocks: tuple[tuple[float, ...], ...], rank_of: tuple[int, ...], head: float
) -> tuple[int, ...]:
    """As `balanced`, of blocks that are not all alike: what each of ``blocks`` costs on each rank.

    Where every rank has one stage it is exact, by dynamic programming over the places where stages
    end. Ranks with several stages begin with that of as many ranks as there are stages, and then
    blocks go from a stage to another as long as that makes the slowest rank faster: a local
    optimum.
    """
    stages = len(rank_of)
    until = [[0.0, *accumulate(block[rank] for block in blocks)] for rank in rank_of]

    def cost(stage, start, stop):
        return until[stage][stop] - until[stage][start] + head * (stage == stages - 1)

    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}  # of stages that end there
    for stage in range(stages):
        least = int(0 < stage < stages - 1)
        found = {}
        for stop in range(min(best) + least, len(blocks) + 1):
            slowest, start = min(
                (max(before, cost(stage, start, stop)), start)
                for start, (before, _) in best.items()
                if start + least <= stop
            )
            found[stop] = slowest, (*best[start][1], stop)
        best = found
    ends = (0, *best[len(blocks)][1])
    if len(set(rank_of)) < stages:
        ends = _moved(ends, rank_of, cost)
    return tuple(stop - start for start, stop in pairwise(ends))


def _moved(ends, rank_of, cost):
    """Places where stages end, neighbouring ones together moved by a block, as long as the slowest
    rank gets faster: one stage gives a block, another one gets one."""
    inner, places = range(1, len(rank_of) - 1), range(1, len(rank_of))

    def slowest(ends):
        total = [0.0] * (max(rank_of) + 1)
        for stage, rank in enumerate(rank_of):
            total[rank] += cost(stage, *ends[stage : stage + 2])
        return sorted(total, reverse=True)

    def moves():
        for first, last, by in product(places, places, (-1, 1)):
            moved = [end + by * (first <= k <= last) for k, end in enumerate(ends)]
            least = all(moved[k] < moved[k + 1] for k in inner)
            if least and moved == sorted(moved) and first <= last:
                yield tuple(moved)

    while True:
        best = min(moves(), key=slowest, default=ends)
        if slowest(best) >= slowest(ends):
            return ends
        ends = best
