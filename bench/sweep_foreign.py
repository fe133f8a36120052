"""Models that tpviz did not write, split in every way, against one process: the product that
tests/modules samples.

Every model meets ATP on all meshes of four ranks with its knobs, Megatron, all of AxoNN's grids of
four ranks in both modes, and pipelines. By `tv.verify_parallel` in float64, three AdamW steps each.
Exits with 1 at the first that is not equal; what a model cannot be split into is counted.
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import tpviz as tv

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "modules"))
import foreign

MODELS = {
    "MLPs": (foreign.Gated, foreign.vectors(8, 8)),
    "TransformerEncoder": (foreign.encoder, foreign.vectors(foreign.WIDTH, 8)),
    "GPT-2": (foreign.gpt2, foreign.tokens(8)),
    "GPT-2, its own attention": (
        lambda: foreign.gpt2(attn_implementation="eager"),
        foreign.tokens(8),
    ),
    "GPT-2, cross attention": (
        lambda: foreign.gpt2(add_cross_attention=True),
        foreign.crossed(8),
    ),
    "Llama": (foreign.llama, foreign.tokens(8)),
    "Llama, two groups of heads": (lambda: foreign.llama(kv=2), foreign.tokens(8)),
    "OPT": (foreign.opt, foreign.tokens(8)),
    "BERT": (foreign.bert, foreign.masked(8)),
}


def layered() -> Iterator[tuple[Any, dict[str, Any]]]:
    """(strategy, options) that split layers."""
    for mesh, order, chunks in product(((4, 1), (2, 2), (1, 4)), ("column", "row"), (1, 2)):
        yield tv.ATP(mesh=mesh, order=order, chunks=chunks), {}
    yield tv.ATP(mesh=(2, 2), chunks=2, chunking="tokens", order="row"), {}
    yield tv.ATP(mesh=(2, 2), attention="A1"), {}
    yield tv.Megatron(tp=4, chunks=2), {}
    for x, y, z in product((1, 2, 4), repeat=3):
        if 4 % (x * y * z) == 0:
            for keep, easy in product((True, False), repeat=2):
                grid = tv.AxoNN(x, y, z, 4 // (x * y * z), keep=keep)
                yield grid, {"easy": easy, "loss": foreign.weighted}


def pipelines() -> Iterator[tuple[Any, dict[str, Any]]]:
    """(strategy, options) that cut models into stages."""
    for schedule, recompute in product(
        ("gpipe", "1f1b", "shifted_critical_path", "interleaved_1f1b", "zb_h1", "zb_v"),
        ("none", "stage_aware"),
    ):
        for tp, dp in ((1, 1), (2, 1), (1, 2), (2, 2)):
            strategy = tv.Merak(
                pp=2, tp=tp, dp=dp, microbatches=4, schedule=schedule, recompute=recompute
            )
            yield strategy, {"loss": foreign.weighted}


def main():
    """All of it."""
    worst, refused, equal = 0.0, 0, 0
    for (name, (make, inputs)), (strategy, options) in product(
        MODELS.items(), [*layered(), *pipelines()]
    ):
        try:
            found = tv.verify_parallel(make, strategy, inputs, **options)
        except ValueError as error:
            print(f"{name}, {strategy.short}: {str(error).splitlines()[0][:150]}", flush=True)
            refused += 1
            continue
        if not found:
            sys.exit(f"{name}, {strategy}, {options}: {found}")
        worst, equal = max(worst, found.max_error), equal + 1
        if equal % 20 == 0:
            print(f"{equal} equal, largest error {worst:.1e}", flush=True)
    print(f"{equal} equal one process, ledgers exact; largest error {worst:.1e}; {refused} refused")
    tv.shutdown()


if __name__ == "__main__":
    main()
