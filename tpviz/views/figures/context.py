"""An attention over sequences that are cut -> scene: whose block is where, and when, beside lanes.

Queries down, keys across, both by chunk; a block has the ink of the rank that computes it, and the
number of the step, from 0, at which it does. Under Ulysses the square is tokens by heads.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.core.inks import axis_keys

from .lanes import Axis, axis_below, idle_word, spans
from .legend import keyed
from .svg import VIEW, bars_path, outline, pattern_defs, rect, seconds, shape, text
from .tokens import INKS

if TYPE_CHECKING:
    from tpviz.views.films.context import AttentionFilm

NAMES = {"zigzag": "zigzag", "ring": "ring", "all_gather": "all-gather", "ulysses": "Ulysses"}
RANK_INKS = tuple("forward axis1 axis2 parameters backward optimizer_state axis4 copy".split())
"""Rank r has the ink r; its number is always written."""
MOST = len(RANK_INKS)
MESSAGE = axis_keys(["cp"])["cp"]
STRIP, HEAD, FOOT = 18, 26, 26
"""px: of the edges that say whose a chunk is; of a panel's name; under a square."""
SIDE = {1: 264, 2: 208}
"""{panels: px of a square}."""
BOX, NAME, RIGHT, LANE = (26, 18), 58, 28, 52
"""px: of the keys that a rank has; of its name; right of the lanes; of a lane at most."""
ASIDE = 34  # px beside the keys, past which those of the first rank go to the last
GAP, FLOW = 6, 5  # px: between lanes; of the messages at the foot of one


def context_scene(films: "Sequence[AttentionFilm]", title: str, about: str = "") -> dict[str, Any]:
    """The scene of one or two `AttentionFilm`s on one clock, ready for JSON; as `Film` wants it.

    ``pieces`` have ``data-blocks``: "rank position", and the query and the key chunk of each block.
    Raises ``ValueError`` above `MOST` ranks.
    """
    check(films[0].cut.cp)
    side, last = SIDE[len(films)], max(film.steps for film in films)
    each = HEAD + STRIP + side + FOOT
    places = [
        _AttentionPanel(film, number * each, side, films) for number, film in enumerate(films)
    ]
    first = places[0]
    scale = (first.axis.right - first.axis.left) / first.axis.high
    move = f"<g transform='translate({first.names:g},0)'>"
    below = axis_below(first.axis.left - first.names, 0, scale, first.axis.high, seconds)
    drawn = f"{move}<g transform='translate(0,{places[-1].below:g})'>{below}</g></g>"
    pieces: dict[str, int] = {}
    frames = [
        [pieces.setdefault(piece, len(pieces)) for place in places for piece in place.frame(step)]
        for step in range(last + 1)
    ]
    return {
        "title": title,
        "about": about,
        "badge": films[0].badge,
        "width": VIEW,
        "top": 0,
        "height": len(films) * each,
        "common": pattern_defs() + "".join(place.common() for place in places) + drawn,
        "pieces": list(pieces),
        "frames": frames,
        "legend": LEGEND,
        "facts": facts(films),
        "finding": finding(films),
        "captions": [*(f"step {step}" for step in range(last)), "the end"],
        "words": [said(films, step) for step in range(last + 1)],
        "opens": 1,
    }


OWN = "a rank's own colour, numbers: steps (faint: done; blank: to come)"
LEGEND = keyed(
    [
        (RANK_INKS[0], "solid", OWN),
        (MESSAGE, INKS[MESSAGE].pattern, "messages"),
        ("exposed", "exposed", "exposed: waits for keys from a neighbour"),
        ("idle", "sparse", "idle in this attention"),
    ]
)


def check(cp: int) -> None:
    """Raise ``ValueError`` for more ranks than can be told apart."""
    if cp > MOST:
        raise ValueError(f"cp={cp} ranks are more than the {MOST} that this view shows")


# -- words and numbers -----------------------------------------------------------------------------
def facts(films: "Sequence[AttentionFilm]") -> list[list[str]]:
    """(label, text) pairs for the rail."""
    film = films[0]
    if len(films) == 1:
        return [
            ["attention", seconds(film.seconds)],
            ["exposed, at most", seconds(max(film.exposed))],
            ["busiest rank over the mean", f"{uneven(film):.2f}"],
        ]
    times = [[NAMES[each.cut.kind], seconds(each.seconds)] for each in films]
    return [
        *times,
        [f"speedup over {NAMES[films[1].cut.kind]}", f"{films[1].seconds / film.seconds:.2f}"],
    ]


def finding(films: "Sequence[AttentionFilm]") -> str:
    """What the picture shows, in a sentence."""
    film, *others = films
    if not others:
        return f"The busiest rank computes {uneven(film):.2f} times the mean."
    [other] = others
    times = other.seconds / film.seconds
    how = f"is {times:.2f} times as fast" if times >= 1 else f"takes {1 / times:.2f} times as long"
    busy = [f"{uneven(each):.2f}" for each in films]
    why = f": its busiest rank computes {busy[0]} times the mean, not {busy[1]}"
    return (
        f"{capital(NAMES[film.cut.kind])} {how} as {NAMES[other.cut.kind]}"
        f"{why * (busy[0] != busy[1])}."
    )


def uneven(film: "AttentionFilm") -> float:
    """Computing time of the busiest rank over the mean of all; 1 is even."""
    return max(film.computing) * film.cut.cp / sum(film.computing)


def said(films: "Sequence[AttentionFilm]", step: int) -> str:
    """The sentences of a step."""
    words = [_said(film, min(step, film.steps)) for film in films]
    if len({*words}) == 1:
        return capital(words[0])
    return " ".join(f"{capital(NAMES[film.cut.kind])}: {each}" for film, each in zip(films, words))


def capital(words: str) -> str:
    """With a large first letter, the others as they are."""
    return words[:1].upper() + words[1:]


def _said(film, step):
    kind, n = film.cut.kind, film.cut.cp
    if step == film.steps:
        apart = any(lane.begin for lane in film.lanes)
        late = ", and ranks begin one after another, as forward leaves them" * apart
        return f"the busiest rank computes {uneven(film):.2f} times the mean{late}."
    if n == 1:
        return "the one rank has all queries and keys."
    if kind == "ulysses":
        return (
            "each rank sends all others their heads of its tokens.",
            "each rank has all tokens, and computes a part of the heads.",
            "the results go back: all heads of a rank's own tokens.",
        )[step]
    back = film.phase == "backward"
    if kind == "all_gather":
        sums = "; in the end gradients are summed" * back
        if not step:
            return "chunks are zigzag's; a rank begins with its own keys, while all are gathered."
        return f"each rank has all keys, and computes with those of rank r + {step}{sums}."
    behind = "; gradients travel one step behind" * back
    if not step:
        return f"each rank begins with its own keys and values, and passes them up{behind}."
    words = f"rank r computes with the keys of rank r + {step}{behind}"
    if kind != "ring":
        return f"{words}."
    none = "rank 0 has" if n - step == 1 else f"ranks 0 to {n - step - 1} have"
    return f"{words}; {none} nothing to do, as those come after their queries."


def to_table(films: "Sequence[AttentionFilm]") -> list[list[str]]:
    """Rows of strings, header first: a rank of a kind each."""
    rows = [["kind", "rank", "blocks", "computing", "exposed", "idle"]]
    for film in films:
        for rank, lane in enumerate(film.lanes):
            others = [] if film.cut.kind == "ulysses" else range(film.cut.cp)
            blocks = sum(len(film.cut.blocks(rank, other)) for other in others)
            idle = lane.begin + film.seconds - lane.end
            times = film.computing[rank], film.exposed[rank], idle
            rows.append([NAMES[film.cut.kind], str(rank), str(blocks or "-"), *map(seconds, times)])
    return rows


def describe(films: "Sequence[AttentionFilm]", title: str) -> str:
    """The attention in words."""
    each = [
        f"{NAMES[film.cut.kind]} takes {seconds(film.seconds)} ({film.badge}), of which up to "
        f"{seconds(max(film.exposed))} are exposed; the busiest rank computes {uneven(film):.2f} "
        "times the mean."
        for film in films
    ]
    return f"{title}. {' '.join(map(capital, each))}"


# -- pictures --------------------------------------------------------------------------------------
class _AttentionPanel:
    """A square and lanes, from ``top`` px down."""

    def __init__(self, film, top, side, films):
        self.film, self.cut, self.side, self.top = film, film.cut, side, top
        self.y, self.n = top + HEAD + STRIP, film.cut.cp
        self.names = STRIP + side + 14
        self.boxes = self.names + NAME
        left = self.boxes + BOX[0] + ASIDE
        self.axis = Axis(left, VIEW - RIGHT, 0.0, max(each.seconds for each in films))
        self.pitch = min(side / self.n, LANE)
        self.high, self.below = self.pitch - GAP - FLOW, self.y + self.n * self.pitch
        whole = self.cut.kind == "ulysses"
        self.chunks = [(rank,) if whole else self.cut.chunks(rank) for rank in range(self.n)]
        self.cell = side / sum(map(len, self.chunks))

    def common(self):
        """What all steps share."""
        name = f"{NAMES[self.cut.kind]}: {seconds(self.film.seconds)}"
        out = text(0, self.top + 16, name, size=16, weight=650)
        out += outline(STRIP, self.y, self.side, self.side, "rule")
        for rank, chunks in enumerate(self.chunks):
            for chunk in chunks:
                at = chunk * self.cell
                out += self._owner(STRIP + at, self.y - STRIP, self.cell, STRIP - 2, rank)
                out += self._owner(0, self.y + at, STRIP - 2, self.cell, rank)
        whole = self.cut.kind == "ulysses"
        words = "rows: tokens, columns: heads" if whole else "rows: queries, columns: keys"
        out += text(0, self.y + self.side + 16, words, "muted")
        if not whole:
            x, y = STRIP + self.side * 0.74, self.y + self.side * 0.26
            out += text(x, y + 10, "masked", "muted", anchor="middle")
            words = "with keys of" if self.cut.kind == "all_gather" else "has keys of"
            out += text(self.boxes + 13, self.y - 6, words, "muted", anchor="middle")
        return out + "".join(self._lane(rank) for rank in range(self.n))

    def _owner(self, x, y, width, height, rank):
        ink = RANK_INKS[rank]
        out = rect(x + 0.5, y + 0.5, width - 1, height - 1, ink, "rx='2'")
        place = x + width / 2, y + height / 2 + 4.5
        return out + text(*place, rank, f"halo-{ink}", anchor="middle")

    def _lane(self, rank):
        """Blocks in the rank's ink, messages at their foot, what is exposed, and idle time."""
        lane, y, high, x = self.film.lanes[rank], self._at(rank), self.high, self.axis
        out = text(self.names, y + high / 2 + 4.5, f"rank {rank}")
        waits, flows = (np.array(each).reshape(-1, 2).T for each in (lane.exposed, lane.messages))
        if lane.computing:
            x0, x1 = (x.x([span[end] for span in lane.computing]) for end in (0, 1))
            out += shape(bars_path(x0, np.maximum(x1 - 0.6, x0), y, high), RANK_INKS[rank])
        out += spans(*x.spans(*waits), y, high, "exposed")
        idle = x.spans(np.array([0.0, lane.end]), np.array([lane.begin, self.film.seconds]))
        out += spans(*idle, y, high, "idle") + idle_word(*idle, y, high)
        return out + shape(bars_path(*x.spans(*flows), y + high + 1, FLOW - 1), MESSAGE)

    def _at(self, rank):
        return self.y + rank * self.pitch

    def frame(self, step):
        """The pieces of a step."""
        step = min(step, self.film.steps)
        if self.cut.kind == "ulysses":
            yield from self._exchanged(step)
        else:
            yield from self._blocks(step)
            yield from self._keys(step)
        if step < self.film.steps:
            yield self._now(step)

    # -- the square --------------------------------------------------------------------------------
    def _blocks(self, step):
        """Each rank's blocks of each position: done, computed now, or to come."""
        for rank in range(self.n):
            for position, other in enumerate(self.cut.passing(rank)):
                blocks = [
                    (self.chunks[rank][i], self.chunks[other][j], causal)
                    for i, j, causal in self.cut.blocks(rank, other)
                ]
                if blocks:
                    state = (position > step) - (position < step)
                    yield self._drawn(rank, position, blocks, state)

    def _drawn(self, rank, position, blocks, state):
        ink, c = RANK_INKS[rank], self.cell
        path = words = ""
        for query, key, causal in blocks:
            x, y = STRIP + key * c, self.y + query * c
            path += f"M{x:.2f},{y:.2f}" + (
                f"l{c:.2f},{c:.2f}h-{c:.2f}z" if causal else f"h{c:.2f}v{c:.2f}h-{c:.2f}z"
            )
            low = 0.16 if causal and c > STRIP else 0.0  # the middle of what is not masked
            at = x + c * (0.5 - low), y + c * (0.5 + low) + 4.5
            token = f"halo-{ink}" if state == 0 else "fg" if state < 0 else "muted"
            words += text(*at, position, token, anchor="middle", weight=700 if state == 0 else "")
        if state > 0:
            body = f"<path d='{path}' class='s-rule' fill='none'/>"
        else:
            body = shape(path, ink, "solid", "fill-opacity='.35'" if state else "")
            body += f"<path d='{path}' class='s-bg' fill='none'/>"
        names = " ".join(f"{query},{key}" for query, key, _ in blocks)
        return f"<g data-blocks='{rank} {position} {names}'>{body}{words}</g>"

    def _exchanged(self, step):
        """Tokens by heads: who has them, and where they go."""
        for row in range(self.n):
            for column in range(self.n):
                owner = column if step in (1, 2) else row
                to = {0: column, 2: row}.get(step, owner)
                ink, c = RANK_INKS[owner], self.cell
                x, y = STRIP + column * c, self.y + row * c
                words = f"{owner}→{to}" if owner != to and c > 40 else str(to)
                out = rect(x + 0.5, y + 0.5, c - 1, c - 1, ink)
                out += text(x + c / 2, y + c / 2 + 4.5, words, f"halo-{ink}", anchor="middle")
                yield f"<g data-part='{row},{column} {owner}'>{out}</g>"

    # -- beside it ---------------------------------------------------------------------------------
    def _keys(self, step):
        """Whose keys each rank computes with; in a ring a copy goes on, beside the others."""
        place, corner, kept = min(step, self.n - 1), (-BOX[0] / 2, -BOX[1] / 2, *BOX), []
        centre, half = self.boxes + BOX[0] / 2, self.high / 2
        for rank in range(self.n):
            owner, to = (rank + place) % self.n, (rank - 1) % self.n
            ink, y, end = RANK_INKS[owner], self._at(rank) + half, self._at(to) + half
            pill = (
                f"transform='translate({centre:.1f},{y:.1f})'>"
                f"<title>the keys and values of rank {owner}</title>"
                + rect(*corner, ink, "rx='8'")
                + outline(*corner, "bg", 1.5, 8)
            )
            if self.cut.kind != "all_gather" and step < self.n - 1:
                yield self._arrow(rank, y)
                aside = centre + (ASIDE if rank == 0 else BOX[0] / 2) * 2
                ends = [round(each, 1) for each in (centre, y, aside, (y + end) / 2, centre, end)]
                path = f"data-path='{ends}' data-lag='0' class='tpv-token' visibility='hidden'"
                yield f"<g data-message='{owner}-{rank}-{to}' {path} {pill}</g>"
            number = text(0, 4.5, owner, f"halo-{ink}", anchor="middle", weight=700)
            kept.append(f"<g data-keys='{owner}-{rank}' {pill}{number}</g>")
        yield from kept

    def _arrow(self, rank, y):
        """To the rank above; from the first round to the last."""
        x, style = self.boxes - 5, f"class='s-{MESSAGE}' fill='none' stroke-width='1.6'"
        if rank:
            up = y - self.pitch + 4
            return f"<path d='M{x:.1f},{y:.1f}V{up:.1f}m-3,4l3,-4l3,4' {style}/>"
        x, end = self.boxes + BOX[0] + 3, self._at(self.n - 1) + self.high / 2
        return f"<path d='M{x:.1f},{y:.1f}h5V{end:.1f}h-5m4,-3l-4,3l4,3' {style}/>"

    def _now(self, step):
        """A frame round what each rank computes in this step."""
        out = ""
        for rank, lane in enumerate(self.film.lanes):
            now = [span for span in lane.computing if span[2] == step]
            if now:
                x0, x1 = (float(self.axis.x(at)) for at in (now[0][0], now[-1][1]))
                y, wide = self._at(rank), max(x1 - x0, 2)
                out += outline(x0 - 1, y - 1, wide + 2, self.high + 2, "fg", 1.6, 3)
                if wide > 14 and self.cut.kind != "ulysses":
                    place = (x0 + x1) / 2, y + self.high / 2 + 4.5
                    out += text(*place, step, f"halo-{RANK_INKS[rank]}", anchor="middle")
        return out
