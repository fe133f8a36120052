"""``gain``: ATP's best mesh against Megatron-LM's on the box that it is made for.

The abstract names no machine. Here: eight A100s over PCIe, joined in pairs by NVLink, as in the
traces of the authors, and the sizes of the authors' benchmark script, a stack of layers.
"""

from dataclasses import replace

from tpviz.cluster import Cluster
from tpviz.cluster.clusters import GPUS, as_run_by, nvlink_pairs
from tpviz.core.workload import GPT
from tpviz.evidence.finding import Finding

from .winning import Winners, winners

CHUNKS = (1, 2, 4)
"""Of the forward all-reduces, for the mesh of Megatron-LM too, whose script has them as well."""


def box(rings: str = "multi", pcie: float = 1.0) -> Cluster:
    """`tpviz.clusters.nvlink_pairs` whose GPUs cost what published runs on A100s did; its links are
    measured already. pcie : times as fast."""
    made = nvlink_pairs(4, rings)
    pairs, over = made.levels
    rates = GPUS["A100-SXM-80GB"].flops
    device = as_run_by(made, "Megatron-LM before FlashAttention").device
    return replace(
        made,
        device=replace(device, flops=rates),
        levels=(pairs, replace(over, p2p=over.p2p * pcie, group=over.group * pcie)),
        table={key: rate * pcie for key, rate in made.table.items()},
    )


def meshes(
    rings: str = "multi", pcie: float = 1.0, hidden: int = 12288, batch: int = 4
) -> dict[int, Winners]:
    """{chunks: the `Winners` on that box}, for two layers of heads of 256 features.

    rings : whether those over several pairs drive each GPU's PCIe link, "multi", or are held to
    one, "single".
    """
    w = GPT(2, hidden, hidden // 256, seq=2048, batch=batch, vocab=256, dtype="bfloat16")
    named = {"box": box(rings, pcie)}
    return {chunks: winners(w, named, chunks=chunks) for chunks in CHUNKS if not batch % chunks}


def gain(rings: str = "multi", pcie: float = 1.0, hidden: int = 12288, batch: int = 4) -> Finding:
    """By how many percent the fastest mesh and order is faster than 1D, both with the number of
    chunks that is best for them; arguments as of `meshes`."""
    found = meshes(rings, pcie, hidden, batch)
    base, times = _times(found)
    strategy, chunks = min(times, key=times.__getitem__)
    setting = (
        "8 A100s over PCIe, pairs joined by NVLink, rings over pairs at 32 GB/s, as in the "
        f"authors' traces; {found[1].workload.words}, batch 4 x 2048 tokens, both sides with 1 to "
        f"4 chunks; best mesh {strategy.mesh}, {strategy.order} order, {chunks} chunks"
    )
    return Finding(100 * (min(base.values()) / min(times.values()) - 1), "predicted", setting)


def _times(found: dict[int, Winners]):
    """(those of 1D, those of all strategies): {(strategy, chunks): seconds}."""
    every = {
        (strategy, chunks): row.predicted
        for chunks, one in found.items()
        for (_, strategy), row in one.cells.items()
    }
    base = {key: seconds for key, seconds in every.items() if key[0].mesh[1] == 1}
    return {key: s for key, s in base.items() if key[0].order == "column"}, every
