"""A transformer block's animation -> scene: every frame as a finished picture, with its numbers.

The animation (`tpviz.views.films.blocks`) has the tensors, their sharding, and the kernels and
collectives of each frame. Bytes and FLOPs are counted from those, for one rank, since all ranks
have the same. There are no times here.
"""

from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.core.trace.ledger import wire_bytes
from tpviz.core.workload import GPT
from tpviz.views.films.captions import Frame, Tensor

from .blocks_matrix import Eyes, matrices, plain
from .grid import Cube, cube, holdings, moment
from .legend import Mark, legend
from .svg import FILM, amount, clickable, outline, pattern_defs, rect, so_far, text, width_of
from .tokens import INKS

if TYPE_CHECKING:
    from tpviz.schemes.axonn.strategy import AxoNN
    from tpviz.views.films.grid_cases import GridCase


MAX_RANKS = 16
BADGE = "counted, not run"
NAMED = {"T": "bs", "n": "n"}
"""Letters of a dim that is no multiple of the hidden size -> what it is in a payload."""


class Story(NamedTuple):
    """The content of the picture: title, mesh, workload and frames; of a grid also the strategy,
    and the known schemes that it is."""

    title: str
    mesh: Mesh
    workload: GPT
    frames: tuple[Frame, ...]
    strategy: "AxoNN | None" = None
    cases: "tuple[GridCase, ...]" = ()

    @property
    def sends(self) -> list[str]:
        """Bytes that a rank sends per block and axis; on a grid, of the axes that send."""
        total = running(self)[-1].items()
        return [f"{amount(n)} over {axis}" for axis, n in total if n or not self.strategy]


def blocks_scene(story: Story, rank: int = 0) -> dict[str, Any]:
    """The scene of a `Story`, ready for JSON: ``title``, ``badge``, ``width``, ``height``,
    ``style``, ``common`` and ``frames`` (SVG), ``captions``, ``words``, ``says`` (of each frame,
    its explanation alone), ``numbers`` (of each frame, [label, value]), ``rank``.

    Raises ValueError for a rank that does not exist, and above 16 ranks.
    """
    check(story.mesh, rank)
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
        "opens": opening(story),
        "top": 0,
        **pictures(story, rank),
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


def work(frame: Frame) -> tuple[int, int]:
    """(FLOPs, bytes) of a rank's kernels in a frame."""
    kernels = frame.kernels
    return sum(kernel.flops for kernel in kernels), sum(kernel.bytes for kernel in kernels)


def payload_of(frame: Frame) -> Tensor:
    """The tensor whose size is a collective's payload: an all-gather's result, else its input."""
    assert frame.move is not None
    return frame.moving[frame.move.collective == "all_gather"]


def symbols(frame: Frame) -> str:
    """ "3bsh/d1", "4h²/(x y)": the payload of the frame's collective, in sizes of the workload."""
    tensor = payload_of(frame)
    letters = [dim.letters for dim in (tensor.rows, tensor.cols)]
    count = prod(float(name.rstrip("H") or 1) for name in letters if name not in NAMED)
    names = [NAMED.get(name, "h" * name.endswith("H")) for name in letters]
    factor = f"{count:g}" * (count != 1) + "".join(sorted(names)).replace("hh", "h²")
    under = [*(str(n) for n in frame.moved_chunk[1:2]), *tensor.axes]
    below = under[0] if len(under) == 1 else f"({' '.join(under)})"
    return f"{factor}/{below}" if under else factor


# -- words -----------------------------------------------------------------------------------------
def does(frame: Frame) -> str:
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


def sentence(frame: Frame) -> str:
    """The layer's whole line as text."""
    return " ".join(part if isinstance(part, str) else plain(part) for part in frame.line)


def words(frame: Frame) -> str:
    """The line of a frame, its explanation, and the collectives in flight meanwhile."""
    return " ".join([f"{sentence(frame)}.", frame.words, *in_flight(frame)])


def in_flight(frame: Frame) -> list[str]:
    """Collectives in flight over z during a frame, a line for each kind."""
    ahead = [f for f in frame.in_flight if f.collective == "all_gather"]
    leaving = [f.layer for f in frame.in_flight if f.collective == "reduce_scatter"]
    waits = [f"Not waited for yet: dW of {', '.join(leaving)}."] if leaving else []
    return [f"Prefetched: {f.name.replace('W of', 'the weights of')}." for f in ahead] + waits


def to_table(story: Story) -> list[list[str]]:
    """Rows of strings, header first: one frame each."""
    names = [f"sent over {axis}" for axis in story.mesh.names]
    table = [["step", "phase", "layer", "line", "FLOPs", "bytes", "collective", "payload", *names]]
    table[0] += ["in flight"] * bool(story.strategy)
    for number, frame in enumerate(story.frames):
        move, row = frame.move, [str(number + 1), frame.phase, frame.layer, sentence(frame)]
        row += [f"{count:,}" for count in work(frame)]
        row += [f"{move.collective} over {move.axis}", symbols(frame)] if move else ["", ""]
        row += [f"{count:,.6g}" for count in sent(story, number).values()]
        table.append([*row, " ".join(in_flight(frame))] if story.strategy else row)
    return table


def describe(story: Story, rank: int) -> str:
    """The block, and the known schemes that the grid equals, in words."""
    w, s = story.workload, story.strategy
    where = ", ".join(f"{axis} {i}" for axis, i in story.mesh.coords(rank).items())
    names = " and ".join(case.name for case in story.cases)
    known = f"As a known scheme: {names}. " if names else ""
    micro = f", in microbatches of {w.batch // s.accumulation}" if s and s.accumulation > 1 else ""
    return (
        f"One block of {story.title}, {w.batch} x {w.seq} tokens{micro}, hidden size {w.hidden}, "
        f"in {len(story.frames)} steps. {known}On rings a rank sends "
        f"{' and '.join(story.sends) or 'nothing'}. Rank {rank} is at {where}."
    )


SCRUB, SEGMENT, CELLS, PANEL = 8, 22, (16, 384), 500
GRID = "x", "y", "z", "data"
"""The axes of AxoNN's grid, as they stand in a `Cube`."""
LAYERS = {
    "norm1": ("LN1", "first norm"),
    "qkv": ("qkv", "queries, keys and values"),
    "core": ("core", "attention"),
    "out": ("out", "output of attention"),
    "norm2": ("LN2", "second norm"),
    "up": ("up", "first layer of the MLP"),
    "down": ("down", "second layer of the MLP"),
}
"""{layer: its name in a cell of the scrubber, and where one points at that}."""
APART = 14  # px between the phases of the scrubber
PHASES = {"forward": "forward", "backward": "backward", "recompute": "again", "sync": "end"}
MARKED: list[tuple[Mark, str]] = [
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
        ("gradients", "d", "gradients"),
    )
]
"""Each with the letter that tensors of its kind have: colour is not alone."""


def pictures(story: Story, rank: int) -> dict[str, Any]:
    """{"width", "height", "common", "frames"}: what all frames share, and each of them, as SVG."""
    s = story.strategy
    eyes = Eyes(story.mesh, rank, axis_keys(s.axes if s else story.mesh.names))
    place = Cube(eyes, GRID if s else story.mesh.names[::-1], *CELLS)
    totals = running(story)
    track, places = scrubber(story)
    shown = {}  # forward comes twice where it is recomputed
    for frame in story.frames:
        if frame.tensors not in shown:
            shown[frame.tensors] = matrices(frame, eyes), holdings(frame, place)
    frames = [
        here(frame, places[number])
        + shown[frame.tensors][0]
        + moment(frame, place, eyes)
        + shown[frame.tensors][1]
        + panel(number, eyes, totals)
        for number, frame in enumerate(story.frames)
    ]
    marks, bottom = explained(eyes, max(place.bottom, CELLS[1] + 26 * len(totals[-1])) + 8)
    micro = " of a microbatch" * bool(s and s.accumulation > 1)
    cuts = ["A[I_z, J_x]: rows of A cut over z, columns over x."] * bool(s)
    return {
        "width": FILM,
        "height": round(bottom + 18),
        "frames": frames,
        "common": f"{pattern_defs()}{track}{cube(place, eyes)}{marks}",
        "notes": [f"The same cut as {case.name.removeprefix('like ')}" for case in story.cases],
        "help": [
            f"{OWNERS} T = b s tokens{micro} (b batch, s sequence), {HIDDEN}",
            *cuts,
            *(f"{case.what} Known from: {', '.join(case.source)}." for case in story.cases),
        ],
    }


# -- the way through the block ---------------------------------------------------------------------
def scrubber(story: Story) -> tuple[str, list[tuple[float | str, ...]]]:
    """(the way through the block: for each phase a cell for each layer, with room for its name if
    all names have it, which leads to its first frame; of each frame the px of its cell, left and
    width, wide enough for its name, that name if the cell does not have it, and the px of its own
    part)."""
    runs = [list(run) for _, run in groupby(enumerate(story.frames), lambda at: at[1][:2])]
    phases = [(p, list(those)) for p, those in groupby(runs, lambda run: run[0][1].phase)]
    names = [LAYERS.get(run[0][1].layer, (run[0][1].layer,))[0] for run in runs]
    labels = sum(width_of(PHASES[phase]) + 8 for phase, _ in phases)
    room, count = FILM - 24 - labels - APART * (len(phases) - 1), len(story.frames)
    needs = [width_of(name) + 6 for name in names]
    needs = needs if sum(needs) <= room else [0] * len(needs)
    cells = zip(names, (n + (room - sum(needs)) * len(run) / count for n, run in zip(needs, runs)))
    out, places, x = "", [], 12.0
    for phase, those in phases:
        drawn, x = text(x, SCRUB + 15, PHASES[phase], "muted"), x + width_of(PHASES[phase]) + 8
        begin = x
        for run, (name, wide) in zip(those, cells):
            first, layer = run[0][0], run[0][1].layer
            cell = rect(x, SCRUB, wide - 2, SEGMENT, "rule", "rx='4'")
            if width_of(name) + 4 <= wide:
                cell += text(x + wide / 2 - 1, SCRUB + 15.5, name, anchor="middle")
            tip = f"{phase}, {LAYERS.get(layer, (0, layer))[1]}: from step {first + 1}"
            drawn += clickable(f"step='{first}' role='img'", cell, tip)
            part, named = (wide - 2) / len(run), width_of(name) + 4 <= wide
            face = wide - 2 if named else max(wide - 2, width_of(name) + 10)
            left = min(max(x - (face - wide + 2) / 2, begin), FILM - 12 - face)
            said = "" if named else name
            places += [(left, face, said, x + part * i, part) for i in range(len(run))]
            x += wide
        out, x = out + f"<g role='group' aria-label='{phase}'>{drawn}</g>", x + APART
    return out, places


def here(frame: Frame, place: tuple[Any, ...]) -> str:
    """A frame around the segment of the one shown, in the colour of its phase, with its name, and a
    line under its part. place : as of `scrubber`."""
    left, width, name, start, part = place
    key = frame.phase if frame.phase in INKS else "fg"
    return (
        (rect(left, SCRUB, width, SEGMENT, "bg", "rx='4'") if name else "")
        + outline(left, SCRUB, width, SEGMENT, key, 3, 4)
        + rect(left, SCRUB, width, SEGMENT, key, "rx='4' fill-opacity='.16'")
        + text(left + width / 2, SCRUB + 15.5, name, anchor="middle")
        + rect(start, SCRUB + SEGMENT + 3, part, 4, key, "rx='2'")
    )


# -- numbers ---------------------------------------------------------------------------------------
def numbers(story: Story, frame: Frame) -> list[list[str]]:
    """(label, text) pairs of a frame, of every rank: its FLOPs, or the bytes that its kernels read
    and write where it has no collective; its payload; what it sends of that on a ring."""
    rows = []
    if frame.kernels:
        flops, moved = work(frame)
        rows.append(["compute per rank", amount(flops, "FLOP")])
        if not frame.move:
            rows.append(["memory traffic", amount(moved)])
    return rows + (_payload(story, frame) if frame.move else [])


def _payload(story, frame):
    move, count = frame.move, len(frame.moves)
    each = f" (one of {count})" if count > 1 else ""
    total = sum(sent(story, story.frames.index(frame)).values())
    part = "2(n-1)/n" if move.collective == "all_reduce" else "(n-1)/n"
    return [
        [f"payload{each}", f"{symbols(frame)} = {amount(move.payload)}"],
        ["each rank sends", f"{amount(total)}: {part} of it"],
    ]


def panel(number: int, eyes: Eyes, totals: list[dict[str, float]]) -> str:
    """The running total of every axis, after a frame."""
    x, y = PANEL, CELLS[1] - 14
    out = text(x, y, "sent by each rank, bytes", weight=650)
    for axis, total in totals[-1].items():
        y += 26
        out += _bar(axis, totals[number][axis], total, x, y, eyes.keys[axis])
    return out


def _bar(axis, done, total, x, y, key):
    left, width = x + max(26, 9 * len(axis)), 86
    out = text(x, y, axis, key, weight=700)
    out += outline(left, y - 10, width, 12, "muted", rx=2)
    if total:
        out += rect(left, y - 10, width * done / total, 12, key, "rx='2'")
    return out + text(left + 8 + width, y, so_far(done, total) if total else "nothing")


OWNERS = "The numbers on a block are the ranks that hold it."
HIDDEN = "H = h hidden size."


def explained(eyes: Eyes, y: float) -> tuple[str, float]:
    """(the legend of the matrices; y of its last line). y : where it begins."""
    marks = [*MARKED, ("pale", f"not on rank {eyes.rank}")]
    return legend([*marks, ("partial", "partial sum")], 12.0, y, FILM)
