"""A GPT of 20 billion parameters, traced and cut for 8 stages without its weights."""

import resource
import sys

import torch
from harness import report, row, seconds

from tpviz.modules.partition import partition_of, trace


def main():
    import transformers

    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=44, n_embd=6144, n_head=64, n_positions=2048)
        )
    ids, found = torch.zeros(1, 2048, dtype=torch.long), {}

    def tracing():
        found["graph"] = trace(model, {"input_ids": ids, "labels": ids})

    def cutting():
        found["partition"] = partition_of(found["graph"], 8, balance="flops")
        found["stages"] = [found["partition"].module(k, model) for k in range(8)]

    times = [seconds(tracing), seconds(cutting)]
    flops = [part.flops for part in found["partition"].stages]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report(
        "partition",
        f"{found['graph']}, 8 stages",
        [
            row("trace, with costs", times[0], "s"),
            row("shards, stages and their modules", times[1], "s"),
            row("both", sum(times), "s", 60),
            row("peak of the process, torch and transformers included", peak / 1e9, "GB", 4),
            row("largest stage's FLOPs / mean", max(flops) * 8 / sum(flops), "x"),
        ],
    )
    print(found["partition"].report())


if __name__ == "__main__":
    sys.exit(main())
