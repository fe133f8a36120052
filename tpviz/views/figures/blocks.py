"""A transformer block's animation -> scene: every frame as a finished picture, with its numbers.

The animation (`tpviz.views.films.blocks`) has the tensors, their sharding, and the kernels and
collectives of each frame. Bytes and FLOPs are counted from those, for one rank, since all ranks
have the same. There are no times here.
"""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.core.trace.ledger import wire_bytes

from .blocks_matrix import CellGrid, Eyes, matrices, notation, plain, ranks
from .legend import Look, Mark, legend
from .svg import (
    FILM,
    LINE,
    VIEW,
    alone,
    amount,
    check_step,
    clickable,
    outline,
    pattern_defs,
    rect,
    swatch,
    text,
)
from .tokens import INKS

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.axonn.strategy import AxoNN
    from tpviz.views.films.captions import Frame, Tensor
    from tpviz.views.films.grid_cases import GridCase


MAX_RANKS = 16
BADGE = "counted, not run"
NAMED = {"T": "bs", "n": "n"}
"""Letters of a dim that is no multiple of the hidden size -> what it is in a payload."""


class Story(NamedTuple):
    """The content of the picture: title, mesh, workload and frames; of a grid also the strategy,
    and (case, is it reached?) pairs."""

    title: str
    mesh: Mesh
    workload: "GPT"
    frames: "tuple[Frame, ...]"
    strategy: "AxoNN | None" = None
    cases: "tuple[tuple[GridCase, bool], ...]" = ()

    @property
    def reached(self) -> "list[GridCase]":
        """The known schemes that the grid equals."""
        return [case for case, yes in self.cases if yes]

    @property
    def sends(self) -> list[str]:
        """Bytes that a rank sends per block and axis; on a grid, of the axes that send."""
        total = running(self)[-1].items()
        return [f"{amount(n)} over {axis}" for axis, n in total if n or not self.cases]


def blocks_scene(story: Story, rank: int = 0) -> dict[str, Any]:
    """The scene of a `Story`, ready for JSON: ``title``, ``badge``, ``width``, ``height``,
    ``style``, ``common`` and ``frames`` (SVG), ``captions``, ``words``, ``says`` (of each frame,
    its explanation alone), ``numbers`` (of each frame, [label, value]), ``facts``, ``rank``.

    Raises ValueError for a rank that does not exist, and above 16 ranks.
    """
    check(story.mesh, rank)
    return scene_of(story, rank, facts(story), pictures(story, rank))


def scene_of(
    story: Story, rank: int, facts: list[list[str]], drawn: dict[str, Any]
) -> dict[str, Any]:
    """The scene of a `Story`. drawn : what `pictures` gives."""
    name = story.title.partition("(")[0]
    return {
        "title": f"{name}: one block on {' x '.join(map(str, story.mesh.shape))} ranks",
        "about": story.title,
        "badge": BADGE,
        "rank": rank,
        "captions": [caption(story, i) for i in range(len(story.frames))],
        "words": [words(frame) for frame in story.frames],
        "says": [" ".join([frame.words, *in_flight(frame)]) for frame in story.frames],
        "numbers": [numbers(story, frame) for frame in story.frames],
        "facts": facts,
        "opens": opening(story),
        "top": 0,
        **drawn,
    }


def opening(story: Story) -> int:
    """The frame at which a page opens: the first that multiplies by a weight in shards."""
    cut = (
        i
        for i, frame in enumerate(story.frames)
        if any(t.kind == "parameters" and t.axes for t in frame.product)
    )
    return next(cut, 0)


def check(mesh: Mesh, rank: int) -> None:
    """Raise ``ValueError`` if the picture would not be legible or the rank does not exist."""
    if mesh.size > MAX_RANKS:
        raise ValueError(
            f"mesh {' x '.join(map(str, mesh.shape))} has {mesh.size} ranks: this "
            f"view shows at most {MAX_RANKS}"
        )
    mesh.coords(rank)


# -- numbers ---------------------------------------------------------------------------------------
def sent(story: Story, number: int) -> dict[str, float]:
    """{axis: bytes a rank has sent on a ring} in one frame."""
    totals: dict[str, float] = dict.fromkeys(story.mesh.names, 0)
    for move in story.frames[number].moves:
        totals[move.axis] += wire_bytes(move.collective, move.payload, story.mesh.axes[move.axis])
    return totals


def running(story: Story) -> list[dict[str, float]]:
    """[{axis: bytes sent so far}] after every frame; the last one is the ledger of a block."""
    series, totals = [], dict.fromkeys(story.mesh.names, 0)
    for number in range(len(story.frames)):
        totals = {axis: totals[axis] + more for axis, more in sent(story, number).items()}
        series.append(totals)
    return series


def work(frame: "Frame") -> tuple[int, ...]:
    """(FLOPs, bytes) of a rank's kernels in a frame."""
    return tuple(sum(kernel[i] for kernel in frame.kernels) for i in (0, 1))


def payload_of(frame: "Frame") -> "Tensor":
    """The tensor whose size is a collective's payload: an all-gather's result, else its input."""
    assert frame.move is not None
    return frame.moving[frame.move.collective == "all_gather"]


def symbols(frame: "Frame") -> str:
    """ "3bsh/d1", "4h²/(x y)": the payload of the frame's collective, in sizes of the workload."""
    tensor = payload_of(frame)
    letters = [dim.letters for dim in (tensor.rows, tensor.cols)]
    count = prod(float(name.rstrip("H") or 1) for name in letters if name not in NAMED)
    names = [NAMED.get(name, "h" * name.endswith("H")) for name in letters]
    factor = f"{count:g}" * (count != 1) + "".join(sorted(names)).replace("hh", "h²")
    under = [*(str(n) for n in frame.moved_chunk[1:2]), *tensor.axes]
    below = under[0] if len(under) == 1 else f"({' '.join(under)})"
    return f"{factor}/{below}" if under else factor


def elements(story: Story, frame: "Frame") -> int:
    """Numbers in the payload of the frame's collective, from the layout of its tensor."""
    count = frame.moved_chunk[1] if frame.moved_chunk else 1
    return prod(payload_of(frame).local(story.mesh.axes)) // count


# -- words -----------------------------------------------------------------------------------------
def does(frame: "Frame") -> str:
    """A frame in a few words."""
    done = []
    if frame.product:
        verb = "attention for" if frame.layer == "core" else "multiply for"
        done.append(f"{verb} {frame.product[-1].name}" + of_chunk(frame.chunk))
    if frame.move:
        name, what = frame.move.collective.replace("_", "-"), frame.moving[0].name
        what += of_chunk(frame.moved_chunk)
        if frame.product and frame.moved_chunk:
            what = f"chunk {frame.moved_chunk[0] + 1}"
        done.append(f"{name} of {what} over {frame.move.axis}")
    return " while ".join(done)


def of_chunk(chunk: tuple[int, ...]) -> str:
    """ " (chunk 2 of 4)", or nothing."""
    return f" (chunk {chunk[0] + 1} of {chunk[1]})" if chunk else ""


def caption(story: Story, number: int) -> str:
    """One frame in words."""
    frame = story.frames[number]
    return f"step {number + 1} of {len(story.frames)}, {frame.phase}, {frame.layer}: {does(frame)}"


def sentence(frame: "Frame") -> str:
    """The layer's whole line as text."""
    return " ".join(part if isinstance(part, str) else plain(part) for part in frame.line)


def words(frame: "Frame") -> str:
    """The line of a frame, its explanation, and the collectives in flight meanwhile."""
    return " ".join([f"{sentence(frame)}.", frame.words, *in_flight(frame)])


def in_flight(frame: "Frame") -> list[str]:
    """Collectives in flight over z during a frame, a line for each kind."""
    ahead = [f for f in frame.in_flight if f.collective == "all_gather"]
    leaving = [f.layer for f in frame.in_flight if f.collective == "reduce_scatter"]
    waits = [f"Not waited for yet: dW of {', '.join(leaving)}."] if leaving else []
    return [f"Prefetched: {f.name}." for f in ahead] + waits


def facts(story: Story) -> list[list[str]]:
    """(label, text) pairs for the line above the picture."""
    mesh = " x ".join(f"{a} {n}" for a, n in story.mesh.axes.items())
    return [["mesh", mesh], ["sent per rank and block", ", ".join(story.sends)]]


def to_table(story: Story) -> list[list[str]]:
    """Rows of strings, header first: one frame each."""
    names = [f"sent over {axis}" for axis in story.mesh.names]
    table = [["step", "phase", "layer", "line", "FLOPs", "bytes", "collective", "payload", *names]]
    for number, frame in enumerate(story.frames):
        move, row = frame.move, [str(number + 1), frame.phase, frame.layer, sentence(frame)]
        row += [f"{count:,}" for count in work(frame)]
        row += [f"{move.collective} over {move.axis}", symbols(frame)] if move else ["", ""]
        table.append([*row, *(f"{count:,.6g}" for count in sent(story, number).values())])
    return table


def describe(story: Story, rank: int, number: int) -> str:
    """The block, the known schemes that the grid equals, and one frame, in words."""
    w, s = story.workload, story.strategy
    where = ", ".join(f"{axis} {i}" for axis, i in story.mesh.coords(rank).items())
    names = " and ".join(case.name for case in story.reached)
    known = f"As a known scheme: {names}. " if names else ""
    micro = f", in microbatches of {w.batch // s.accumulation}" if s and s.accumulation > 1 else ""
    return (
        f"One block of {story.title}, {w.batch} x {w.seq} tokens{micro}, hidden size {w.hidden}, "
        f"in {len(story.frames)} steps. {known}On rings a rank sends "
        f"{' and '.join(story.sends) or 'nothing'}. Rank {rank} is at {where}. Shown: "
        f"{caption(story, number)}. {words(story.frames[number])}"
    )


STRIP, FORMULA = 30, 86
GRID, PANEL = (78, 396), 470
SHORT = {"norm1": "LN1", "norm2": "LN2"}
ONE_LINE = 88  # letters of a layer's line that fit
APART = 14  # px between the phases of the strip
PHASES = {
    "forward": "forward →",
    "backward": "backward, last layer first →",
    "recompute": "recomputed forward →",
    "sync": "end",
}
LEGEND: list[tuple[Mark, str]] = [
    (
        lambda x, y, key=key, sign=sign: (
            rect(x, y, 14, 12, key)
            + text(x + 7, y + 10, sign, f"on-{key}", anchor="middle", weight=700)
        ),
        words,
    )
    for key, sign, words in (
        ("parameters", "W", "weights"),
        ("activations", "X", "activations"),
        ("gradients", "d", "gradients, dX"),
    )
]
"""Each with the letter that tensors of its kind have: colour is not alone."""
LOOK = Look(14, 12, 5, 7.2, 15, 10)


def pictures(story: Story, rank: int) -> dict[str, Any]:
    """{"width", "height", "common", "frames"}: what all frames share, and each of them, as SVG."""
    keys = axis_keys(story.mesh.names)
    eyes = Eyes(story.mesh, rank, keys)
    grid = CellGrid(story.mesh, *GRID)
    totals = running(story)
    bottom = max(grid.bottom, GRID[1] + 160) + 14
    ticks, places = strip(story, keys)
    marks, bottom = explained(story, eyes, bottom)
    frames = [
        now(*places[number])
        + formula(frame, keys)
        + matrices(frame, eyes)
        + ranks(frame, grid, eyes)
        + panel(number, eyes, totals)
        for number, frame in enumerate(story.frames)
    ]
    return {
        "width": FILM,
        "height": round(bottom + 18),
        "frames": frames,
        "common": pattern_defs() + ticks + marks,
        "notes": [
            f"{_letters_of(eyes.mesh.names)}  T = b s tokens (b batch, s sequence), {HIDDEN}"
        ],
    }


def blocks_svg(scene: dict[str, Any], step: int = 0, theme: str = "auto") -> str:
    """One frame as a whole SVG; theme "light", "dark" or "auto".

    Raises ValueError for a step that does not exist.
    """
    check_step(scene, step)
    said = f"{scene['captions'][step]}.\n{scene['says'][step]}"
    counted = "; ".join(" ".join(pair) for pair in scene["numbers"][step])
    body, label = scene["common"] + scene["frames"][step], scene["captions"][step]
    return alone(scene, f"{said}\n{counted}", body, theme, f"{scene['title']}, {label}")


# -- the way through the block ---------------------------------------------------------------------
def strip(story: Story, keys: dict[str, str]) -> tuple[str, list[tuple[float, float]]]:
    """(a tick for each frame, forward then backward, with the layers under them; their places)."""
    frames = story.frames
    apart = APART * (len({f.phase for f in frames}) - 1)
    wide = min(30.0, (VIEW - 24 - apart) / len(frames))
    out, places, x = [], [], 12.0
    for i, frame in enumerate(frames):
        last = frames[i - 1] if i else None
        if not last or last.phase != frame.phase:
            x += APART if last else 0
            out.append(text(x, STRIP - 14, PHASES[frame.phase], weight=700))
        if not last or last[:2] != frame[:2]:
            run = next((k for k, f in enumerate(frames[i:]) if f[:2] != frame[:2]), len(frames) - i)
            name = SHORT.get(frame.layer, frame.layer)
            if 7.6 * len(name) + 5 <= run * wide:
                out.append(text(x + 2, STRIP + 32, name, "muted"))
            out.append(f"<path d='M{x:.1f},{STRIP - 2}v33' class='s-muted'/>")
        out.append(_tick(i, frame, x, wide, keys))
        places.append((x, wide))
        x += wide
    return "".join(out), places


def _tick(i, frame, x, wide, keys):
    """Compute above, communication below."""
    kinds = [frame.phase] * bool(frame.product) + [keys[m.axis] for m in frame.moves[:1]]
    high = 18 / len(kinds)
    out = ""
    for k, key in enumerate(kinds):
        out += swatch(x + 1.5, STRIP + k * high, wide - 3, high, key)
    return clickable(f"step='{i}'", out, f"step {i + 1}, {frame.layer}: {does(frame)}")


def now(x: float, wide: float) -> str:
    """A border and a pointer at the tick of the frame shown."""
    out = outline(x, STRIP - 2, wide, 22, "fg", 2.6, 2)
    return out + f"<path d='M{x + wide / 2:.1f},{STRIP - 3}l-5,-8h10z' class='f-fg'/>"


# -- the formula -----------------------------------------------------------------------------------
def formula(frame: "Frame", keys: dict[str, str]) -> str:
    """The layer's line with this frame's part of it in bold, in two lines where it is long."""
    spans, (first, last), down = [], frame.active, 0
    for i, part in enumerate(frame.line):
        if len(sentence(frame)) > ONE_LINE and str(part).startswith("→ ") and not down:
            down = LINE
            spans.append(f"</text><text x='12' y='{FORMULA + down}' font-size='13'>")
        words = part if isinstance(part, str) else notation(part, keys)
        here = first <= i < last
        token, weight = ("fg", 700) if here else ("muted", 400)
        spans.append(f"<tspan class='f-{token}' font-weight='{weight}'>{words}</tspan>")
    out = f"<text x='12' y='{FORMULA}' font-size='13' xml:space='preserve'>"
    return f"{out}{' '.join(spans)}</text>"


# -- numbers ---------------------------------------------------------------------------------------
def numbers(story: Story, frame: "Frame") -> list[list[str]]:
    """(label, text) pairs of a frame, of every rank: its FLOPs, or the bytes that its kernels read
    and write where it has no collective; its payload; what a ring sends of it."""
    rows = []
    if frame.kernels:
        flops, moved = work(frame)
        rows.append(["compute", amount(flops, "FLOP")])
        if not frame.move:
            rows.append(["memory", f"{amount(moved)} read and written"])
    return rows + (_payload(story, frame) if frame.move else [])


def _payload(story, frame):
    move, count = frame.move, len(frame.moves)
    many = elements(story, frame)
    factor = "2(n-1)/n" if move.collective == "all_reduce" else "(n-1)/n"
    each = f" (one of {count})" if count > 1 else ""
    ring = "all of them send" if count > 1 else f"a ring sends {factor}"
    total = sum(sent(story, story.frames.index(frame)).values())
    payload = f"{move.payload:,} bytes" if move.payload < 1e7 else amount(move.payload)
    product = f"{many:,} x {move.payload // many} bytes"
    return [
        [f"payload{each}", f"{symbols(frame)} numbers = {product} = {payload}"],
        [ring, f"{amount(total)}, n = {story.mesh.axes[move.axis]}"],
    ]


def panel(
    number: int,
    eyes: Eyes,
    totals: list[dict[str, float]],
    x: float = PANEL,
    y: float = GRID[1] - 14,
    width: float = 90,
) -> str:
    """The running total of every axis, after a frame. x, y : of the first line; width : of bars."""
    out = text(x, y, "sent so far, of the block's total", weight=650)
    for axis, total in totals[-1].items():
        y += 26
        out += _bar(axis, totals[number][axis], total, x, y, eyes.keys[axis], width)
    return out


def _bar(axis, so_far, total, x, y, key, width):
    left = x + max(26, 9 * len(axis))
    out = text(x, y, axis, key, weight=700)
    out += outline(left, y - 10, width, 12, "muted", rx=2)
    if total:
        out += rect(left, y - 10, width * so_far / total, 12, key, "rx='2'")
    words = f"{amount(so_far)} of {amount(total)}" if total else "nothing"
    return out + text(left + 8 + width, y, words)


HIDDEN = "H = h hidden size. Not to scale."


def _letters_of(names):
    """What the letters on blocks say."""
    if len(names) == 1:
        return f"1: on the rank at {names[0]} 1;  *: on all ranks."
    return f"0,1: on the rank at {names[0]} 0, {names[-1]} 1;  *: on every rank along that axis."


def explained(story: Story, eyes: Eyes, y: float) -> tuple[str, float]:
    """(the legend of the strip and that of the matrices; y of its last line). y : where it
    begins."""
    phases = dict.fromkeys(f.phase for f in story.frames if f.product)
    used = {move.axis for frame in story.frames for move in frame.moves}
    inks = {key: INKS[key].label for key in phases}
    inks |= {key: f"communication {axis}" for axis, key in eyes.keys.items() if axis in used}
    steps: list[tuple[Mark, str]] = [*inks.items()]
    both = next((frame for frame in story.frames if frame.product and frame.moves), None)
    if both:
        keys = both.phase, eyes.keys[both.moves[0].axis]
        halves = lambda x, y: "".join(
            swatch(x, y + 5.5 * i, 14, 5.5, k) for i, k in enumerate(keys)
        )
        steps.append((halves, "overlapped: compute above, communication below"))
    out, y = legend(steps, 12.0, y, VIEW, LOOK)
    marks = [*LEGEND, ("pale", f"faint: not on rank {eyes.rank}")]
    marks.append(("partial", "sheets: a partial sum, the other ranks' behind it"))
    more, y = legend(marks, 12.0, y + 20, VIEW, LOOK)
    return out + more, y
