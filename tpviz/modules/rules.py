"""Which linear layers belong together: `Pair`, and the table of those known by name.

A pair is first layers (their input is the same stream, or another) and one second layer, with only
operations between them that keep features apart: an activation for an MLP, heads for attention. The
first ones' output features and the second one's input features can then be cut the same way, and
only ATP's own all-reduces are needed between them.

>>> pair = Pair(first=["*.fc_in"], second="*.fc_out")
>>> list(places(pair, {"a.0.fc_in": 1, "a.0.fc_out": 2, "fc_in": 3, "fc_out": 4}))
[('a.0', ('a.0.fc_in',), 'a.0.fc_out'), ('', ('fc_in',), 'fc_out')]
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tpviz.core.checks import one_of, settle, whole_number

MOST = 10**9  # of heads, or of features of one
KINDS = ("mlp", "attention")
FUSED = (None, "blocks", "heads")


@dataclass(frozen=True)
class Pair:
    """Paths of first and second layers, and how the features between them are grouped.

    first, second : patterns of paths; ``*`` stands for the same text in all of them, ``*.`` at the
    start also for nothing.
    kind : "mlp": every feature on its own; "attention": whole heads stay together.
    heads, head_size : for attention one of the two, a number or the name of an attribute of the
    module that holds the first layer; a named number of heads is divided there. Key and value
    layers may be narrower (grouped-query attention).
    fused : how one first layer does the work of several: "blocks", as [q | k | v] or [gate | up];
    "heads", as [q, k, v] of each head; numbers of heads, as (8, 2, 2), of blocks that differ.
    divide : further attributes of the holder of the first layer that count heads or features of a
    rank, to be divided by the number of parts; "config.heads" in a copy of its config.
    shared, by_head : paths below ``*`` of parameters between the layers: of what all heads share,
    as "q_norm.weight", gradients are summed; of what has numbers for each head, as "sinks", a rank
    takes its own (`tpviz.modules.between`).
    owner : names of the classes that the module at ``*`` may have, none for any.
    name : what reports call it.

    Raises ``ValueError`` for a kind, a way of fusing or a heads argument that cannot be.
    """

    first: Sequence[str]
    second: str
    kind: str = "mlp"
    heads: int | str | None = None
    head_size: int | str | None = None
    fused: str | Sequence[int] | None = None
    divide: Sequence[str] = ()
    shared: Sequence[str] = ()
    by_head: Sequence[str] = ()
    owner: Sequence[str] = ()
    name: str = "your rule"

    def __post_init__(self):
        for field in ("first", "divide", "shared", "by_head", "owner"):
            object.__setattr__(self, field, _names(field, getattr(self, field)))
        for field in ("second", "name"):
            _text(field, getattr(self, field))
        for field in ("heads", "head_size"):
            value = getattr(self, field)
            if isinstance(value, str):
                _text(field, value)
            elif value is not None:
                settle(self, field, whole_number, 1, MOST)
        if not self.first or {p.count("*") for p in self.first} != {self.second.count("*")}:
            raise ValueError(
                f"first={list(self.first)} and second={self.second!r} must be paths "
                "with equally many *, as in first=['*.up'], second='*.down'"
            )
        one_of("kind", self.kind, KINDS)
        if isinstance(self.fused, (tuple, list)):
            blocks = tuple(whole_number("fused", count, 1, MOST) for count in self.fused)
            object.__setattr__(self, "fused", blocks)
        else:
            one_of("fused", self.fused, FUSED)
        if (self.kind == "attention") == (self.heads is None and self.head_size is None):
            raise ValueError(
                f"kind={self.kind!r} with heads={self.heads!r} and head_size="
                f"{self.head_size!r}: kind='attention' needs one of them, 'mlp' none"
            )

    def __repr__(self):
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        return f"Pair({', '.join(f'{name}={v!r}' for name, v, default in given if v != default)})"


def _names(field, value):
    """A tuple of texts from one or several."""
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, (tuple, list)):
        raise ValueError(f"{field}={value!r} must be a text or a list of them, as in ['*.up']")
    return tuple(_text(field, text) for text in several)


def _text(field, value):
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} has {value!r} where a text is needed, as in '*.up'")
    return value


def pairs_of(rules: Pair | dict[str, Any] | Sequence[Pair | dict[str, Any]] | None) -> list[Pair]:
    """Pairs from `Pair` or dict, one or several; ``ValueError`` for anything else."""
    rules = () if rules is None else [rules] if isinstance(rules, (Pair, dict)) else rules
    if not isinstance(rules, (tuple, list)):
        raise ValueError(f"rules={rules!r}: use tv.Pair(...), or a list of them")
    known = [field.name for field in fields(Pair)]
    for rule in rules:
        unknown = [name for name in rule if name not in known] if isinstance(rule, dict) else []
        if (
            unknown
            or not isinstance(rule, (Pair, dict))
            or (isinstance(rule, dict) and not {"first", "second"} <= rule.keys())
        ):
            raise ValueError(
                f"rule {rule!r}: use tv.Pair(...), or a dict with first, second and "
                f"perhaps {', '.join(known[2:])}"
            )
    return [rule if isinstance(rule, Pair) else Pair(**rule) for rule in rules]


def places(pair: Pair, modules: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(what * stands for, paths of the first layers, path of the second) for every place.

    modules : {path: module}.
    """
    pattern = _pattern(pair.first[0])
    for path in modules:
        match = pattern.fullmatch(path)
        if not match:
            continue
        stars = [text or "" for text in match.groups()]
        firsts, second = tuple(_fill(p, stars) for p in pair.first), _fill(pair.second, stars)
        owner = stars[0] if stars else ""
        if not all(p in modules for p in (*firsts, second)):
            continue
        if not pair.owner or type(modules.get(owner)).__name__ in pair.owner:
            yield owner, firsts, second


def _pattern(text):
    pattern = "(.*?)".join(map(re.escape, text.split("*")))
    if text.startswith("*."):
        pattern = r"(?:(.*?)\.)?" + pattern[len(r"(.*?)\.") :]
    return re.compile(pattern)


def _fill(text, stars):
    for star in stars:
        text = text.replace("*", star, 1)
    return text.removeprefix(".")


RULES = tuple(
    Pair(**rule) for rule in json.loads(Path(__file__).with_suffix(".json").read_text())["rules"]
)
"""Pairs known by name, of `rules.json`; the first match wins."""

# Of modules around a split layer: inference paths that read its weight without calling it.
SHORT_CUTS = {"activation_relu_or_gelu": 0, "use_nested_tensor": False}
