"""A walk through a transformer block -> scene: every frame a finished picture, and its numbers.

The walk (`tpviz.schemes.atp.walk`) says which tensors meet, how they are cut, and which kernels and
collectives of the program a frame stands for. Bytes and FLOPs are counted from those: of one rank,
all ranks have the same. There are no times here.
"""

from math import prod
from typing import Any, NamedTuple

from tpviz.mesh import Mesh
from tpviz.trace.ledger import wire_bytes

from .blocks_matrix import plain
from .svg import amount

MAX_RANKS = 16
BADGE = "counted, not run"
NAMED = {"T": "bs", "n": "n"}
"""Letters of a dim that is no multiple of the hidden size -> what it is in a payload."""


class Story(NamedTuple):
    """What the picture is of: words for it, the mesh, the workload, and the frames."""

    title: str
    mesh: Mesh
    workload: Any
    frames: tuple


def blocks_scene(story, rank=0):
    """The scene of a `Story`, ready for JSON: ``title``, ``badge``, ``width``, ``height``,
    ``style``, ``common`` and ``frames`` (SVG), ``captions``, ``words``, ``facts``, ``rank``.

    Raises ValueError on a rank that is not there, and above 16 ranks.
    """
    from .blocks_svg import pictures

    check(story.mesh, rank)
    return {
        "title": story.title,
        "badge": BADGE,
        "rank": rank,
        "captions": [caption(story, i) for i in range(len(story.frames))],
        "words": [f"{sentence(frame)}. {frame.words}" for frame in story.frames],
        "facts": facts(story),
        "top": 34,
        **pictures(story, rank),
    }


def check(mesh, rank):
    """Raise ``ValueError`` where the picture would not be legible or the rank is not there."""
    if mesh.size > MAX_RANKS:
        raise ValueError(
            f"mesh {' x '.join(map(str, mesh.shape))} has {mesh.size} ranks: this "
            f"view shows at most {MAX_RANKS}"
        )
    mesh.coords(rank)


# -- numbers ---------------------------------------------------------------------------------------
def sent(story, number):
    """{axis: bytes a rank has sent on a ring} in one frame."""
    totals = dict.fromkeys(story.mesh.names, 0)
    for move in story.frames[number].moves:
        totals[move.axis] += wire_bytes(move.collective, move.payload, story.mesh.axes[move.axis])
    return totals


def running(story):
    """[{axis: bytes sent so far}] after every frame; the last one is the ledger of a block."""
    found, totals = [], dict.fromkeys(story.mesh.names, 0)
    for number in range(len(story.frames)):
        totals = {axis: totals[axis] + more for axis, more in sent(story, number).items()}
        found.append(totals)
    return found


def work(frame):
    """(FLOPs, bytes) of a rank's kernels in a frame."""
    return tuple(sum(kernel[i] for kernel in frame.kernels) for i in (0, 1))


def payload_of(frame):
    """The tensor whose size is a collective's payload: an all-gather's result, else its input."""
    return frame.moving[frame.move.collective == "all_gather"]


def symbols(frame):
    """ "3bsh/d1", "4h²/(x y)": the payload of the frame's collective, in sizes of the workload."""
    tensor = payload_of(frame)
    letters = [dim.letters for dim in (tensor.rows, tensor.cols)]
    count = prod(int(name.rstrip("H") or 1) for name in letters if name not in NAMED)
    names = [NAMED.get(name, "h" * name.endswith("H")) for name in letters]
    factor = f"{count if count > 1 else ''}{''.join(sorted(names))}".replace("hh", "h²")
    under = [*(str(n) for n in frame.moved_chunk[1:2]), *tensor.axes]
    below = under[0] if len(under) == 1 else f"({' '.join(under)})"
    return f"{factor}/{below}" if under else factor


def elements(story, frame):
    """Numbers in the payload of the frame's collective, from the layout of its tensor."""
    count = frame.moved_chunk[1] if frame.moved_chunk else 1
    return prod(payload_of(frame).local(story.mesh.axes)) // count


# -- words -----------------------------------------------------------------------------------------
def does(frame):
    """What happens in a frame, in a few words."""
    done = []
    if frame.product:
        verb = "attention for" if frame.layer == "core" else "multiply for"
        done.append(f"{verb} {frame.product[-1].name}" + of_chunk(frame.chunk))
    if frame.move:
        name = frame.move.collective.replace("_", "-")
        done.append(
            f"{name} of {frame.moving[0].name} over {frame.move.axis}" + of_chunk(frame.moved_chunk)
        )
    return " while ".join(done)


def of_chunk(chunk):
    """ " (chunk 2 of 4)", or nothing."""
    return f" (chunk {chunk[0] + 1} of {chunk[1]})" if chunk else ""


def caption(story, number):
    """One frame in words."""
    frame = story.frames[number]
    return f"step {number + 1} of {len(story.frames)}, {frame.phase}, {frame.layer}: {does(frame)}"


def sentence(frame):
    """The layer's whole line as text."""
    return " ".join(part if isinstance(part, str) else plain(part) for part in frame.line)


def facts(story):
    """(label, text) pairs for the line above the picture."""
    total = running(story)[-1]
    return [
        ["mesh", " x ".join(f"{a} {n}" for a, n in story.mesh.axes.items())],
        [
            "a rank sends, in a block",
            ", ".join(f"{amount(n)} over {axis}" for axis, n in total.items()),
        ],
    ]


def to_table(story):
    """Rows of strings, header first: one frame each."""
    names = [f"sent over {axis}" for axis in story.mesh.names]
    table = [["step", "phase", "layer", "line", "FLOPs", "bytes", "collective", "payload", *names]]
    for number, frame in enumerate(story.frames):
        flops, moved = work(frame)
        move = frame.move
        table.append(
            [
                str(number + 1),
                frame.phase,
                frame.layer,
                sentence(frame),
                f"{flops:,}",
                f"{moved:,}",
                f"{move.collective} over {move.axis}" if move else "",
                symbols(frame) if move else "",
                *(f"{count:,.6g}" for count in sent(story, number).values()),
            ]
        )
    return table


def describe(story, rank, number):
    """The block and one frame of it in words."""
    w, total = story.workload, running(story)[-1]
    where = ", ".join(f"{axis} {i}" for axis, i in story.mesh.coords(rank).items())
    over = " and ".join(f"{amount(total[axis])} over {axis}" for axis in total)
    frame = story.frames[number]
    return (
        f"One block of {story.title}, {w.batch} x {w.seq} tokens, hidden size {w.hidden}, in "
        f"{len(story.frames)} steps. A rank sends {over} on rings. Rank {rank} is at {where}. "
        f"Shown: {caption(story, number)}. {sentence(frame)}. {frame.words}"
    )
