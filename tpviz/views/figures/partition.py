"""A model cut into stages -> scene: columns are stages, rows the model's shards in order.

Works on the plain dict of `Partition.scene`. Parameters and FLOPs are counted in the traced graph,
bytes kept for backward are an estimate, all of one microbatch.
"""

from collections.abc import Sequence
from html import escape
from itertools import takewhile
from typing import Any

from .legend import legend
from .svg import VIEW, amount, clickable, lines, outline, pattern_defs, rect, swatch, text, width_of

BADGE = "traced"
TOP = 0
MAX_STAGES, MAX_SHARDS = 16, 160
SIZES = (
    ("numel", "parameters", "", "parameters"),
    ("flops", "FLOPs of a forward pass", "FLOP", "forward"),
    ("activation_bytes", "kept for backward (estimate)", "B", "activations"),
)
"""(key in the dict, label, unit, ink) of the bars of a stage and of a shard."""


def partition_scene(data: dict[str, Any]) -> dict[str, Any]:
    """The scene of what `Partition.scene` gives, a film (`tpviz.views.widgets.base.Film`) with a
    step for each stage, ready for JSON.

    Raises ``ValueError`` above 16 stages or 160 shards.
    """
    check(len(data["stages"]), len(data["shards"]))
    return {
        "title": f"{data['model']}, {data['numel']:,} parameters, one microbatch in "
        f"{'training' if data['training'] else 'evaluation'}",
        "badge": BADGE,
        "top": TOP,
        "facts": facts(data),
        "finding": finding(data),
        "notes": notes(data),
        "captions": [f"stage {part['index']} of {len(data['stages'])}" for part in data["stages"]],
        "words": [words(part) for part in data["stages"]],
        **pictures(data),
    }


def check(stages: int, shards: int) -> None:
    """Raise ``ValueError`` if the picture would not be legible."""
    if stages > MAX_STAGES:
        raise ValueError(f"{stages} stages: this view shows at most {MAX_STAGES}")
    if shards > MAX_SHARDS:
        raise ValueError(f"{shards} shards: this view shows up to {MAX_SHARDS}; use coarser cuts")


def facts(data: dict[str, Any]) -> list[list[str]]:
    """(label, text) pairs for the line above the picture."""
    pairs = [["stages", f"{len(data['stages'])} of {len(data['shards'])} shards"]]
    pairs.append(["even by", data["balance"].replace("_", " ")])
    sizes = [part["numel"] for part in data["stages"]]
    if sum(sizes):
        uneven = max(sizes) * len(sizes) / sum(sizes)
        pairs.append(["largest in parameters", f"{uneven:.2f} times the mean"])
    cuts = [sum(m["bytes"] for m in part["sends"]) for part in data["stages"][:-1]]
    return [*pairs, ["across a cut, at most", amount(max(cuts))]] if cuts else pairs


def finding(data: dict[str, Any]) -> str:
    """Which stage makes others wait, in a sentence."""
    work = [part["flops"] for part in data["stages"]]
    most, mean = max(work), sum(work) / len(work)
    if most <= 1.005 * mean:
        return "All stages have as much work: none waits."
    return (
        f"Stage {work.index(most)} has {most / mean:.2f} times the mean work: others wait for it."
    )


def notes(data: dict[str, Any]) -> list[str]:
    """Parameters that several stages hold."""
    return [
        "Tied: "
        + " = ".join(f"{name} (stage {stage})" for name, stage in zip(tie["names"], tie["stages"]))
        + "; their gradients are all-reduced."
        for tie in data["ties"]
    ]


def words(part: dict[str, Any]) -> str:
    """A stage in a few sentences."""
    labels = "parameters", "forward", "kept for backward (estimate)"
    sizes = ", ".join(
        f"{amount(part[key], unit).strip()} {label}"
        for (key, _, unit, _), label in zip(SIZES, labels)
    )
    out = [
        f"Stage {part['index']}: {', '.join(part['modules']) or 'parts of modules'}.",
        f"{sizes}.",
    ]
    if part["inputs"]:
        out.append(f"Needs the model's {', '.join(part['inputs'])}.")
    out += [f"Receives {message(m, part['index'])}." for m in part["receives"]]
    return " ".join(out)


def message(m: dict[str, Any], to: int) -> str:
    """A tensor that crosses the cut before stage ``to``."""
    handed = "" if m["from_stage"] == to - 1 else f", of stage {m['from_stage']}, forwarded"
    shape = ", ".join(map(str, m["shape"]))
    return (
        f"{m['name']} ({shape}) {m['dtype']}, {amount(m['bytes'])}, made in "
        f"{m['path'] or 'the model'}{handed}"
    )


LEFT, RIGHT, GAP = 246, 4, 8  # of the columns, and between two
HEAD = 12
SIZE = 34  # height of a bar of a stage, with its number
NAME = 31  # letters of a piece's name
FEW, MESSAGES = 40, 3  # pieces that get wide rows; messages that are written at a cut


def pictures(data: dict[str, Any]) -> dict[str, Any]:
    """{"width", "height", "common", "frames"}: what is always there, and a border around each
    stage, as SVG."""
    plan = _Plan(data)
    common = [pattern_defs()]
    for i, (_, label, _, _) in enumerate(SIZES):
        common.append(text(LEFT - 10, HEAD + 28 + SIZE * i, label, "muted", anchor="end"))
    common += [_head(plan, part) for part in data["stages"]]
    common += [_piece(plan, k) for k in range(len(data["shards"]))]
    common += [_cut(plan, part) for part in data["stages"][1:]]
    items = [(ink, label) for _, label, _, ink in SIZES] + [("mean", "mean of the stages")]
    items.append(("message", "tensors that cross a cut, per microbatch, and their gradients back"))
    marks, y = legend(items, 12.0, plan.bottom + 11, VIEW)
    return {
        "width": VIEW,
        "height": round(y + 23),
        "common": "".join([*common, marks]),
        "frames": [_frame(plan, part) for part in data["stages"]],
    }


class _Plan:
    """Where everything is, in px. rows : y of each shard; spans : (y, end) of each stage's."""

    def __init__(self, data):
        self.data, self.shards, stages = data, data["shards"], data["stages"]
        self.wide = (VIEW - LEFT - RIGHT) / len(stages)
        self.row = 18 if len(self.shards) <= FEW else 12
        self.rows, self.spans, y = [], [], HEAD + 18 + SIZE * len(SIZES) + 16
        for part in stages:
            y += 18 + 12 * min(len(part["receives"]), MESSAGES) if self.spans else 0
            mine = [s for s in self.shards if s["stage"] == part["index"]]
            self.rows += [y + i * self.row for i in range(len(mine))]
            self.spans.append((y, y + len(mine) * self.row))
            y = self.spans[-1][1]
        self.bottom = y
        self.most = {
            key: (max(s[key] for s in self.shards) or 1, max(part[key] for part in stages) or 1)
            for key, *_ in SIZES
        }

    def x(self, stage):
        """Where a column begins."""
        return LEFT + stage * self.wide


def _head(plan, part):
    """A stage's name, and its sizes as bars with a tick at the mean of all stages."""
    stage, stages = part["index"], plan.data["stages"]
    x, room = plan.x(stage) + 4, plan.wide - GAP - 8
    out = text(x, HEAD + 10, f"stage {stage}" if room > 56 else stage, weight=700)
    for i, (key, _, unit, ink) in enumerate(SIZES):
        y, most = HEAD + 18 + SIZE * i, plan.most[key][1]
        mean = sum(other[key] for other in stages) / len(stages)
        number = amount(part[key], unit if room > 66 else "")
        out += swatch(x, y, room * part[key] / most, 10, ink)
        at = x + room * mean / most
        out += rect(at - 2, y - 3, 4, 16, "bg") + rect(at - 1, y - 3, 2, 16, "fg")
        out += text(x, y + 23, number, "muted")
    return clickable(f"step='{stage}'", out)


def _piece(plan, number):
    """A shard: its modules at the left, its bars in the column of its stage."""
    shard, y = plan.shards[number], plan.rows[number]
    x, room, high = plan.x(shard["stage"]), plan.wide - GAP, (plan.row - 4) / 3
    name = named(shard["modules"])
    short = name if len(name) <= NAME else f"{name.partition('.{')[0][: NAME - 2]} …"
    sizes = [f"{label} {amount(shard[key], unit)}" for key, label, unit, _ in SIZES]
    tip = "; ".join([name, *sizes])
    out = text(LEFT - 10, y + plan.row / 2 + 3.5, short, anchor="end")
    out += rect(x, y, room, plan.row, "bg") + outline(x, y, room, plan.row, "rule")
    for i, (key, _, _, ink) in enumerate(SIZES):
        width = (room - 8) * shard[key] / plan.most[key][0]
        out += swatch(x + 4, y + 2 + i * high, width, high - 0.6, ink)
    return clickable(f"step='{shard['stage']}' data-piece='{number}'", out, tip)


def named(modules: Sequence[str]) -> str:
    """
    >>> named(["h.0.ln", "h.0.attn.{q, k}"]), named(["emb", "h.0"]), named([])
    ('h.0.{ln, attn.{q, k}}', 'emb, h.0', 'no parameters')
    """
    above = zip(*(module.split(".")[:-1] for module in modules)) if len(modules) > 1 else ()
    shared = ".".join(
        names[0]
        for names in takewhile(lambda names: len(set(names)) == 1 and "{" not in names[0], above)
    )
    if not shared:
        return ", ".join(modules) or "no parameters"
    return f"{shared}.{{{', '.join(m[len(shared) + 1 :] for m in modules)}}}"


def _path(plan, stage):
    """The arrow over the cut before a stage: (d, x of its start, x of its end, y of its middle)."""
    start, end = (plan.x(k) + (plan.wide - GAP) / 2 for k in (stage - 1, stage))
    y0, y1 = plan.spans[stage - 1][1], plan.spans[stage][0]
    return f"M{start:.1f},{y0:.1f}V{y1 - 9:.1f}H{end:.1f}V{y1 - 5:.1f}", start, end, y0


def _cut(plan, part):
    """The tensors that cross the cut before a stage: an arrow, and their bytes."""
    messages = part["receives"]
    d, start, end, y = _path(plan, part["index"])
    tip = "; ".join(message(m, part["index"]) for m in messages)
    rows = [_short(m, part["index"]) for m in messages[:MESSAGES]] or ["nothing crosses"]
    if len(messages) > MESSAGES:
        rest = messages[MESSAGES - 1 :]
        rows[-1] = f"{len(rest)} more tensors, {amount(sum(m['bytes'] for m in rest))}"
    x, anchor = plan.x(part["index"]) + 4, "start"
    if x + max(map(width_of, rows)) > VIEW:
        x, anchor = start - 6, "end"
    out = lines(x, y + 13, rows, 12, anchor=anchor)
    if messages:
        tip_y = plan.spans[part["index"]][0]
        out += (
            f"<path d='{d}' class='s-axis2' fill='none' stroke-width='2' data-cut=''/>"
            f"<path d='M{end:.1f},{tip_y:.1f}l-5,-8h10z' class='f-axis2'/>"
        )
    return f"<g><title>{escape(tip)}</title>{out}</g>"


def _short(m, to):
    shape = " x ".join(map(str, m["shape"]))
    handed = "" if m["from_stage"] == to - 1 else f", from stage {m['from_stage']}"
    return f"{m['name']} {shape}, {amount(m['bytes'])}{handed}"


def _frame(plan, part):
    """A border around a stage's column, its arrow in bold."""
    stage = part["index"]
    x, wide, (y, end) = plan.x(stage) - 2, plan.wide - GAP + 4, plan.spans[stage]
    out = outline(x, HEAD - 5, wide, SIZE * len(SIZES) + 28, "fg", 2.2, 4)
    out += outline(x, y - 1, wide, end - y + 2, "fg", 2.2, 4)
    if part["receives"]:
        out += f"<path d='{_path(plan, stage)[0]}' class='s-axis2' fill='none' stroke-width='4.5'/>"
    return out
