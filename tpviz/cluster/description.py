"""The description of a cluster: what a device does per second, and what its links carry.

Times in seconds, rates per second, sizes in bytes; bandwidths count one direction.

>>> from tpviz import clusters
>>> box = clusters.nvlink_pairs()
>>> box.size, [level.name for level in box.levels]
(8, ['NVLink', 'PCIe'])
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import inf, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.core import limits
from tpviz.core.checks import one_of, settle, whole_number
from tpviz.core.mesh import Mesh
from tpviz.core.show import Drawn, Shown, figure_of

from .collectives import ALGORITHMS, choose, cost
from .parts import Device, Dimension, Level, checked_name, finite, not_negative, positive
from .routes import family
from .scale import HALVES, caption, scaled
from .traffic import Traffic

if TYPE_CHECKING:
    from .routes import Link

__all__ = ["Cluster", "Device", "Dimension", "Level"]


@dataclass(frozen=True)
class Cluster(Drawn):
    """Equal devices, numbered from the inside out, on a hierarchy of levels or on a torus.

    Parameters
    ----------
    levels : `Level` tuple from inside out; or
    torus : `Dimension` tuple, the one of neighbouring ranks first. One of the two, not both.
    rings : "multi" (a group drives all links of its members in a unit, as NCCL does) or "single".
    algorithm : of collectives: "ring", "tree", "recursive_doubling", or "auto" for the fastest
        of NCCL's.
    table : {(stride, size): bandwidth} measured with all groups of that kind active: overrides the
        rule for groups of ``size`` ranks that lie ``stride`` apart.
    latencies : {(stride, size): seconds of one hop}, likewise.
    factors : {collective: (latency, bytes)}, measured ratios of its latency and its bandwidth term
        to those of the closed form.
    overhead : extra seconds of every collective and message: on a host, waking the processes that
        wait, and refilling their caches.
    queued : time of a collective issued while another of its group is in flight, from the end of
        that, over its time alone: 1.0 if one runs at a time, less if bytes of several move at once.
    cores : of each host, if the devices are its processes: kernels and the moving of bytes share
        them. 0: every device computes by itself.
    hosts : number of these hosts; each has equally many of the devices, in order.
    core_share : fraction of a core that a collective keeps busy for each rank of its group.
    source : where the numbers come from.
    hidden_scale, slow_motion, float32_for : set by `scale_model`.

    Raises ``ValueError`` with the numbers that clash.
    """

    name: str
    device: Device
    levels: tuple[Level, ...] = ()
    torus: tuple[Dimension, ...] = ()
    rings: str = "multi"
    algorithm: str = "ring"
    table: dict[tuple[int, int], float] = field(default_factory=dict)
    latencies: dict[tuple[int, int], float] = field(default_factory=dict)
    source: str = ""
    factors: dict[str, tuple[float, float]] = field(default_factory=dict)
    overhead: float = 0.0
    queued: float = 1.0
    cores: int = 0
    hosts: int = 1
    core_share: float = 0.0
    hidden_scale: float = 1.0
    slow_motion: float = 1.0
    float32_for: str = ""

    def __post_init__(self):
        checked_name(self, "cluster")
        if not isinstance(self.device, Device):
            raise ValueError(f"device of {self.name!r} must be a tv.Device, not {self.device!r}")
        self._check_parts("levels", Level)
        self._check_parts("torus", Dimension)
        if bool(self.levels) == bool(self.torus):
            raise ValueError(
                f"cluster {self.name!r} needs levels or torus, one of the two: "
                f"it has {len(self.levels)} levels and {len(self.torus)} torus dimensions"
            )
        limits.check(f"cluster {self.name!r} has devices:", self.size, "RANKS")
        one_of("rings", self.rings, ("multi", "single"))
        one_of("algorithm", self.algorithm, (*ALGORITHMS, "auto"))
        finite("hidden_scale", self.hidden_scale)
        finite("slow_motion", self.slow_motion)
        one_of("float32_for", self.float32_for, ("", *HALVES))
        settle(self, "cores", whole_number, 0)
        settle(self, "hosts", whole_number)
        if self.size % self.hosts:
            raise ValueError(
                f"cluster {self.name!r}: {self.size} devices cannot be spread evenly over "
                f"hosts={self.hosts}: use a number of hosts that divides {self.size}"
            )
        settle(self, "core_share", not_negative)
        settle(self, "overhead", not_negative)
        settle(self, "queued", positive)
        self._check_factors()
        for what, check in (("table", positive), ("latencies", not_negative)):
            rows = getattr(self, what)
            if not isinstance(rows, Mapping):
                raise ValueError(
                    f"{what}={rows!r} must be {{(stride, group size): number}}, "
                    "as in {(1, 4): 1e9}"
                )
            rows = {self._check_key(what, k): check(f"{what}[{k}]", v) for k, v in rows.items()}
            object.__setattr__(self, what, rows)

    def _check_parts(self, what: str, kind: type[Level] | type[Dimension]):
        parts = getattr(self, what)
        if not isinstance(parts, (tuple, list)):
            raise ValueError(
                f"{what} of {self.name!r} must be a tuple of tv.{kind.__name__}s, not {parts!r}"
            )
        parts = tuple(parts)
        names = [part.name for part in parts if isinstance(part, kind)]
        if len(names) < len(parts):
            raise ValueError(f"{what} of {self.name!r} must be tv.{kind.__name__}s, not {parts!r}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"{what} of {self.name!r}: two are named {twice!r}")
        object.__setattr__(self, what, parts)

    def _check_factors(self):
        try:
            factors = {name: (hops, volume) for name, (hops, volume) in self.factors.items()}
        except (AttributeError, TypeError, ValueError):
            raise ValueError(
                f"factors={self.factors!r} must be {{collective: (of its latency, of its bytes)}}, "
                'as in {"reduce_scatter": (1.0, 2.0)}'
            ) from None
        for name, (hops, volume) in factors.items():
            cost("ring", name, 1, 2)  # raises where there is no such collective
            not_negative(f"latency in factors[{name!r}]", hops)
            finite(f"bytes in factors[{name!r}]", volume)
        object.__setattr__(self, "factors", factors)

    def _check_key(self, what: str, key: Any):
        if not (isinstance(key, tuple) and len(key) == 2):
            raise ValueError(f"{what}: the key {key!r} must be (stride, group size), as in (1, 4)")
        stride = whole_number(f"stride in {what}[{key}]", key[0])
        size = whole_number(f"group size in {what}[{key}]", key[1], 2)
        if stride * (size - 1) >= self.size:
            raise ValueError(
                f"{what}[{key}]: {size} ranks {stride} apart do not fit a cluster of {self.size}"
            )
        return stride, size

    def __hash__(self):
        return hash((self.name, self.device, self.levels, self.torus, self.rings, self.algorithm))

    def __getstate__(self):
        return {part.name: getattr(self, part.name) for part in fields(self)}  # without its caches

    @cached_property
    def size(self) -> int:
        """Number of devices."""
        return prod(part.units for part in self.levels) * prod(part.size for part in self.torus)

    @property
    def per_host(self) -> int:
        """Number of devices of each host."""
        return self.size // self.hosts

    # -- time ------------------------------------------------------------------------------------
    def check_world(self, world_size: int, what: str = "") -> None:
        """Raise ``ValueError`` unless 1 <= ``world_size`` <= `size`: each rank needs a device."""
        world_size = whole_number("world_size", world_size)
        if world_size > self.size:
            raise ValueError(
                f"{what}{world_size} ranks do not fit the {self.size} devices of {self.name}: "
                f"use {self.size} ranks or fewer, or a larger cluster"
            )

    def check_mesh(self, mesh: Mesh | Mapping[str, int]) -> None:
        """Raise ``ValueError`` if the mesh has more ranks than the cluster has devices."""
        mesh = _mesh(mesh)
        words = " x ".join(f"{name} {size}" for name, size in mesh.axes.items())
        self.check_world(mesh.size, f"mesh {words}: ")

    def link(self, members: Iterable[int], world_size: int, shift: int | None = None) -> "Link":
        """The `routes.Link` of a group of ranks: what `predict`, `simulate` and the pacer share.

        shift : for a message, receiver minus sender; ``members`` is then (sender, receiver).
        """
        members = tuple(members)
        return self._traffic(members, world_size, shift).link(members)

    def _traffic(
        self, members: tuple[int, ...], world_size: int, shift: int | None = None
    ) -> Traffic:
        """The `Traffic` of the group's kind, the same of all groups of it."""
        key = members, world_size, shift
        if key not in self._known:
            self._check_members(*key)
            found = Traffic(self, *key)
            self._known.update({(group, world_size, shift): found for group in found.groups})
        return self._known[key]

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return {}

    def _check_members(self, members: tuple[int, ...], world_size: int, shift: int | None):
        self.check_world(world_size)
        if not members or len(set(members)) < len(members):
            raise ValueError(f"a group has every rank once, and at least one: not {members}")
        for rank in members:
            whole_number("rank", rank, 0, world_size - 1)
        if shift is not None and members != (members[0], members[0] + shift):
            raise ValueError(f"a message by shift={shift} goes between two ranks, not {members}")

    def axis_link(self, mesh: Mesh | Mapping[str, int], axis: str) -> "Link":
        """The slowest `routes.Link` among the groups of a mesh axis, all of them active.

        mesh : a `Mesh`, or its axes as {"dp": 2, "tp": 4}.
        """
        mesh = _mesh(mesh)
        key = (mesh, axis)
        found = self._known.get(key)
        if found is None:
            mesh.check_axis(axis)
            self.check_mesh(mesh)
            found = self._traffic(tuple(mesh.group(0, axis)), mesh.size).slowest()
            self._known[key] = found
        return found

    def ring_links(self, mesh: Mesh, axis: str) -> "list[Link]":
        """Links of messages between neighbours in all rings of a mesh axis, one of each kind."""
        self.check_mesh(mesh)
        rings = np.array(family(mesh.group(0, axis), mesh.size))
        shifts = np.roll(rings, 1, 1) - rings
        found = {}
        for shift in np.unique(shifts).tolist():
            senders = rings[shifts == shift]
            first = int(senders[0])
            traffic = self._traffic((first, first + shift), mesh.size, shift)
            found |= {(*link[:2], link.curve): link for link in traffic.of_senders(senders)}
        return list(found.values())

    def bandwidth(self, mesh: Mesh | Mapping[str, int], axis: str) -> float:
        """Bytes/s of one rank's port while all groups of the axis communicate (bus bandwidth).

        mesh : a `Mesh`, or its axes as {"dp": 2, "tp": 4}.
        """
        return self.axis_link(mesh, axis).bandwidth

    def collective_cost(
        self, collective: str, payload: float, size: int, link: "Link"
    ) -> tuple[float, float]:
        """(hops, volume) of a collective on a link, by this cluster's algorithm and factors.

        ``overhead`` is converted to hops. The volume is larger than the bytes sent where a level's
        ``curve`` says that messages of this size do not reach the full bandwidth.
        """
        alone = (link.latency, link.bandwidth) if self.algorithm == "auto" else (0.0, 1.0)
        hops, volume = choose(self.algorithm, collective, payload, size, *alone)
        of_hops, of_volume = self.factors.get(collective, (1, 1))
        more = self.overhead / link.latency if hops and link.latency else 0.0
        return of_hops * hops + more, of_volume * volume / link.share(volume)

    def exchanged(
        self, parts: Any, members: Iterable[int], world_size: int, slowest: bool = False
    ) -> float:
        """The payload of an equal all-to-all over ``members`` on one level of links that takes as
        long as one of these ``parts`` (`exchanges.between`) on this cluster, in bytes.

        slowest : of all groups of its kind, on `axis_link`.
        """
        members = tuple(members)
        if len(members) == 1:
            return 0.0
        volume = self._traffic(members, world_size).exchanged(parts, None if slowest else members)
        return volume * len(members) / (len(members) - 1)

    def collective_time(self, collective: str, payload: float, size: int, link: "Link") -> float:
        """Seconds of a collective of ``payload`` bytes (the full tensor), alone on its axis."""
        return sum(self.collective_parts(collective, payload, size, link))

    def collective_parts(
        self, collective: str, payload: float, size: int, link: "Link"
    ) -> tuple[float, float]:
        """`collective_time` in two parts: (seconds of latency, seconds of data transfer)."""
        hops, volume = self.collective_cost(collective, payload, size, link)
        return hops * link.latency, volume / link.bandwidth if volume else 0.0

    # -- other clusters ----------------------------------------------------------------------------
    def scale_model(self, hidden: float = 1, slow_motion: float = 1, dtype: str = "") -> "Cluster":
        """This cluster for a model whose hidden sizes are divided by ``hidden``, in slow motion.

        Every ratio of durations is kept; see `tpviz.cluster.scale`. With ``dtype`` ("bfloat16" or
        "float16") the model's float32 stands for that. Raises ``ValueError`` for scales that cannot
        be and for a dtype that the device has no rate for.
        """
        return scaled(self, hidden, slow_motion, dtype)

    @property
    def caption(self) -> str:
        """The name; for a scale model, also the factors by which it was scaled."""
        return caption(self)

    def __repr__(self):
        return f"<Cluster {self.caption}: {self.size} x {self.device.name}>"

    # -- JSON --------------------------------------------------------------------------------------
    def to_json(self) -> str:
        """This cluster as JSON text; `from_json` reads it back, equal."""
        data = asdict(self)
        for name in ("table", "latencies"):
            data[name] = [[*key, value] for key, value in data[name].items()]
        return json.dumps(_renamed(data, inf, "infinite"), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Cluster":
        """The cluster of a JSON text. Raises ``ValueError`` where it describes none."""
        try:
            data = _renamed(json.loads(text), "infinite", inf)
            data["device"] = Device(**data["device"])
            data["levels"] = tuple(Level(**part) for part in data.get("levels", ()))
            data["torus"] = tuple(Dimension(**part) for part in data.get("torus", ()))
            for name in ("table", "latencies"):
                data[name] = {tuple(row[:-1]): row[-1] for row in data.get(name, ())}
            return cls(**data)
        except (json.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"this JSON describes no cluster: {error}") from None

    # -- pictures ----------------------------------------------------------------------------------
    def to_svg(self, mesh: Mesh | None = None, axis: str | None = None, theme: str = "auto") -> str:
        """A picture: the devices and their links, with a `Mesh` laid on them, as one SVG.

        axis : whose groups and links are shown; the last of the mesh when left out.
        """
        figure = figure_of(self)
        return figure.cluster_svg(figure.cluster_scene(self, mesh, axis), theme=theme)

    def describe(self, mesh: Mesh | None = None, axis: str | None = None) -> str:
        """The picture of `to_svg` in words."""
        figure = figure_of(self)
        return figure.describe(figure.cluster_scene(self, mesh, axis))

    def show(self, mesh: Mesh | None = None, axis: str | None = None) -> Shown:
        """The picture of `to_svg` and its text alternative, for a notebook."""
        return figure_of(self).Picture(self.to_svg(mesh, axis), self.describe(mesh, axis))


def _mesh(mesh: Mesh | Mapping[str, int]):
    """A `Mesh`, of one or of its axes."""
    return mesh if isinstance(mesh, Mesh) else Mesh(mesh)  # pyright: ignore[reportArgumentType]


def _renamed(data: Any, old: Any, new: Any) -> Any:
    """The nested data with every number ``old`` replaced: JSON has no infinity. Words stay."""
    if isinstance(data, dict):
        return {
            key: value if key in ("name", "source") else _renamed(value, old, new)
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [_renamed(value, old, new) for value in data]
    return new if data == old else data
