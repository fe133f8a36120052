"""A film of a block of AxoNN -> scene: the cube of ranks, weights on their way, known cases.

Built as `tpviz.figures.blocks`, which counts and words the frames; here is what the depth axis and
the replicas add. Everything is counted from the program's operations; there are no times here.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.mesh import Mesh

from . import blocks
from .blocks import LEGEND, LOOK, WIDTH, drawn_sentence, matrices, now, panel, strip
from .blocks_matrix import HATCH, Eyes, own, size
from .grid_cube import Cube, cube, holdings, moment
from .legend import legend
from .palette import axis_keys
from .svg import amount, lines, outline, pattern_defs, rect, text, wrapped

if TYPE_CHECKING:
    from tpviz.films.captions import Frame, Tensor
    from tpviz.films.grid_cases import Case
    from tpviz.schemes.axonn.strategy import AxoNN
    from tpviz.workload import GPT


class GridStory(NamedTuple):
    """What the picture is of: words for it, the axes of more than one rank, the workload, the
    frames of `tpviz.films.grid.grid_frames`, the strategy, and (case, is it reached?) pairs."""

    title: str
    mesh: Mesh
    workload: "GPT"
    frames: "tuple[Frame, ...]"
    strategy: "AxoNN"
    cases: "tuple[tuple[Case, bool], ...]"


def grid_scene(story: GridStory, rank: int = 0) -> dict[str, Any]:
    """The scene of a `GridStory`, ready for JSON, with the fields of
    `tpviz.figures.blocks.blocks_scene`.

    Raises ValueError on a rank that is not there, and above 16 ranks.
    """
    check(story.mesh, rank)
    return {
        "title": story.title,
        "badge": blocks.BADGE,
        "rank": rank,
        "captions": [caption(story, i) for i in range(len(story.frames))],
        "words": [words(story, i) for i in range(len(story.frames))],
        "facts": facts(story),
        "top": 34,
        **pictures(story, rank),
    }


check = blocks.check


def mesh_of(strategy: "AxoNN") -> Mesh:
    """The axes of more than one rank; x where there is none."""
    return Mesh({axis: n for axis, n in strategy.axes.items() if n > 1} or {"x": 1})


# -- words -----------------------------------------------------------------------------------------
def caption(story: GridStory, number: int) -> str:
    """One frame in words."""
    return blocks.caption(story, number)


def words(story: GridStory, number: int) -> str:
    """The line of a frame, what it means, and what goes on meanwhile."""
    frame = story.frames[number]
    parts = [f"{blocks.sentence(frame)}.", frame.words, *in_flight(frame)]
    return " ".join(parts)


def in_flight(frame: "Frame") -> list[str]:
    """What is on its way over z during a frame, a line for each kind."""
    ahead = [f for f in frame.in_flight if f.collective == "all_gather"]
    leaving = [f.layer for f in frame.in_flight if f.collective == "reduce_scatter"]
    return [f"Sent for ahead: {f.name}." for f in ahead] + (
        [f"Not waited for yet: dW of {', '.join(leaving)}."] if leaving else []
    )


def reached(story: GridStory) -> "list[Case]":
    """The cases that the grid is."""
    return [case for case, yes in story.cases if yes]


def facts(story: GridStory) -> list[list[str]]:
    """(label, text) pairs for the line above the picture."""
    s, total = story.strategy, blocks.running(story)[-1]
    sends = ", ".join(f"{amount(n)} over {axis}" for axis, n in total.items() if n) or "nothing"
    pairs = [["grid", ", ".join(f"{a} = {n}" for a, n in grid(s).items())]]
    pairs.append(["a rank sends, in a block", sends])
    if s.accumulation > 1:
        words = f"{s.accumulation}, the last is shown, each sends as much before the end"
        pairs.append(["microbatches", words])
    return pairs


def grid(strategy: "AxoNN") -> dict[str, int]:
    """{axis: ranks} as the paper writes them: x, y, z, data."""
    return {axis: strategy.axes[axis] for axis in ("x", "y", "z", "data")}


def to_table(story: GridStory) -> list[list[str]]:
    """Rows of strings, header first: one frame each."""
    flights = ["under way", *(" ".join(in_flight(frame)) for frame in story.frames)]
    return [[*row, words] for row, words in zip(blocks.to_table(story), flights)]


def describe(story: GridStory, rank: int, number: int) -> str:
    """The block, the known schemes that the grid is, and one frame, in words."""
    w, s, total = story.workload, story.strategy, blocks.running(story)[-1]
    where = ", ".join(f"{axis} {i}" for axis, i in story.mesh.coords(rank).items())
    sends = " and ".join(f"{amount(n)} over {axis}" for axis, n in total.items() if n) or "nothing"
    names = " and ".join(case.name for case in reached(story))
    known = f"As a known scheme: {names}. " if names else ""
    part = f", in microbatches of {w.batch // s.accumulation}" if s.accumulation > 1 else ""
    return (
        f"One block of {story.title}, {w.batch} x {w.seq} tokens{part}, hidden size {w.hidden},"
        f" in {len(story.frames)} steps. {known}A rank sends {sends} on rings. Rank {rank} is "
        f"at {where}. Shown: {caption(story, number)}. {words(story, number)}"
    )


TOP = 47  # everything that the view of blocks has stands this much lower, for the cases
CUBE, ROOM, HOLDS, NUMBERS = (16, 501), (470, 240), 500, 722
LAYERS = ("qkv", "out", "up", "down")
SCALE = 0.3


def pictures(story: GridStory, rank: int) -> dict[str, Any]:
    """{"width", "height", "common", "frames"}: what all frames share, and each of them, as SVG."""
    keys = axis_keys(story.strategy.axes)
    eyes = Eyes(story.mesh, rank, keys)
    place = Cube(eyes, grid(story.strategy), *CUBE, ROOM)
    totals = blocks.running(story)
    bottom = max(place.bottom, CUBE[1] + 226) + 8
    ticks, places = strip(story, keys)
    states = _States(weights_of(story.frames), eyes)
    shown = {}  # forward comes twice where it is recomputed
    for frame in story.frames:
        if frame.tensors not in shown:
            shown[frame.tensors] = matrices(frame, eyes, 1.0), holdings(frame, place)
    lower = f"<g transform='translate(0 {TOP})'>"
    frames = [
        lower
        + now(story, number, *places[number])
        + drawn_sentence(frame, keys)
        + shown[frame.tensors][0]
        + "</g>"
        + moment(frame, place, eyes)
        + shown[frame.tensors][1]
        + _weights(frame, states)
        + panel(story, number, eyes, totals, NUMBERS, CUBE[1] - 20, 70)
        for number, frame in enumerate(story.frames)
    ]
    common = f"{pattern_defs()}<defs>{HATCH}</defs>{_cases(story)}{lower}{ticks}</g>"
    common += cube(place, eyes) + _legend(story, eyes, bottom)
    return {"width": WIDTH, "height": round(bottom + 46), "frames": frames, "common": common}


# -- known schemes ---------------------------------------------------------------------------------
def _cases(story):
    """A chip for every known scheme, those that the grid is lit, and what the lit ones are."""
    out, x = text(12, 53, "this grid is", size=11), 78.0
    for case, lit in story.cases:
        words = f"✓ {case.name}" if lit else case.name
        width = 6.1 * len(words) + 12
        about = f"<title>{case.what} Known from: {', '.join(case.source)}.</title>"
        face, token = outline(x, 40, width, 19, "rule", rx=9.5), "muted"
        if lit:
            face, token = rect(x, 40, width, 19, "fg", "rx='9.5'"), "bg"
        out += (
            f"<g data-case='{case.name}' data-lit='{str(lit).lower()}'>{about}{face}"
            f"{text(x + width / 2, 53.5, words, token, 11, 'middle')}</g>"
        )
        x += width + 5
    what = [f"{case.name}: {case.what} ({', '.join(case.source)})" for case in reached(story)]
    words = "  ".join(what or ["none of these alone"])
    return out + lines(12, 75, wrapped(words, 175), 14, "muted")


# -- the chosen rank's weights ---------------------------------------------------------------------
def weights_of(frames: "Iterable[Frame]") -> "dict[str, Tensor]":
    """{layer: W} as the GEMMs of forward have it."""
    return {f.layer: f.product[1] for f in frames if f.phase == "forward" and len(f.product) == 3}


class _States:
    """Small pictures of the chosen rank's weights, each made once."""

    def __init__(self, weights, eyes):
        self.weights, self.eyes, self.made = weights, eyes, {}
        self.key = eyes.keys["z"]

    def draw(self, layer, x, y, state, kind, moving):
        """The rank's block, filled as far as it holds it, dashed what is on its way; the middle of
        its left side at (x, y)."""
        looks = layer, state, kind, moving
        if looks not in self.made:
            self.made[looks] = self._draw(self.weights[layer], *looks[1:])
        return f"<g transform='translate({x:.1f} {y:.1f})'>{self.made[looks]}</g>"

    def _draw(self, tensor, state, kind, moving):
        width, height = self.size(tensor)
        top = 0, -height / 2
        out = outline(*top, width, height, "muted", 0.8)
        block = own(tensor, *top, self.eyes, SCALE)
        cut = "z" in self.eyes.mesh.axes
        piece = own(tensor.cut("z", "cols"), *top, self.eyes, SCALE) if cut else block
        if state:
            out += rect(*(block if state == "block" else piece), kind)
        if moving:
            return out + outline(*block, f"{self.key} tpv-flow", 2.4, 0, "stroke-dasharray='9 5'")
        return out + outline(*block)

    def size(self, tensor):
        return tuple(SCALE * side for side in size(tensor))


def _weights(frame, states):
    """What the chosen rank holds of each weight and of its gradient, and what is on its way."""
    x, y = HOLDS, CUBE[1] - 20
    out = text(x, y, f"weights of rank {states.eyes.rank}", size=12, weight=700)
    out += text(x, y + 54, "W", size=11, weight=600) + text(x, y + 112, "dW", size=11, weight=600)
    ahead = [f for f in frame.in_flight if f.collective == "all_gather" and f.block == 0]
    coming = {layer for flight in ahead for layer in flight.layers}
    x += 24
    for layer in LAYERS:
        width, _ = states.size(states.weights[layer])
        state = frame.gradients[layer]
        out += text(x + width / 2, y + 20, layer, "muted", 10, "middle")
        out += states.draw(layer, x, y + 50, frame.weights[layer], "parameters", layer in coming)
        out += states.draw(layer, x, y + 108, state, "gradients", state == "leaving")
        x += max(width, 26) + 12
    words = [part for line in in_flight(frame) for part in wrapped(line, 34)]
    return out + lines(HOLDS, y + 158, words, 14, states.key)


def _legend(story, eyes, y):
    """What colours, hatching and letters mean."""
    items = [*LEGEND, ("pale", f"pale: not on rank {eyes.rank}")]
    items.append(("partial", "hatched: a term of a sum"))
    out, _ = legend(items, 12.0, y, WIDTH, LOOK)
    x = 12.0 + sum(34 + LOOK.letter * len(words) for _, words in items)
    low = "<tspan dy='3' font-size='80%' font-weight='700' class='f-{}'>{}</tspan><tspan dy='-3'>"
    over_z, over_x = (low.format(eyes.keys[axis], axis) for axis in "zx")
    out += (
        f"<text x='{x:.1f}' y='{y + 10:.1f}' class='f-fg' font-size='11'>A[I{over_z}, J</tspan>"
        f"{over_x}]: rows of A cut over z, columns over x</tspan></text>"
    )
    names = ",".join(eyes.mesh.names)
    micro = " of a microbatch" if story.strategy.accumulation > 1 else ""
    tail = (
        f"{names}: coordinates of who holds a block, * for every rank along an axis.  T = b s "
        f"tokens{micro} (b batch, s sequence), H = h hidden size.  Not to scale."
    )
    return out + text(12, y + 28, tail, "muted")
