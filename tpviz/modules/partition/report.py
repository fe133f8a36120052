"""What is on which stage, for people: text, rows of a table, and a scene for views.

Answers the question that users of the release asked first (its issue 6): what is inside each stage?
FLOPs are of one microbatch's forward; activation bytes are an estimate, see `measure`.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tpviz.core.tables import show_bytes, table

if TYPE_CHECKING:
    from .division import Partition


def text(partition: "Partition") -> str:
    """The report, several lines a stage."""
    graph, mode = partition.graph, "training" if partition.graph.training else "evaluation"
    lines = [
        f"{graph.model} in {_count(partition.stages, 'stage')} of "
        f"{_count(partition.shards, 'shard')}, even by {partition.balance}; one microbatch, "
        f"{mode} mode"
    ]
    for part in partition.stages:
        lines += [
            f"stage {part.index}: {part.numel:,} parameters, {show_bytes(part.flops, 'FLOP')} "
            f"forward, {show_bytes(part.activation_bytes)} kept for backward (estimate)",
            f"  modules   {', '.join(grouped(part.paths)) or 'parts of modules'}",
            f"  inputs    {', '.join(part.inputs) or 'none'}",
        ]
        lines += [f"  receives  {_message(m)}" for m in part.receives]
    lines += [f"tied: {tied}, gradients are all-reduced" for tied in _ties(partition)]
    return "\n".join(lines)


def rows(partition: "Partition") -> list[list[str]]:
    """Rows of strings, header first: one a stage."""
    columns = [
        ("stage", lambda part: str(part.index)),
        ("modules", lambda part: ", ".join(grouped(part.paths))),
        ("parameters", lambda part: f"{part.numel:,}"),
        ("forward", lambda part: show_bytes(part.flops, "FLOP")),
        ("kept for backward (estimate)", lambda part: show_bytes(part.activation_bytes)),
        ("inputs", lambda part: ", ".join(part.inputs)),
        ("receives", lambda part: "; ".join(map(_message, part.receives))),
    ]
    return table(columns, ((part,) for part in partition.stages))


def sentence(partition: "Partition") -> str:
    """A sentence that sums up the partition: how even the stages are, and what they send."""
    stages = partition.stages
    most = max(stages, key=lambda part: part.flops)
    mean = sum(part.flops for part in stages) / len(stages)
    words = [f"{partition.graph.model} is cut into {_count(stages, 'stage')}"]
    if mean:
        words.append(f"stage {most.index} computes most, {most.flops / mean:.2f} times the mean")
    cuts = [sum(m.bytes for m in part.receives) for part in stages[1:]]
    if cuts:
        words.append(f"at most {show_bytes(max(cuts))} of a microbatch cross a cut")
    tied = _ties(partition)
    return "; ".join(words) + "." + (f" Tied: {'; '.join(tied)}." if tied else "")


def scene(partition: "Partition") -> dict[str, Any]:
    """A plain dict for views: stages, shards and ties, with all numbers."""

    def message(m):
        return {**m._asdict(), "shape": list(m.shape), "dtype": _dtype(m)}

    graph = partition.graph
    owner = {k: stage for stage, (a, b) in enumerate(partition.ranges) for k in range(a, b)}
    sizes = lambda part: {"numel": part.numel, "flops": part.flops, "modules": grouped(part.paths)}
    stages = [
        {
            **sizes(part),
            "index": part.index,
            "paths": list(part.paths),
            "activation_bytes": part.activation_bytes,
            "inputs": list(part.inputs),
            "receives": [message(m) for m in part.receives],
            "sends": [message(m) for m in part.sends or ()],
        }
        for part in partition.stages
    ]
    return {
        "model": graph.model,
        "balance": partition.balance,
        "training": graph.training,
        "numel": graph.numel(graph.parameters),
        "stages": stages,
        "shards": [
            {**sizes(s), "numel": numel, "stage": owner[k], "activation_bytes": kept}
            for k, (s, (numel, kept)) in enumerate(zip(partition.shards, _own(partition)))
        ],
        "ties": [
            {what: list(values) for what, values in tie.items()} for tie in partition.tied_weights
        ],
    }


def _own(partition):
    """Of each shard (elements of parameters, bytes kept for backward) that no shard before it on
    its stage has."""
    graph = partition.graph
    for first, stop in partition.ranges:
        names, kept = set(), {}
        for s in partition.shards[first:stop]:
            nodes, before = graph.body[s.start : s.stop], (graph.numel(names), sum(kept.values()))
            names |= {name for node in nodes for name in node.parameters}
            kept = {name: size for node in nodes for name, size in node.saves.items()} | kept
            yield graph.numel(names) - before[0], sum(kept.values()) - before[1]


def grouped(paths: Iterable[str]) -> list[str]:
    """Module paths in short form, with common parts written once.

    >>> grouped(["emb", "h.0", "h.1", "h.2", "h.3.ln", "h.3.mlp", "h.4"])
    ['emb', 'h.0..2', 'h.3.{ln, mlp}', 'h.4']
    """
    found = []
    for parent, group in groupby(paths, key=lambda path: path.rpartition(".")[0]):
        names = _ranges([path.rpartition(".")[2] for path in group])
        if not parent:
            found += names
        else:
            found.append(
                f"{parent}.{names[0]}" if len(names) == 1 else f"{parent}.{{{', '.join(names)}}}"
            )
    return found


def _ranges(names):
    """["0..2", "x"] of ["0", "1", "2", "x"]."""
    found = []
    for name in names:
        first, _, last = found[-1].partition("..") if found else ("", "", "")
        if name.isdigit() and (last or first).isdigit() and int(name) == int(last or first) + 1:
            found[-1] = f"{first}..{name}"
        else:
            found.append(name)
    return found


def _message(m):
    return (
        f"{m.name} {tuple(m.shape)} {_dtype(m)}, {show_bytes(m.bytes)}, made on stage "
        f"{m.from_stage} in {m.path or 'the model'}"
    )


def _dtype(m):
    return str(m.dtype).removeprefix("torch.")


def _ties(partition):
    return [
        " = ".join(f"{name} (stage {stage})" for name, stage in zip(tie["names"], tie["stages"]))
        for tie in partition.tied_weights
    ]


def _count(things, name):
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"
