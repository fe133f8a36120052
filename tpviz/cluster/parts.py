"""What clusters are made of: devices, levels of links, dimensions of a torus; and their checks.

Times in seconds, rates per second, sizes in bytes; bandwidths count one direction.
"""

from dataclasses import dataclass, fields, replace
from math import inf, isclose
from numbers import Real
from sys import float_info
from typing import Any

from tpviz.core.checks import one_of, settle, whole_number

DTYPES = (
    "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8",
)  # fmt: skip
"""The dtypes a device may have a rate for: torch's names of them."""
USUAL_NAMES = {
    "fp64": "float64", "f64": "float64", "double": "float64", "fp32": "float32", "f32": "float32",
    "float": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16", "f16": "float16",
    "half": "float16", "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn",
}  # fmt: skip
POINTWISE = ("free", "eager", "fused")
ATTENTION = ("flash", "softmax")


@dataclass(frozen=True)
class Device:
    """One accelerator: FLOP/s of GEMMs, per dtype; memory (bytes) and its bandwidth.

    flops : {dtype: FLOP/s} by torch's names of dtypes. An unlisted one runs at the slowest listed
        rate.

    An ideal device reaches these rates in kernels of any size. These arguments describe one that
    does not; see `time` and docs/adr/0021:

    gemm_efficiency, memory_efficiency : the shares of ``flops`` and of ``memory_bandwidth`` that
        kernels reach at most.
    unhidden : share of a kernel's memory traffic that its arithmetic does not hide, 0 to 1.
    startup : seconds in which a kernel fills and drains the device.
    launch : least seconds from one kernel to the next: the host's time to launch one.
    check : host seconds per rank of the group to check a collective before its launch, as debug
        modes do. Used in pipelines, unless ``pointwise`` is "free".
    pointwise : the cost of memory-bound kernels: zero ("free"), that of PyTorch's own operators
        ("eager"), or of kernels fused as in Megatron-LM and Transformer Engine ("fused"); see
        `tpviz.schemes.gpt.pointwise`.
    attention : "flash" (Dao et al. 2022), fused, at ``attention_efficiency`` of what GEMMs reach;
        or "softmax" with the scores in memory, GEMMs that compute the masked half as well.
    spread : seconds of memory-bound kernels, and those by which attention takes longer than its
        FLOPs as a GEMM, per FLOP of the other kernels; set by `Strategy.device`.
    host : bytes/s to the memory of its host, and as many back at once; 0 where nobody said.

    Raises ``ValueError`` for unknown dtypes, rates not above 0 and shares not within 0 to 1.
    """

    flops: dict[str, float]
    memory: float
    memory_bandwidth: float
    name: str = "device"
    gemm_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    unhidden: float = 0.0
    startup: float = 0.0
    launch: float = 0.0
    check: float = 0.0
    pointwise: str = "free"
    attention: str = "flash"
    attention_efficiency: float = 1.0
    spread: float = 0.0
    host: float = 0.0

    def __post_init__(self):
        if not isinstance(self.flops, dict) or not self.flops:
            raise ValueError(
                f'flops={self.flops!r}: give FLOP/s by dtype, as in {{"float32": 1e12}}'
            )
        rates = {check_dtype(d): finite(f"flops[{d!r}]", rate) for d, rate in self.flops.items()}
        object.__setattr__(self, "flops", rates)  # a copy: nobody else holds it
        checked_name(self, "device")
        settle(self, "memory", finite)
        settle(self, "memory_bandwidth", positive)
        for name in ("gemm_efficiency", "memory_efficiency", "attention_efficiency"):
            settle(self, name, share)
        for name in ("unhidden", "startup", "launch", "check", "spread", "host"):
            settle(self, name, not_negative)
        if self.unhidden > 1:
            raise ValueError(f"unhidden={self.unhidden:g} is a share: use 0 to 1")
        one_of("pointwise", self.pointwise, POINTWISE)
        one_of("attention", self.attention, ATTENTION)

    def __hash__(self):
        rest = (getattr(self, part.name) for part in fields(self) if part.name != "flops")
        return hash((tuple(self.flops.items()), *rest))

    def time(self, flops: float, bytes: float = 0, dtype: str = "float32") -> float:
        """Seconds of a kernel: max(max(a + unhidden m, m) + startup, launch) + spread FLOPs, or 0.0
        without work. a = FLOPs / (rate gemm_efficiency), m = bytes / (bandwidth memory_efficiency).

        An ideal device follows the roofline model (Williams, Waterman, Patterson 2009).
        Compute-bound GEMMs reach 1 / (1 + f_half / f + F_half / F) of their rate at f FLOP/byte and
        F FLOPs, f_half = unhidden rate / bandwidth, F_half = startup rate: the half-performance
        intensity of Hockney and Curington (1989) and Hockney's n_half. For 2 m n k FLOPs 1 / f goes
        as 1/m + 1/n + 1/k: a matrix that is narrow in one dim is slow (derived).
        """
        if not flops and not bytes:
            return 0.0
        rate = self.flops.get(dtype) or min(self.flops.values())
        traffic = bytes / (self.memory_bandwidth * self.memory_efficiency)
        arithmetic = flops / (rate * self.gemm_efficiency)
        alone = max(arithmetic + self.unhidden * traffic, traffic) + self.startup
        return max(alone, self.launch) + self.spread * flops

    @property
    def host_rate(self) -> float:
        """``host``. Raises ``ValueError`` where nobody said."""
        if not self.host:
            raise ValueError(
                f"the device {self.name!r} does not say how fast it reaches its host's memory: "
                "give it host= in bytes/s, such as 31.5e9 for 16 lanes of PCIe 4.0"
            )
        return self.host

    @property
    def plain(self) -> bool:
        """Whether a step takes what `time` says of its kernels that carry FLOPs, and no more."""
        return self.pointwise == "free" and self.attention_factor == 1

    @property
    def attention_factor(self) -> float:
        """How many times as long as its FLOPs in a GEMM attention's arithmetic takes."""
        return 2.0 if self.attention == "softmax" else 1 / self.attention_efficiency

    @property
    def losses(self) -> str:
        """Text listing what makes the device slower than an ideal one; "" if nothing does."""
        percent = lambda share: share != 1 and f"{100 * share:.3g} %"
        said = {
            "GEMM efficiency": percent(self.gemm_efficiency),
            "memory efficiency": percent(self.memory_efficiency),
            "attention efficiency": percent(self.attention_efficiency),
            "memory traffic not hidden": self.unhidden and f"{100 * self.unhidden:.3g} %",
            "kernel start-up": self.startup and f"{1e6 * self.startup:.3g} µs",
            "kernel launch": self.launch and f"{1e6 * self.launch:.3g} µs",
            "memory-bound kernels": self.pointwise != "free" and self.pointwise,
            "attention": self.attention != "flash" and self.attention,
        }
        return ", ".join(f"{name} {words}" for name, words in said.items() if words)

    def divided(
        self, flops: float = 1.0, memory: float = 1.0, bandwidth: float = 1.0, time: float = 1.0
    ) -> "Device":
        """The same device with rates and memory divided by these factors; ``time`` : factor by
        which its start-up and launch times are multiplied."""
        return replace(
            self,
            flops={dtype: rate / flops for dtype, rate in self.flops.items()},
            memory=self.memory / memory,
            memory_bandwidth=self.memory_bandwidth / bandwidth,
            startup=self.startup * time,
            launch=self.launch * time,
            check=self.check * time,
            spread=self.spread * flops,
            host=self.host / bandwidth,
        )


@dataclass(frozen=True)
class Level:
    """One level of a hierarchy: ``units`` of the level below, joined by these links.

    p2p : between two devices of different units while no other sends: one NIC, if there are NICs.
    group : out of ONE unit of the level below while all its devices send; by default ``nics`` x p2p
        (p2p without ``nics``).
    latency : seconds of one hop. message : extra seconds of a message between two devices.
    nics : of one unit of the level below; ``group`` is then at most what all of them reach.
    direct : every unit has its own links to every other unit (as NVLink between the four A100s of a
        node), so a ring over k units drives k - 1 of them; otherwise a switch joins the units.
    curve : ((bytes, share), ...), sorted by bytes: the measured share of the bandwidth that
        collectives reach whose outermost level this is, by the bytes through a rank's port;
        interpolated in the logarithm of the bytes, constant beyond the points.

    Raises ``ValueError`` with the numbers that contradict one another.
    """

    name: str
    units: int
    p2p: float
    group: float = None  # pyright: ignore[reportAssignmentType]
    latency: float = 0.0
    nics: int | None = None
    direct: bool = False
    curve: tuple[tuple[float, float], ...] = ()
    message: float = 0.0

    def __post_init__(self):
        checked_name(self, "level")
        where = f" of level {self.name!r}"
        settle(self, "units", whole_number, 2, where=where)
        settle(self, "p2p", positive, where=where)
        settle(self, "latency", not_negative, where=where)
        settle(self, "message", not_negative, where=where)
        one_of(f"direct{where}", self.direct, (True, False))
        if self.nics is not None:
            settle(self, "nics", whole_number, where=where)
        if self.group is None:
            object.__setattr__(self, "group", self.p2p * (self.nics or 1))
        settle(self, "group", positive, where=where)
        self._check_group()
        settle(self, "curve", _curve, where=where)

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
            self,
            p2p=self.p2p / link,
            group=self.group / link,
            latency=self.latency * time,
            message=self.message * time,
            curve=tuple((size * time / link, reached) for size, reached in self.curve),
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
        settle(self, "size", whole_number, 2, where=where)
        settle(self, "links", whole_number, where=where)
        settle(self, "bandwidth", positive, where=where)
        settle(self, "latency", not_negative, where=where)

    def slower(self, link: float, time: float) -> "Dimension":
        """Bandwidth divided by ``link``, latency multiplied by ``time``."""
        return replace(self, bandwidth=self.bandwidth / link, latency=self.latency * time)


# -- checks --------------------------------------------------------------------------------------
def checked_name(owner: Any, what: str) -> None:
    """Raise ``ValueError`` unless ``owner.name`` is a non-empty text. what : named in the error."""
    if not isinstance(owner.name, str) or not owner.name.strip():
        raise ValueError(f"a {what} needs a name, not {owner.name!r}")


def check_dtype(dtype: str) -> str:
    """``dtype`` if it is in DTYPES; ``ValueError`` that suggests torch's name for it otherwise."""
    if dtype in DTYPES:
        return dtype
    near = USUAL_NAMES.get(str(dtype).removeprefix("torch.").lower())
    bare = str(dtype).removeprefix("torch.")
    near = bare if bare in DTYPES else near
    hint = f"write {near!r}" if near else f"use {', '.join(DTYPES)}"
    raise ValueError(f"flops has the dtype {dtype!r}, which is no dtype's name: {hint}")


def positive(name: str, value: float) -> float:
    """``value`` as a float, infinity allowed (a free link); ``ValueError`` unless it is above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not value > 0:
        raise ValueError(f"{name}={value!r} must be a number above 0")
    return _float(name, value)


def finite(name: str, value: float) -> float:
    """``value`` as a float; ``ValueError`` unless it is above 0 and finite."""
    if positive(name, value) == inf:
        raise ValueError(f"{name} must be finite")
    return float(value)


def share(name: str, value: float) -> float:
    """``value`` as a float; ``ValueError`` unless it is above 0 and at most 1."""
    if positive(name, value) > 1:
        raise ValueError(f"{name}={value!r} is a share: use a number above 0, up to 1")
    return float(value)


def _curve(name: str, value: Any) -> tuple[tuple[float, float], ...]:
    """The points of a curve, sizes growing; ``ValueError`` otherwise."""
    try:
        points = tuple((bytes, reached) for bytes, reached in value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}={value!r}: give points (bytes, share of the bandwidth), as in ((1e6, 0.5), )"
        ) from None
    points = tuple(
        (finite(f"bytes in {name}", bytes), share(f"share in {name}", reached))
        for bytes, reached in points
    )
    sizes = [bytes for bytes, _ in points]
    if sizes != sorted(set(sizes)):
        raise ValueError(f"{name}: bytes must grow from point to point, not {sizes}")
    return points


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
    """``whole / part`` rounded up, tolerant of floating-point error."""
    return -int(-(whole / part * (1 - 1e-12)) // 1)
