"""``predict``: a strategy's step on a cluster by formula, in well under a millisecond. No torch.

>>> from tpviz import GPT, Megatron, clusters
>>> p = predict(Megatron(tp=2), GPT(), clusters.nvlink_pairs())
>>> p.badge, sum(p.parts.values()) == p.step_time, p.fits
('predicted', True, True)
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tpviz.cluster import Cluster
from tpviz.cluster.clock.cost import Memory, by_axis, counted, crowding, on_shared_cores, parts
from tpviz.core.mesh import Mesh
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.core.workload import GPT
from tpviz.schemes.experts.cut import each_group
from tpviz.schemes.strategy import Strategy

from .checks import check_cluster, check_fit
from .fitted_range import nominal, outside
from .room import Training, check_training, need, room, words
from .utilization import utilization

if TYPE_CHECKING:
    from tpviz.cluster.clock.cost import Segment
    from tpviz.core.trace.ledger import Ledger


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """What the formulas say about one step of one rank; every rank's is the same.

    segments : tuple of `tpviz.cluster.clock.cost.Segment` in time order; seconds are the cluster's.
    training : how a 16-bit model is trained, which decides its memory; None: the usual way.
    """

    strategy: Strategy
    workload: GPT
    cluster: Cluster
    segments: "tuple[Segment, ...]"
    training: Training | None = None

    @cached_property
    def badge(self) -> str:
        """ "predicted"; if the cluster has fitted numbers, also what of this run is outside of the
        range that they were fitted in."""
        words = "; ".join(self.outside)
        return f"predicted, outside of the fitted range ({words})" if words else "predicted"

    @cached_property
    def outside(self) -> list[str]:
        """What of this run is outside of the range that the cluster's numbers were fitted in."""
        return outside(self.strategy, self.workload, self.cluster)

    @cached_property
    def parts(self) -> dict[str, float]:
        """{part: seconds} of `tpviz.cluster.clock.cost.PARTS`, which sum to the step. The two
        waits, for bandwidth and for latency, sum to the exposed communication."""
        return parts(*self._counted)

    @cached_property
    def _counted(self):
        return counted(self.segments)

    @property
    def step_time(self) -> float:
        """Seconds of one step."""
        return sum(self.parts.values())

    @property
    def update_time(self) -> float:
        """Seconds of an update of parameters; of those of a `tpviz.DiLoCo` round, the mean."""
        return self.step_time / self.strategy.updates

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all ranks together."""
        return self.workload.batch * self.workload.seq / self.step_time

    @property
    def mfu(self) -> float:
        """`utilization` of model FLOPs."""
        return utilization(self.workload, self.cluster, self.strategy.world_size, self.step_time)

    @cached_property
    def exposed(self) -> dict[str, float]:
        """{axis: seconds that kernels wait for it}: exposed communication, latency included."""
        segments, times = self._counted
        return by_axis(segments, "exposed", times)

    @cached_property
    def hidden(self) -> dict[str, float]:
        """{axis: seconds of communication that kernels do not wait for}."""
        segments, times = self._counted
        return by_axis(segments, "hidden", times)

    @property
    def overlap(self) -> float:
        """Fraction of communication time that kernels do not wait for; 0.0 without any."""
        exposed, hidden = sum(self.exposed.values()), sum(self.hidden.values())
        return hidden / (exposed + hidden) if hidden else 0.0

    def ledger(self) -> "Ledger":
        """The `Ledger` of one step of one rank."""
        return self.strategy.ledger(self.workload)

    def memory(self) -> Memory:
        """The `tpviz.cluster.clock.cost.Memory` of one rank, bytes by kind: of our own program, and
        of a model in 16 bits of training in mixed precision (`tpviz.verbs.room`). Raises
        ``NotImplementedError`` where the strategy has no formula of it."""
        return Memory(self._memory)

    @cached_property
    def _memory(self):
        return need(self.strategy, self.workload, self.cluster, self.training)

    @property
    def fits(self) -> bool:
        """Whether a rank's memory fits its device."""
        return self._memory.total <= room(self.cluster, self.training)

    # -- in words ----------------------------------------------------------------------------------
    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: the parts, then each axis, then memory."""
        step = self.step_time
        rows = [["part", "time", "share"]]
        rows += [[name, show_seconds(s), _share(s, step)] for name, s in self.parts.items()]
        rows.append(["step", show_seconds(step), "100 %"])
        if (n := self.strategy.updates) > 1:
            rows.append([f"of {n} updates, each on average", show_seconds(step / n), _share(1, n)])
        for kind in ("exposed", "hidden"):
            rows += [
                [f"{kind} on {axis}", show_seconds(s), _share(s, step)]
                for axis, s in getattr(self, kind).items()
            ]
        with suppress(NotImplementedError):
            memory, total = self._memory, self._memory.total
            rows += [[f"{k} memory", show_bytes(n), _share(n, total)] for k, n in memory.items()]
        return rows

    def describe(self) -> str:
        """One paragraph for people who cannot see the picture."""
        shares = ", ".join(
            f"{_share(s, self.step_time)} {name}" for name, s in self.parts.items() if s
        )
        axes = " and ".join(f"{show_seconds(s)} for {axis}" for axis, s in self.exposed.items())
        n, each = self.strategy.updates, show_seconds(self.update_time)
        return (
            f"Predicted: one step of {self.strategy.short} on {self.cluster.caption} takes "
            f"{show_seconds(self.step_time)}: {shares}. {nominal(self.cluster)}"
            + f"It is a round of {n} updates, {each} each on average. " * (n > 1)
            + (f"Kernels wait {axes}. " if axes else "Nothing is communicated. ")
            + self.fit_in_words()
            + f" {self.badge[0].upper()}{self.badge[1:]}." * (self.badge != "predicted")
        )

    def fit_in_words(self) -> str:
        """A sentence: whether a rank's memory fits its device, and what was counted."""
        size = show_bytes(room(self.cluster, self.training))
        try:
            needs = show_bytes(self._memory.total)
        except NotImplementedError:
            return "There is no formula of its memory."
        fit = f"A rank needs {needs} of {size}: it {'fits' if self.fits else 'does not fit'}."
        return f"{fit} {words(self.workload, self.cluster, self.training)}".rstrip()

    def __repr__(self):
        return (
            f"<Prediction {self.strategy.short} on {self.cluster.caption}: "
            f"{show_seconds(self.step_time)} a step, predicted>"
        )


def predict(
    strategy: Strategy, workload: GPT, cluster: Cluster, *, training: Training | None = None
) -> Prediction:
    """Predict one step of ``strategy`` on ``workload``, one rank per device: a `Prediction`.

    With more ranks than shared ``cores``, kernels take ranks / cores times as long, as if all ranks
    computed all the time: too long in pipeline bubbles, where others wait. The cores' time for
    moving bytes is added by `tpviz.cluster.clock.cost.on_shared_cores`.

    Memory that exceeds the device is no error here: see ``.fits`` and `room.check_memory`.
    training : a `tpviz.Training`, of models in 16 bits. Raises ``ValueError`` where sizes do not
    divide, or the cluster has fewer devices than ranks.
    """
    check(strategy, workload, cluster)
    check_training(training, workload)
    on, ranks = cluster, strategy.world_size
    if (longer := crowding(cluster, ranks)) > 1:
        on = replace(cluster, device=cluster.device.divided(longer, 1, longer, longer))
    mesh, seen = Mesh(strategy.axes), each_group(strategy, workload)
    steps = [strategy.cost(of_group, on, mesh) for of_group in seen]
    # a pipeline has thousands of segments: their sum takes as long as all else
    seconds = lambda step: sum(parts(*counted(step)).values())
    segments = max(steps, key=seconds) if len(steps) > 1 else steps[0]
    segments = on_shared_cores(segments, cluster, ranks)
    return Prediction(strategy, workload, cluster, tuple(segments), training)


def check(strategy: Strategy, workload: GPT, cluster: Cluster) -> None:
    """Raise ``ValueError`` unless these are what they should be and their sizes fit together."""
    check_fit(strategy, workload)
    check_cluster(cluster)
    cluster.check_world(strategy.world_size)


def _share(part: float, whole: float):
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"
