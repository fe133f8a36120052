"""A model cut into stages -> scene: columns are stages, rows the model's pieces in their order.

Works on the plain dict of `Partition.scene`. Parameters and FLOPs are counted in the traced graph,
bytes kept for backward are an estimate, all of one microbatch.
"""

from .palette import INKS
from .svg import amount

BADGE = "traced"
WIDTH, TOP = 1060, 34
MAX_STAGES, MAX_SHARDS = 16, 160
SIZES = (
    ("numel", "parameters", "", "parameters"),
    ("flops", "FLOPs of a forward", "FLOP", "forward"),
    ("activation_bytes", "kept for backward (estimate)", "B", "activations"),
)
"""(key in the dict, label, unit, ink) of the bars of a stage and of a piece."""


def partition_scene(data):
    """The scene of what `Partition.scene` gives, a film (`tpviz.widgets.base.Film`) with a step for
    each stage, ready for JSON.

    Raises ``ValueError`` above 16 stages or 160 pieces.
    """
    from .partition_svg import pictures

    check(len(data["stages"]), len(data["shards"]))
    return {
        "title": f"{data['model']}, {data['numel']:,} parameters, one microbatch in "
        f"{'training' if data['training'] else 'evaluation'}",
        "badge": BADGE,
        "top": TOP,
        "facts": facts(data),
        "notes": notes(data),
        "captions": [f"stage {part['index']} of {len(data['stages'])}" for part in data["stages"]],
        "words": [words(part) for part in data["stages"]],
        **pictures(data),
    }


def check(stages, shards):
    """Raise ``ValueError`` where the picture would not be legible."""
    if stages > MAX_STAGES:
        raise ValueError(f"{stages} stages: this view shows at most {MAX_STAGES}")
    if shards > MAX_SHARDS:
        raise ValueError(f"{shards} pieces: this view shows at most {MAX_SHARDS}; use coarser cuts")


def facts(data):
    """(label, text) pairs for the line above the picture."""
    found = [
        ["stages", f"{len(data['stages'])} of {len(data['shards'])} pieces"],
        ["even by", data["balance"].replace("_", " ")],
    ]
    for key, label, _, _ in SIZES[:2]:
        held = [part[key] for part in data["stages"]]
        if sum(held):
            found.append(
                [
                    f"largest in {label.split()[0]}",
                    f"{max(held) * len(held) / sum(held):.2f} times the mean",
                ]
            )
    cuts = [sum(m["bytes"] for m in part["sends"]) for part in data["stages"][:-1]]
    return [*found, ["across a cut, at most", amount(max(cuts))]] if cuts else found


def notes(data):
    """What no stage shows: parameters that several hold."""
    return [
        "Tied: "
        + " = ".join(f"{name} (stage {stage})" for name, stage in zip(tie["names"], tie["stages"]))
        + "; their gradients are summed."
        for tie in data["ties"]
    ]


def words(part):
    """A stage in a few sentences."""
    sizes = ", ".join(
        f"{amount(part[key], unit).strip()} {label}"
        if not unit
        else f"{amount(part[key], unit)} {rest}"
        for (key, label, unit, _), rest in zip(
            SIZES, ("", "forward", "kept for backward (estimate)")
        )
    )
    out = [
        f"Stage {part['index']}: {', '.join(part['modules']) or 'parts of modules'}.",
        f"{sizes}.",
    ]
    if part["inputs"]:
        out.append(f"Needs the model's {', '.join(part['inputs'])}.")
    out += [f"Receives {message(m, part['index'])}." for m in part["receives"]]
    return " ".join(out)


def message(m, to):
    """A tensor that crosses the cut before stage ``to``."""
    handed = "" if m["from_stage"] == to - 1 else f", of stage {m['from_stage']}, handed on"
    shape = ", ".join(map(str, m["shape"]))
    return (
        f"{m['name']} ({shape}) {m['dtype']}, {amount(m['bytes'])}, made in "
        f"{m['path'] or 'the model'}{handed}"
    )


def pattern(ink):
    """The ink's pattern, or "" where it is solid."""
    return "" if INKS[ink].pattern == "solid" else INKS[ink].pattern
