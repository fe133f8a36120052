"""The description of a cluster: what a device does per second, and what its links carry.

Times in seconds, rates per second, sizes in bytes; bandwidths count one direction.

>>> from tpviz import clusters
>>> box = clusters.nvlink_pairs()
>>> box.size, [level.name for level in box.levels]
(8, ['NVLink', 'PCIe'])
"""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import inf, isfinite, prod
from numbers import Real

from tpviz.checks import one_of, whole_number

from .collectives import ALGORITHMS, choose
from .routes import links_of


@dataclass(frozen=True)
class Device:
    """One accelerator: FLOP/s that GEMMs reach, per dtype; memory (bytes) and its bandwidth.

    A dtype that is not listed runs at the rate of the slowest one that is.
    """

    flops: dict
    memory: float
    memory_bandwidth: float
    name: str = "device"

    def __post_init__(self):
        if not isinstance(self.flops, dict) or not self.flops:
            raise ValueError(
                f'flops={self.flops!r}: give FLOP/s by dtype, as in {{"float32": 1e12}}'
            )
        for dtype, rate in self.flops.items():
            positive(f"flops[{dtype!r}]", rate)
        positive("memory", self.memory)
        positive("memory_bandwidth", self.memory_bandwidth)

    def __hash__(self):
        return hash((tuple(self.flops.items()), self.memory, self.memory_bandwidth, self.name))

    def time(self, flops, bytes=0, dtype="float32"):
        """Seconds of a kernel: its FLOPs or its memory traffic, whichever takes longer (roofline:
        Williams, Waterman, Patterson 2009)."""
        rate = self.flops.get(dtype) or min(self.flops.values())
        return max(flops / rate, bytes / self.memory_bandwidth)

    def divided(self, flops=1.0, memory=1.0, bandwidth=1.0):
        """The same device, smaller by these factors."""
        return replace(
            self,
            flops={dtype: rate / flops for dtype, rate in self.flops.items()},
            memory=self.memory / memory,
            memory_bandwidth=self.memory_bandwidth / bandwidth,
        )


@dataclass(frozen=True)
class Level:
    """One level of a hierarchy: ``units`` of the level below, joined by these links.

    p2p : between two devices of different units, nobody else sending.
    group : out of ONE unit of the level below when all its devices send at once (its NIC or NICs).
    latency : seconds of one hop.
    """

    name: str
    units: int
    p2p: float
    group: float
    latency: float = 0.0

    def __post_init__(self):
        whole_number(f"units of level {self.name!r}", self.units, 2)
        positive(f"p2p of level {self.name!r}", self.p2p)
        positive(f"group of level {self.name!r}", self.group)
        not_negative(f"latency of level {self.name!r}", self.latency)
        if self.group < self.p2p:
            raise ValueError(
                f"level {self.name!r}: one pair gets p2p={self.p2p:g} bytes/s, which is more than "
                f"group={self.group:g} that the whole unit can send: use p2p up to {self.group:g}, "
                f"or group of {self.p2p:g} or more"
            )

    def slower(self, link, time):
        """Bandwidth divided by ``link``, latency multiplied by ``time``."""
        return replace(
            self, p2p=self.p2p / link, group=self.group / link, latency=self.latency * time
        )


@dataclass(frozen=True)
class Dimension:
    """One dimension of a torus: a ring of ``size`` devices, ``links`` parallel links each way."""

    name: str
    size: int
    bandwidth: float
    latency: float = 0.0
    links: int = 1

    def __post_init__(self):
        whole_number(f"size of dimension {self.name!r}", self.size, 2)
        whole_number(f"links of dimension {self.name!r}", self.links)
        positive(f"bandwidth of dimension {self.name!r}", self.bandwidth)
        not_negative(f"latency of dimension {self.name!r}", self.latency)

    def slower(self, link, time):
        """Bandwidth divided by ``link``, latency multiplied by ``time``."""
        return replace(self, bandwidth=self.bandwidth / link, latency=self.latency * time)


@dataclass(frozen=True)
class Cluster:
    """Equal devices, numbered from the inside out, on a hierarchy of levels or on a torus.

    Parameters
    ----------
    levels : `Level` tuple from inside out; or
    torus : `Dimension` tuple, the one of neighbouring ranks first. One of the two, not both.
    rings : "multi" (a group drives all links of its members in a unit, as NCCL does) or "single".
    algorithm : of collectives: "ring", "tree", "recursive_doubling", or "auto" for the fastest.
    table : {(stride, size): bandwidth} measured with all groups of that kind active: overrides the
        rule for groups of ``size`` ranks that lie ``stride`` apart.
    latencies : {(stride, size): seconds of one hop}, likewise.
    source : where the numbers come from.
    hidden_scale, slow_motion : what `scale_model` has done to it.

    Raises ``ValueError`` with the numbers that clash.
    """

    name: str
    device: Device
    levels: tuple = ()
    torus: tuple = ()
    rings: str = "multi"
    algorithm: str = "ring"
    table: dict = field(default_factory=dict)
    latencies: dict = field(default_factory=dict)
    source: str = ""
    hidden_scale: float = 1.0
    slow_motion: float = 1.0

    def __post_init__(self):
        for name in ("levels", "torus"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if bool(self.levels) == bool(self.torus):
            raise ValueError(
                f"cluster {self.name!r} needs levels or torus, one of the two: "
                f"it has {len(self.levels)} levels and {len(self.torus)} torus dimensions"
            )
        one_of("rings", self.rings, ("multi", "single"))
        one_of("algorithm", self.algorithm, (*ALGORITHMS, "auto"))
        for what, check in (("table", positive), ("latencies", not_negative)):
            for key, value in getattr(self, what).items():
                self._check_key(what, key)
                check(f"{what}[{key}]", value)

    def _check_key(self, what, key):
        if not (isinstance(key, tuple) and len(key) == 2):
            raise ValueError(f"{what}: the key {key!r} must be (stride, group size), as in (1, 4)")
        stride = whole_number(f"stride in {what}[{key}]", key[0])
        size = whole_number(f"group size in {what}[{key}]", key[1], 2)
        if stride * (size - 1) >= self.size:
            raise ValueError(
                f"{what}[{key}]: {size} ranks {stride} apart do not fit a cluster of {self.size}"
            )

    def __hash__(self):
        return hash((self.name, self.device, self.levels, self.torus, self.rings, self.algorithm))

    @cached_property
    def size(self):
        """Number of devices."""
        return prod(part.units for part in self.levels) or 1 if self.levels else prod(
            part.size for part in self.torus
        )

    # -- time ------------------------------------------------------------------------------------
    def check_world(self, world_size):
        """Raise ``ValueError`` unless that many ranks fit, one on a device."""
        if world_size > self.size:
            raise ValueError(
                f"{world_size} ranks do not fit the {self.size} devices of {self.name}: "
                f"use {self.size} ranks or fewer, or a larger cluster"
            )

    def link(self, members, world_size, shift=None):
        """The `routes.Link` of a group of ranks: what `predict`, `simulate` and the pacer share.

        shift : for a message, receiver minus sender; ``members`` is then (sender, receiver).
        """
        key = (tuple(members), world_size, shift)
        if key not in self._links:
            self.check_world(world_size)
            self._links[key] = links_of(self, *key)
        return self._links[key]

    @cached_property
    def _links(self):
        return {}

    def axis_link(self, mesh, axis):
        """The slowest `routes.Link` among the groups of a mesh axis, all of them active."""
        self.check_world(mesh.size)
        key = (mesh, axis)
        if key not in self._links:
            links = [self.link(group, mesh.size) for group in mesh.groups(axis)]
            self._links[key] = min(links, key=lambda link: link.bandwidth)
        return self._links[key]

    def bandwidth(self, mesh, axis):
        """Bytes/s of one rank's port while all groups of the axis communicate (bus bandwidth)."""
        return self.axis_link(mesh, axis).bandwidth

    def collective_cost(self, collective, payload, size, link):
        """(hops, volume) of a collective on a link, by this cluster's algorithm."""
        if self.algorithm != "auto":
            return choose(self.algorithm, collective, payload, size, 0.0, 1.0)
        return choose("auto", collective, payload, size, link.latency, link.bandwidth)

    def collective_time(self, collective, payload, size, link):
        """Seconds of a collective of ``payload`` bytes (the full tensor), alone on its axis."""
        hops, volume = self.collective_cost(collective, payload, size, link)
        return hops * link.latency + (volume / link.bandwidth if volume else 0.0)

    # -- other clusters ----------------------------------------------------------------------------
    def scale_model(self, hidden=1, slow_motion=1):
        """This cluster for a model whose hidden sizes are divided by ``hidden``, in slow motion.

        Dividing all hidden sizes by c divides the FLOPs of GEMMs by c^2 and activation bytes by c;
        so compute rates are divided by c^2, link rates and memory bandwidth by c, memory by c^2:
        every duration stays. Then all of it runs ``slow_motion`` times slower. Weights and their
        gradients shrink by c^2, so traffic of data parallelism is too light by c in such a model.
        """
        positive("hidden", hidden)
        positive("slow_motion", slow_motion)
        link = hidden * slow_motion
        device = self.device.divided(hidden**2 * slow_motion, hidden**2, link)
        return replace(
            self,
            device=device,
            levels=tuple(part.slower(link, slow_motion) for part in self.levels),
            torus=tuple(part.slower(link, slow_motion) for part in self.torus),
            table={key: value / link for key, value in self.table.items()},
            latencies={key: value * slow_motion for key, value in self.latencies.items()},
            hidden_scale=self.hidden_scale * hidden,
            slow_motion=self.slow_motion * slow_motion,
        )

    @property
    def caption(self):
        """The name, and what a scale model stands for."""
        words = [f"hidden sizes 1/{self.hidden_scale:g}"] if self.hidden_scale != 1 else []
        words += [f"{self.slow_motion:g} x slow motion"] if self.slow_motion != 1 else []
        return self.name + (f" (scale model: {', '.join(words)})" if words else "")

    def __repr__(self):
        return f"<Cluster {self.caption}: {self.size} x {self.device.name}>"

    # -- JSON --------------------------------------------------------------------------------------
    def to_json(self):
        """This cluster as JSON text; `from_json` reads it back, equal."""
        data = asdict(self)
        for name in ("table", "latencies"):
            data[name] = [[*key, value] for key, value in data[name].items()]
        return json.dumps(data, indent=2)

    @classmethod
    def from_json(cls, text):
        """The cluster of a JSON text. Raises ``ValueError`` where it describes none."""
        try:
            data = json.loads(text)
            data["device"] = Device(**data["device"])
            data["levels"] = tuple(Level(**part) for part in data.get("levels", ()))
            data["torus"] = tuple(Dimension(**part) for part in data.get("torus", ()))
            for name in ("table", "latencies"):
                data[name] = {(stride, size): v for stride, size, v in data.get(name, ())}
            return cls(**data)
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"this JSON describes no cluster: {error}") from None


def positive(name, value):
    """Raise ``ValueError`` unless the value is a finite number above 0 (infinite links are)."""
    if isinstance(value, bool) or not isinstance(value, Real) or not value > 0:
        raise ValueError(f"{name}={value!r} must be a number above 0")
    if value == inf and "flops" in name:
        raise ValueError(f"{name} must be finite")


def not_negative(name, value):
    """Raise ``ValueError`` unless the value is a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value < 0:
        raise ValueError(f"{name}={value!r} must be a number of 0 or more")
