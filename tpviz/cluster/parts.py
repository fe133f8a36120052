"""What clusters are made of: devices, levels of links, dimensions of a torus; and their checks.

Times in seconds, rates per second, sizes in bytes; bandwidths count one direction.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isclose
from numbers import Real
from sys import float_info
from typing import Any

from tpviz.checks import one_of, whole_number

DTYPES = (
    "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8",
)  # fmt: skip
"""The dtypes a device may have a rate for: torch's names of them."""
USUAL_NAMES = {
    "fp64": "float64", "f64": "float64", "double": "float64", "fp32": "float32", "f32": "float32",
    "float": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16",
    "half": "float16", "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn",
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """One accelerator: FLOP/s that GEMMs reach, per dtype; memory (bytes) and its bandwidth.

    flops : {dtype: FLOP/s} by torch's names of dtypes. One that is not listed runs at the rate of
    the slowest that is.

    Raises ``ValueError`` for unknown dtypes and for rates that are not above 0.
    """

    flops: dict[str, float]
    memory: float
    memory_bandwidth: float
    name: str = "device"

    def __post_init__(self):
        if not isinstance(self.flops, dict) or not self.flops:
            raise ValueError(
                f'flops={self.flops!r}: give FLOP/s by dtype, as in {{"float32": 1e12}}'
            )
        rates = {check_dtype(d): finite(f"flops[{d!r}]", rate) for d, rate in self.flops.items()}
        object.__setattr__(self, "flops", rates)  # a copy: nobody else holds it
        checked_name(self, "device")
        keep(self, "memory", finite)
        keep(self, "memory_bandwidth", positive)

    def __hash__(self):
        return hash((tuple(self.flops.items()), self.memory, self.memory_bandwidth, self.name))

    def time(self, flops: float, bytes: float = 0, dtype: str = "float32") -> float:
        """Seconds of a kernel: its FLOPs or its memory traffic, whichever takes longer (roofline:
        Williams, Waterman, Patterson 2009)."""
        rate = self.flops.get(dtype) or min(self.flops.values())
        return max(flops / rate, bytes / self.memory_bandwidth)

    def divided(self, flops: float = 1.0, memory: float = 1.0, bandwidth: float = 1.0) -> "Device":
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

    p2p : between two devices of different units, nobody else sending: one NIC, if there are NICs.
    group : out of ONE unit of the level below when all its devices send at once; ``nics`` x p2p
        when left out (p2p without ``nics``).
    latency : seconds of one hop.
    nics : of one unit of the level below; ``group`` may then say less than all of them together,
        not more.
    direct : every unit has links of its own to every other unit (as NVLink between the four A100s
        of a node), so a ring over k units drives k - 1 of them; without, units meet in a switch.

    Raises ``ValueError`` with the numbers that contradict one another.
    """

    name: str
    units: int
    p2p: float
    group: float = None  # pyright: ignore[reportAssignmentType]
    latency: float = 0.0
    nics: int | None = None
    direct: bool = False

    def __post_init__(self):
        checked_name(self, "level")
        where = f" of level {self.name!r}"
        keep(self, "units", whole_number, where, 2)
        keep(self, "p2p", positive, where)
        keep(self, "latency", not_negative, where)
        one_of(f"direct{where}", self.direct, (True, False))
        if self.nics is not None:
            keep(self, "nics", whole_number, where)
        if self.group is None:
            object.__setattr__(self, "group", self.p2p * (self.nics or 1))
        keep(self, "group", positive, where)
        self._check_group()

    def _check_group(self):
        most = inf if self.nics is None else self.nics * self.p2p
        if self.group < self.p2p and not isclose(self.group, self.p2p):
            raise ValueError(
                f"level {self.name!r}: one pair gets p2p={self.p2p:g} bytes/s, which is more than "
                f"group={self.group:g} that the whole unit can send: use p2p up to {self.group:g}, "
                f"or group of {self.p2p:g} or more"
            )
        if self.group > most and not isclose(self.group, most):
            raise ValueError(
                f"level {self.name!r}: group={self.group:g} bytes/s is more than nics={self.nics} "
                f"of p2p={self.p2p:g} carry: use group up to {most:g}, "
                f"or nics={ceil_div(self.group, self.p2p)}"
            )

    def slower(self, link: float, time: float) -> "Level":
        """Bandwidth divided by ``link``, latency multiplied by ``time``."""
        return replace(
            self, p2p=self.p2p / link, group=self.group / link, latency=self.latency * time
        )


@dataclass(frozen=True)
class Dimension:
    """One dimension of a torus: a ring of ``size`` devices, ``links`` parallel links each way.

    bandwidth : of one link, one direction. latency : seconds from a device to the next.
    """

    name: str
    size: int
    bandwidth: float
    latency: float = 0.0
    links: int = 1

    def __post_init__(self):
        checked_name(self, "dimension")
        where = f" of dimension {self.name!r}"
        keep(self, "size", whole_number, where, 2)
        keep(self, "links", whole_number, where)
        keep(self, "bandwidth", positive, where)
        keep(self, "latency", not_negative, where)

    def slower(self, link: float, time: float) -> "Dimension":
        """Bandwidth divided by ``link``, latency multiplied by ``time``."""
        return replace(self, bandwidth=self.bandwidth / link, latency=self.latency * time)


# -- checks --------------------------------------------------------------------------------------
def keep(owner: Any, name: str, check: Callable[..., Any], where: str = "", *bounds: Any) -> None:
    """Check a field of a frozen dataclass and keep what the check gives, a plain number."""
    object.__setattr__(owner, name, check(name + where, getattr(owner, name), *bounds))


def checked_name(owner: Any, what: str) -> None:
    """Raise ``ValueError`` unless the thing has a name to be called by."""
    if not isinstance(owner.name, str) or not owner.name.strip():
        raise ValueError(f"a {what} needs a name, not {owner.name!r}")


def check_dtype(dtype: str) -> str:
    """The dtype, if it is one of DTYPES; ``ValueError`` with torch's name of it otherwise."""
    if dtype in DTYPES:
        return dtype
    near = USUAL_NAMES.get(str(dtype).removeprefix("torch.").lower())
    bare = str(dtype).removeprefix("torch.")
    near = bare if bare in DTYPES else near
    hint = f"write {near!r}" if near else f"use {', '.join(DTYPES)}"
    raise ValueError(f"flops has the dtype {dtype!r}, which is no dtype's name: {hint}")


def positive(name: str, value: float) -> float:
    """``value`` as a float; ``ValueError`` unless it is above 0. Infinite is a link of no cost."""
    if isinstance(value, bool) or not isinstance(value, Real) or not value > 0:
        raise ValueError(f"{name}={value!r} must be a number above 0")
    return _float(name, value)


def finite(name: str, value: float) -> float:
    """``value`` as a float; ``ValueError`` unless it is above 0 and finite."""
    if positive(name, value) == inf:
        raise ValueError(f"{name} must be finite")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """``value`` as a float; ``ValueError`` unless it is a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < inf:
        raise ValueError(f"{name}={value!r} must be a number of 0 or more")
    return _float(name, value)


def _float(name: str, value: float):
    """A float of a number; ``ValueError`` for a whole number that is none."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: the most is {float_info.max:g}") from None


def ceil_div(whole: float, part: float) -> int:
    """How many parts are needed; rounding does not add one."""
    return -int(-(whole / part * (1 - 1e-12)) // 1)
