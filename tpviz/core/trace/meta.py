"""What `Trace.meta` may hold: one table, by which files are checked and views read.

Keys that are not in the table may be anything that JSON holds.
"""

import re
from dataclasses import dataclass
from typing import Any

from tpviz.core import limits

from .shapes import Fields, FiniteNumber, List, MapOf, Misfit, Rank, Text, WholeNumber, fitting


class Axes:
    """{name: size} of the axes of a mesh, which has at most `limits.RANKS` ranks."""

    shape = MapOf(Text(), WholeNumber(1))

    def check(self, value: Any) -> dict[str, int]:
        """``value`` as a dict {name: size}; raises `Misfit`."""
        axes, size = self.shape.check(value), 1
        for name, length in axes.items():
            size *= length
            if not name.isidentifier():
                raise Misfit(name, "a plain word such as 'tp'").within(name)
        if size > limits.RANKS:
            raise Misfit(axes, f"a mesh of at most {limits.RANKS} ranks (tpviz.limits.RANKS)")
        return axes


class Samples:
    """A rank's memory: times, and as many bytes of each kind."""

    time, kind = List(FiniteNumber()), List(WholeNumber())

    def check(self, value: Any) -> dict[str, list[float]]:
        """{"time": list, kind: list, ...}."""
        found = Fields({"time": self.time}, ("time",), rest=self.kind).check(value)
        odd = [name for name in found if len(found[name]) != len(found["time"])]
        if odd:
            raise Misfit(found[odd[0]], f"as long as the {len(found['time'])} times").within(odd[0])
        return found


class Loss(FiniteNumber):
    """A loss, which may be any number, or None where it is not known."""

    def check(self, value: Any) -> float | None:
        """``value`` as a float (NaN and infinity included) or None; raises `Misfit`."""
        return None if value is None else super().check(value)


@dataclass(frozen=True)
class TwoTexts:
    """A list of two texts: [backend, members] of a process group whose collectives were not all
    recorded; [name of a host, mark of its clock], see `tpviz.ranks.hosts`. wanted : in errors."""

    wanted: str

    def check(self, value: Any) -> list[str]:
        """``value`` as a list of two texts; raises `Misfit`."""
        found = List(Text()).check(value)
        if len(found) != 2:
            raise Misfit(value, self.wanted)
        return found


class Moments:
    """{"to": mark of a clock, "moments": [{"time", "ahead", "error"}, ...]} in order of time, see
    `tpviz.core.trace.clocks`."""

    of = ("time", "ahead", "error")
    shape = Fields(
        {"to": Text(), "moments": List(Fields(dict.fromkeys(of, FiniteNumber()), of))},
        ("to", "moments"),
    )

    def check(self, value: Any) -> dict[str, Any]:
        """``value`` as a dict with one moment or more; raises `Misfit`."""
        found = self.shape.check(value)
        times = [moment["time"] for moment in found["moments"]]
        if not times or times != sorted(times):
            raise Misfit(times, "the times of one moment or more, in order").within("moments")
        return found


_RANGE = List(WholeNumber(0))
_ROW = Fields(
    {
        "name": Text(),
        "shape": List(WholeNumber(0)),
        "notation": Text(),
        "splits": List(Fields({"dim": WholeNumber(0), "axis": Text()}, ("dim", "axis"))),
        "flat": Fields({"axis": Text(), "ranges": List(_RANGE)}, ("axis", "ranges")),
        "at": Fields({"axis": Text(), "indices": _RANGE}, ("axis", "indices")),
    },
    ("name", "shape", "notation", "splits"),
)
_LATE = ("seconds", "share", "share_of_communication", "behind")
TEXTS = "badge", "device", "strategy", "workload", "title", "cluster", "source"
META = {
    **dict.fromkeys(TEXTS, Text()),
    "world_size": Rank(1),
    "overhead": FiniteNumber(finite=False),
    "losses": List(Loss(finite=False)),
    "mesh": Fields({"axes": Axes()}, ("axes",)),
    "ownership": List(_ROW),
    "memory": MapOf(Rank(0, digits=True), Samples()),
    "late": Fields({**dict.fromkeys(_LATE, FiniteNumber()), "events": List(Text())}),
    "parts": MapOf(Rank(0, digits=True), List(List(FiniteNumber()))),
    "unrecorded": List(TwoTexts("a backend and the members of a group")),
    "notes": List(Text()),
    "disagree": List(Text()),
    "hosts": MapOf(Rank(0, digits=True), TwoTexts("the name of a host and the mark of its clock")),
    "offsets": MapOf(Rank(0, digits=True), Moments()),
    "clocks": MapOf(Text(), FiniteNumber(0)),
}
ABSENT = {"mesh": {"axes": {}}, "world_size": 0, "overhead": 0.0, "losses": [], "ownership": [],
          "memory": {}, "parts": {}, "late": {}, "unrecorded": [], "notes": [], "disagree": [],
          "hosts": {}, "offsets": {}, "clocks": {}}  # fmt: skip
"""What views read where a key is absent or has another shape; "" for the texts."""


def checked(meta: Any, where: str) -> dict[str, Any]:
    """``meta`` of a file; ``ValueError`` that begins with ``where`` for a key of another shape."""
    return fitting(Fields(META), meta, where)


def fact(meta: Any, name: str) -> Any:
    """The value of a key of the table, or an empty value of its type if missing or malformed."""
    try:
        if isinstance(meta, dict) and meta.get(name) is not None:
            return META[name].check(meta[name])
    except Misfit:
        pass
    return ABSENT.get(name, "")


def brief(notes: list[str]) -> list[str]:
    """What a badge says of notes: their subjects, up to three, and how many more there are; how
    steps were found is said after what is unknown.

    >>> brief(["steps by the GPUs' own time, as they lag", "a.json: 3 bytes replaced (at 9)"])
    ['3 bytes replaced', "steps by the GPUs' own time"]
    """
    # A note is a subject and its figures; in front of it the name of a file may stand.
    subjects = [
        next((part.strip() for part in re.split("[:;,(]", note) if " " in part.strip()), note)
        for note in notes
    ]
    unknown = [words.removesuffix(" unknown") for words in subjects if words.endswith(" unknown")]
    subjects = [words for words in subjects if not words.endswith(" unknown")]
    subjects = [f"{' and '.join(dict.fromkeys(unknown))} unknown", *subjects][not unknown :]
    subjects = sorted(dict.fromkeys(subjects), key=lambda words: words.startswith("steps"))
    more = [f"{len(subjects) - 3} more notes"] if len(subjects) > 4 else subjects[3:4]
    return [*subjects[:3], *more]
