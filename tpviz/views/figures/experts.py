"""A mixture of experts over ranks -> scene: rows go to the ranks that have their experts, and back.

Ranks are bands, the same in all columns: what a rank chose, the experts that it has, what it gets
back, and how long it computes. A ribbon is as thick as its rows are many, in the ink of the rank
that computes them.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from .context import RANK_INKS
from .lanes import idle_word, spans
from .legend import keyed
from .svg import VIEW, amount, outline, pattern_defs, rect, shape, text, width_of

if TYPE_CHECKING:
    from tpviz.views.films.experts import ExpertFilm

MOST, MOST_EXPERTS = len(RANK_INKS), 16
HIGH, HEAD, FOOT = 320, 26, 22
"""px: of all bands; of the columns' names; under the bands."""
BAR, GAP = 10, 4  # px: of what a ribbon begins and ends at; between experts
FROM, IN, OUT, BACK, TIME = 50, 166, 354, 460, 490
"""px: left of the bars of choices, of rows that come in, that go out, of results; of the lanes."""
ROWS = "rows, in the colour of the rank that computes them (pale: done or stay; hollow: to come)"
IDLE = "idle: the busiest still computes"
CAPTIONS = ("choose", "send rows", "compute", "send back")
INSIDE, NOW, DONE = 2, 0.7, 0.25  # the step of computing; opacities
THIN = "stroke-width='.5'"  # of rows without a choice


def experts_scene(film: "ExpertFilm", title: str, about: str = "") -> dict[str, Any]:
    """The scene of an `ExpertFilm`, ready for JSON; as `tpviz.views.widgets.base.Film` wants it.

    Rows that go from a rank to another have ``data-rows``: "from-to-number". Raises ``ValueError``
    above `MOST` ranks and `MOST_EXPERTS` experts.
    """
    check(film.cut.ep, film.w.experts)
    drawn = _Drawn(film)
    return {
        "title": title,
        "about": about,
        "badge": "predicted",
        "width": VIEW,
        "top": 0,
        "height": HEAD + HIGH + FOOT,
        "common": pattern_defs() + drawn.common(),
        "frames": [drawn.frame(step) for step in range(len(CAPTIONS))],
        "legend": keyed([(RANK_INKS[0], "solid", ROWS), ("idle", "sparse", IDLE)]),
        "facts": facts(film),
        "finding": finding(film),
        "captions": [*CAPTIONS],
        "words": [said(film, step) for step in range(len(CAPTIONS))],
        "opens": 1,
    }


def check(ep: int, experts: int) -> None:
    """Raise ``ValueError`` for more ranks or experts than can be told apart."""
    for name, size, most in (("ep", ep, MOST), ("experts", experts, MOST_EXPERTS)):
        if size > most:
            raise ValueError(f"{name}={size} is more than the {most} that this view shows")


# -- words and numbers -----------------------------------------------------------------------------
def facts(film: "ExpertFilm") -> list[list[str]]:
    """(label, text) pairs for the rail."""
    return [
        ["busiest rank", "all alike" if film.alike else f"rank {film.busiest}"],
        ["busiest over the mean", f"{film.uneven:.2f} times"],
        ["choices dropped", f"{100 * film.dropped.sum() / film.chosen.sum():.1f} %"],
        ["sent to others, at most", amount(max(sent_bytes(film)))],
    ]


def finding(film: "ExpertFilm") -> str:
    """What the picture shows, in a sentence."""
    if film.alike:
        return "All ranks compute as many rows: none waits."
    return f"Rank {film.busiest} computes {film.uneven:.2f} times the mean; others wait for it."


def sent_bytes(film: "ExpertFilm") -> list[int]:
    """Bytes that each rank sends to others, one way."""
    row = film.w.hidden * film.w.itemsize
    return [int(film.sent.sum() - own) * row for own in film.to_ranks]


def said(film: "ExpertFilm", step: int) -> str:
    """The sentence of a step."""
    w, most = film.w, film.busiest
    if step == 0:
        words = f"Each token chooses {w.top_k} of {w.experts} experts: a rank has"
        over = f"; an expert takes {many(w.taken)} of a sequence, and what is over is dropped"
        return f"{words} {many(film.chosen.sum())} choices{over * bool(w.capacity)}."
    if step == 1:
        rows = many(film.to_ranks[most])
        if film.cut.ep == 1:
            return "The one rank has all experts: nothing is sent."
        if film.alike:
            whole = ", whole buffers, full or not" * bool(w.capacity)
            return f"Each rank sends {rows} rows to every other{whole}."
        return f"Each rank sends {rows} rows to rank {most}, and fewer to others."
    if step == INSIDE:
        if film.alike:
            empty = film.cut.ep * film.empty.sum()
            words = f", in all {many(empty)} of them without a choice" * bool(empty)
            return f"Each rank computes {many(film.loads[0])} rows{words}."
        return f"Rank {most} has {film.uneven:.2f} times the mean; others wait for it."
    none = "; a dropped choice adds nothing" * bool(film.dropped.any())
    return f"Results go back, and a token's are added up, weighted by the router{none}."


def many(number: int) -> str:
    """A number in few letters."""
    return f"{number:,}" if number < 100_000 else f"{number / 1000:,.0f}k"


def to_table(film: "ExpertFilm") -> list[list[str]]:
    """Rows of strings, header first: an expert each, of all ranks."""
    rows, own = [["rank", "expert", "choices", "dropped", "rows", "empty"]], film.w.experts
    columns = film.chosen, film.dropped, film.sent, film.empty
    for expert, numbers in enumerate(zip(*columns)):
        rank = expert * film.cut.ep // own
        rows.append([str(rank), str(expert), *(str(film.cut.ep * n) for n in numbers)])
    return rows


def describe(film: "ExpertFilm", title: str) -> str:
    """The layer in words."""
    loads = ", ".join(f"{many(load)} on rank {rank}" for rank, load in enumerate(film.loads))
    words = f"{title}. Rows that each rank computes: {loads}. {said(film, INSIDE)}"
    dropped = film.cut.ep * film.dropped.sum()
    return words + f" {many(dropped)} choices are dropped." * bool(dropped)


# -- pictures --------------------------------------------------------------------------------------
class _Drawn:
    """The places of everything. An expert with most choices, or rows, fills its part of a band."""

    def __init__(self, film):
        self.film, self.n, w = film, film.cut.ep, film.w
        self.band, pitch = HIGH / self.n, HIGH / w.experts
        room = np.maximum(film.chosen, film.sent)
        self.scale = (pitch - GAP) / (self.n * room.max())
        self.centres = HEAD + (np.arange(w.experts) + 0.5) * pitch
        self.tops = self.centres - self.n * room * self.scale / 2
        starts = (room.cumsum() - room) * self.scale
        self.starts = HEAD + (self.band - room.sum() * self.scale) / 2 + starts
        self.owner = np.arange(w.experts) * self.n // w.experts
        self.parts = [each * self.scale for each in (film.kept, film.empty, film.dropped)]

    def common(self):
        """What all steps share: names, numbers and lanes."""
        names = (FROM, "choices"), (IN, "expert: rows"), (TIME, "time, by rows")
        out = "".join(text(x, 14, name, "muted") for x, name in names) + self._mean()
        out += text(BACK + BAR, 14, "back", "muted", anchor="end")
        for expert, y in enumerate(self.centres + 4.5):
            number = many(self.n * self.film.sent[expert])
            out += text(IN + BAR + 4, y, f"{expert}: {number}")
            for numbers, name in ((self.film.dropped, "dropped"), (self.film.empty, "empty")):
                if numbers[expert]:
                    words = f"{many(self.n * numbers[expert])} {name}"
                    token = "fg" if name == "dropped" else "muted"
                    out += text(OUT - 4, y, words, token, anchor="end")
        for rank in range(self.n):
            y = HEAD + rank * self.band
            out += text(0, y + self.band / 2 + 4.5, f"rank {rank}")
            out += f"<path d='M0,{y:.1f}H{VIEW}' class='s-rule'/>" * bool(rank)
            out += self._bar(FROM, rank) + self._lane(rank)
        return out

    def _lane(self, rank):
        """A rank's time: rows with choices, empty ones, and what is left while others compute."""
        y, high = self._lane_at(rank)
        kept = self.n * self.film.kept[self.owner == rank].sum() * self._wide()
        end = self.film.loads[rank] * self._wide()
        words = many(self.film.loads[rank])
        out = rect(TIME, y, kept, high, RANK_INKS[rank])
        if end > kept:
            out += outline(TIME + kept, y + 0.5, end - kept, high - 1, RANK_INKS[rank])
        if kept > width_of(words) + 8:
            place = TIME + kept / 2, y + high / 2 + 4.5
            out += text(*place, words, f"halo-{RANK_INKS[rank]}", anchor="middle")
        if end < VIEW - TIME - 1:
            idle = np.array([TIME + end]), np.array([float(VIEW)])
            out += spans(*idle, y, high, "idle") + idle_word(*idle, y, high)
        return out

    def _lane_at(self, rank):
        high = min(self.band - 8, 34)
        return HEAD + (rank + 0.5) * self.band - high / 2, high

    def _wide(self):
        """px of a row's time."""
        return (VIEW - TIME) / self.film.loads.max()

    def _mean(self):
        x = TIME + self.film.loads.mean() * self._wide() - 0.7
        line = f"<path d='M{x:.1f},{HEAD}V{HEAD + HIGH + 4}' class='s-fg' stroke-width='1.4'/>"
        return line + text(x, HEAD + HIGH + 18, "mean", "muted", anchor="end")

    def _bar(self, x, rank, dropped=True):
        """A rank's choices, or its results, by expert."""
        out = ""
        for expert, (kept, empty, over) in enumerate(zip(*self.parts)):
            y, ink = self.starts[expert] + rank * self.band, RANK_INKS[self.owner[expert]]
            out += rect(x, y, BAR, kept, ink)
            out += outline(x + 0.5, y + kept, BAR - 1, empty, ink) * bool(empty)
            out += _dashed(x, y + kept, over) * bool(over and dropped)
        return out

    def frame(self, step):
        """The SVG of a step."""
        out = self._ways(NOW if step == 1 else DONE, FROM + BAR, IN) if step else ""
        out += self._cells(step)
        if step == INSIDE and not self.film.alike:
            y, high = self._lane_at(self.film.busiest)
            out += outline(TIME - 1, y - 1, VIEW - TIME, high + 2, "fg", 1.6, 3)
        if step > INSIDE:
            out += self._ways(NOW, BACK, OUT + BAR)
            out += "".join(self._bar(BACK, rank, False) for rank in range(self.n))
        return out + (self._travel(step) if step in (1, 3) else "")

    def _cells(self, step):
        """The experts: what has come, and what goes out."""
        out = ""
        for expert, top in enumerate(self.tops):
            ink = RANK_INKS[self.owner[expert]]
            kept, empty, over = (self.n * part[expert] for part in self.parts)
            out += f"<g data-expert='{expert} {self.n * self.film.sent[expert]}'>"
            for x, there in ((IN, step > 0), (OUT, step >= INSIDE)):
                drawn = rect if there else outline
                out += drawn(x, top, BAR, kept, ink)
                out += outline(x + 0.5, top + kept, BAR - 1, empty, ink) * bool(empty)
            out += _dashed(IN, top + kept, over) * bool(over) + "</g>"
        return out

    def _ways(self, opacity, outside, inside):
        """Ribbons between what is at ``outside`` px and experts; pale where rows stay on a rank."""
        out, (kept, empty, _) = "", self.parts
        for rank in range(self.n):
            for to, number in enumerate(self.film.to_ranks):
                full = hollow = ""
                for e in np.flatnonzero(self.owner == to):
                    start, end = self.starts[e] + rank * self.band, self.tops[e] + rank * kept[e]
                    full += _ribbon(outside, start, inside, end, kept[e])
                    end = self.tops[e] + self.n * kept[e] + rank * empty[e]
                    hollow += _ribbon(outside, start + kept[e], inside, end, empty[e])
                look = f"fill-opacity='{opacity if rank != to else 0.12}'"
                body = shape(full, RANK_INKS[to], "solid", look)
                if hollow:
                    body += f"<path d='{hollow}' class='s-{RANK_INKS[to]}' fill='none' {THIN}/>"
                words = f"{many(number)} rows of rank {rank} for rank {to}"
                out += f"<g data-rows='{rank}-{to}-{number}'><title>{words}</title>{body}</g>"
        return out

    def _travel(self, step):
        """A dot for each rank's rows for each other one."""
        out, (far, near) = "", ((FROM + BAR, IN) if step == 1 else (BACK, OUT + BAR))
        for to in range(self.n):
            own, end = self.owner == to, HEAD + (to + 0.5) * self.band
            for rank in range(self.n):
                if rank == to or not self.film.sent[own].any():
                    continue
                start = self.starts[own].mean() + rank * self.band
                ends = [(far, start), (near, end)][:: 1 if step == 1 else -1]
                (x0, y0), (x1, y1) = ((round(float(x), 1), round(float(y), 1)) for x, y in ends)
                path = [x0, y0, (x0 + x1) / 2, (y0 + y1) / 2, x1, y1]
                out += (
                    f"<g data-path='{path}' data-lag='0' class='tpv-token' visibility='hidden'"
                    f" transform='translate({x0},{y0})'><circle r='4' class='f-{RANK_INKS[to]}'/>"
                    "<circle r='4' class='s-bg' fill='none'/></g>"
                )
        return out


def _ribbon(x0, y0, x1, y1, wide):
    if not wide:
        return ""
    m = (x0 + x1) / 2
    return (
        f"M{x0:g},{y0:.2f}C{m:g},{y0:.2f} {m:g},{y1:.2f} {x1:g},{y1:.2f}v{wide:.2f}"
        f"C{m:g},{y1 + wide:.2f} {m:g},{y0 + wide:.2f} {x0:g},{y0 + wide:.2f}z"
    )


def _dashed(x, y, high):
    """Choices that are dropped."""
    return outline(x + 0.5, y + 0.5, BAR - 1, high - 1, "fg", 1, 0, "stroke-dasharray='2 2'")
