"""What `parallelize` did, or would do: every pair, and everything that stays whole with its reason.

Layers that differ only in numbers of their path and are split alike share a line in texts and
pictures; `ModuleReport.to_table` has them one by one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from tpviz.core.tables import html_table, table, text_table
from tpviz.core.trace import Ledger
from tpviz.schemes.grid.layout import Layout

from .experts import ExpertPlan
from .sent import LayerCall
from .sequences import SequencePlan

if TYPE_CHECKING:
    from .plan import Planned
    from .sent import Totals


@dataclass(frozen=True)
class ModuleReport:
    """How a module's layers are split over ranks.

    pairs : the `tpviz.modules.plan.Planned` pairs of layers. left : {path: (type, shape, reason)}
    of layers that stay whole. notes : remarks on what was not examined or not done. split : number
    of parameters in layers that are split; held : of these, what one rank holds; replicated : of
    all other layers, which every rank has whole. divided : whether the module is split, or this is
    a plan only. totals : of AxoNN, `tpviz.modules.sent.Totals`; of Context, its
    `tpviz.modules.sequences.SequencePlan`; of Experts, its `tpviz.modules.experts.ExpertPlan`.
    """

    model: str
    strategy: str
    at: Layout
    pairs: "tuple[Planned, ...]"
    left: dict[str, tuple[str, tuple[int, ...], str]]
    notes: tuple[str, ...]
    split: int
    held: int
    replicated: int
    divided: bool = False
    totals: "Totals | SequencePlan | ExpertPlan | None" = None

    @property
    def attention_table(self) -> list[list[str]]:
        """A list of rows of strings, header first: one row for each attention over cp, with what a
        rank sends for each of its tokens; empty where sequences are whole."""
        return self.totals.to_table() if isinstance(self.totals, SequencePlan) else []

    @property
    def experts_table(self) -> list[list[str]]:
        """A list of rows of strings, header first: one row for each call of experts over ep, with
        the rows that a rank sends and gets, forward; empty where there are none."""
        return self.totals.to_table() if isinstance(self.totals, ExpertPlan) else []

    def to_table(self) -> list[list[str]]:
        """A list of rows of strings, header first: one row for each layer of a pair."""
        columns = [
            ("pair", lambda number, pair, part: str(number)),
            ("layer", lambda number, pair, part: part.path),
            ("kind", lambda number, pair, part: pair.kind),
            ("found by", lambda number, pair, part: pair.found),
            ("weight", lambda number, pair, part: _shapes(part)[0]),
            ("a rank's", lambda number, pair, part: _shapes(part)[1]),
            ("axes", lambda number, pair, part: _axes(part)),
            ("forward (elements a token)", lambda number, pair, part: _moves(part, "forward")),
            ("backward (elements a token)", lambda number, pair, part: _moves(part, "backward")),
        ]
        pairs = enumerate(self.pairs)
        return table(columns, ((n, pair, part) for n, pair in pairs for part in pair.layers))

    def left_table(self) -> list[list[str]]:
        """A list of rows of strings, header first: what stays whole, and why."""
        return [["stays whole", "type", "weight", "why"]] + [
            [path or "(the model)", kind, _shape(shape), why]
            for path, (kind, shape, why) in self.left.items()
        ]

    def ledger(self, tokens: int, itemsize: int = 4) -> Ledger:
        """The `Ledger` of one forward and backward with every pair called once on ``tokens`` tokens
        (batch * sequence) of ``itemsize`` bytes, where the input of each pair needs a gradient
        and is one for all its first layers (derived). Chunks must divide the batch.

        Of AxoNN and Context: tokens of a rank's share, the same on all; with the means of all
        gradients, where every parameter is of ``itemsize``. AxoNN's very first forward asks more
        (`Grid`).
        """
        return self.ledger_of(
            [LayerCall(part, tokens, part.sends) for pair in self.pairs for part in pair.layers],
            itemsize,
            tokens,
        )

    def ledger_of(
        self, calls: Sequence[LayerCall], itemsize: int = 4, tokens: int | None = None
    ) -> Ledger:
        """The `Ledger` of one forward and backward with these `tpviz.modules.sent.LayerCall`s.
        tokens : of a rank, those of the example unless said."""
        sizes = {self.at.inside: self.at.i, self.at.stream: self.at.s}
        entries = [row for call in calls for row in call.entries(itemsize, sizes)]
        others = self.totals.ledger(calls, itemsize, tokens) if self.totals else Ledger()
        return Ledger.of(entries) + others

    def describe(self) -> str:
        """In words, for those who do not see tables."""
        done = "is split" if self.divided else "would be split"
        what = "linear layers" if self.totals and self.totals.easy else "pairs of linear layers"
        lines = [
            f"{self.model} {done} by {self.strategy}: {len(self.pairs)} {what}; "
            f"of {self.split + self.replicated} parameters {self.split} are split, "
            f"{self.held} of those on each rank, and {self.replicated} are on every rank."
        ]
        for count, row in _alike(self.to_table()[1:], 1):
            _, path, kind, _, whole, own, axes, forward, backward = row
            lines.append(
                f"{_times(path, count)}, {kind}: {whole} becomes {own} over {axes}; "
                f"forward {forward}, backward {backward}."
            )
        for count, (path, heads, keys, own, *sent) in _alike(self.attention_table[1:], 0):
            lines.append(
                f"{_times(path, count)}, attention of {heads} heads, {keys} of keys: {own} tokens; "
                f"for each it sends, forward, {sent[0]}; backward {sent[1]}."
            )
        for count, (path, number, own, k, sent, got) in _alike(self.experts_table[1:], 0):
            lines.append(
                f"{_times(path, count)}, {number} experts, {own} of them on each rank, {k} for "
                f"each token: forward a rank sends {sent} rows and gets {got}."
            )
        for count, row in _alike(self.left_table()[1:], 0):
            lines.append(f"{_times(row[0], count)} stays whole: {row[3]}.")
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def _texts(self):
        """(heading, tables with layers that are alike in one row)."""
        state = "" if self.divided else ", planned only"
        heading = (
            f"{self.model} by {self.strategy}{state}: {self.split} parameters split "
            f"({self.held} on a rank), {self.replicated} on every rank"
        )
        header, *rows = self.to_table()
        pairs = [[_times(row[1], n), *row[2:]] for n, row in _alike(rows, 1)]
        left_header, *left = self.left_table()
        left = [[_times(row[0], n), *row[1:]] for n, row in _alike(left, 0)]
        seen, *other = self.attention_table or self.experts_table or [[]]
        other = [[_times(row[0], n), *row[1:]] for n, row in _alike(other, 0)]
        tables = (header[1:], pairs), (seen, other), (left_header, left)
        some = [[first, *rows] for first, rows in tables if rows]
        return heading, some

    def __repr__(self):
        heading, tables = self._texts()
        lines = [heading]
        for rows in tables:
            lines += ["", *text_table(rows)]
        notes = [
            line
            for note in self.notes
            for line in wrap(f"note: {note}", 98, subsequent_indent="  ")
        ]
        return "\n".join([*lines, *[""] * bool(notes), *notes])

    def _repr_html_(self):
        heading, tables = self._texts()
        notes = [[["notes"], *([note] for note in self.notes)]] * bool(self.notes)
        look, left = "class='tpviz-parallel'", ["text-align:left"]
        shown = [html_table([[heading]], look, left), *(html_table(rows, look) for rows in tables)]
        return "".join([*shown, *(html_table(rows, look, left) for rows in notes)])


def _shape(shape):
    return " x ".join(map(str, shape))


def _shapes(part):
    whole = (part.out, part.ins) if part.out_dim == 0 else (part.ins, part.out)
    pieces = f" in {part.z} shards" if part.z > 1 else ""
    return _shape(whole), _shape(part.local("weight")) + pieces


def _axes(part):
    """As in "out d1, in d2"."""
    names = {part.out_dim: "out", 1 - part.out_dim: "in"}
    words = [f"{names[dim]} {axis}" for dim, axis in part.splits("weight")]
    words += ["block z"] * (part.z > 1)
    return ", ".join(words) or "none"


def _moves(part, phase):
    """As in "all_reduce d2 (128)": elements a token, whole tensor."""
    words = [
        f"{move.collective} {move.axis} ({move.elements})"
        + (f" in {move.times} chunks" if move.times > 1 else "")
        for move in part.moves()
        if move.phase == phase
    ]
    once = [move for move in part.once if move.phase == phase and move.elements]
    words += [f"{move.collective} {move.axis} ({move.elements} in all)" for move in once]
    return ", ".join(words) or "nothing"


def _alike(rows, column):
    """(how many, row with * for numbers) of rows that are equal from ``column`` on, numbers in that
    column's path aside."""
    found = {}
    for row in rows:
        key = (re.sub(r"(^|\.)\d+(?=\.)", r"\1*", row[column]), *row[column + 1 :])
        found.setdefault(key, []).append(row)
    for key, group in found.items():
        yield len(group), group[0] if len(group) == 1 else [*group[0][:column], *key]


def _times(path, count):
    return f"{path} ({count} times)" if count > 1 else path
