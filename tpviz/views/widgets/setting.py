"""From knobs to a configuration and what formulas say of it: all that happens while a slider moves.

The choices beside the strategy are the cluster, how small a model of it, and how slow its motion
must be for an emulated run to be faithful. Nothing here starts a rank, simulates, or imports torch.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import ipywidgets

from tpviz import clusters
from tpviz.cluster import Cluster
from tpviz.cluster.scale import HALVES
from tpviz.core.workload import GPT
from tpviz.ranks.most import check_world_size, max_ranks
from tpviz.schemes.ownership import ownership
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import Prediction, predict
from tpviz.verbs.slow_motion import auto_slow_motion, shortest
from tpviz.views.plans.fields import small_html

from .knobs import WIDE

NARROW, ROOMY = {"width": "290px"}, {"width": "auto", "max_width": "440px"}
HIDDEN = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SLOW = (1, 10, 100, 1_000, 10_000)
VISIBLE = 1 / 4
"""The least share of a step, without bubbles, that communication should have at first."""
HERE, AUTO = "this machine", "auto"  # not None: a menu shows None as an empty field


def check_cluster(cluster: Cluster | None) -> Cluster | None:
    """``cluster`` if it is one, or None. Raises ValueError naming what is accepted."""
    if cluster is None or isinstance(cluster, Cluster):
        return cluster
    names = ", ".join(f"tv.clusters.{name}()" for name in clusters.presets())
    raise ValueError(
        f"cluster={cluster!r} is no cluster: give a tv.Cluster, such as one of {names}, "
        "or None for runs on this machine"
    )


class Setting(ipywidgets.VBox):
    """Menus: the cluster (or this machine), hidden scale, slow motion; one line of help each.

    cluster : offered first, and chosen; None chooses this machine.
    """

    def __init__(self, cluster: Cluster | None = None):
        where = "where the ranks run: on this machine as it is, or on an emulated cluster"
        self.menu = dropdown("cluster", _menu(cluster), cluster or HERE, where)
        sizes = [(f"stands for {c} x" if c > 1 else "as it is", c) for c in HIDDEN]
        larger = "scale model: a system with hidden sizes so many times larger"
        self.hidden = dropdown("hidden sizes", sizes, 1, larger, NARROW)
        slowly = [(AUTO, AUTO), *((f"{s:,} x", s) for s in SLOW)]
        usual = AUTO if cluster is None or cluster.slow_motion == 1 else 1
        self.slow = dropdown("slow motion", slowly, usual, "all rates are divided by this", NARROW)
        self.halves = ipywidgets.Checkbox(
            False,
            description="float32 stands for 16 bits",
            style=WIDE,
            layout={"width": "290px"},
            tooltip="ranks compute in float32 as fast as the device does in 16 bits",
        )
        self.words, self._open, self._choosing = ipywidgets.HTML(), True, False
        self._scaling = ipywidgets.VBox([self.hidden, self.halves, self.slow, self.words])
        super().__init__([self.menu])
        self.menu.observe(lambda change: self._lay_out(), "value")
        self._lay_out()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster chosen, as it is; None for this machine."""
        return None if self.menu.value == HERE else self.menu.value  # pyright: ignore[reportReturnType]

    @property
    def chosen(self) -> tuple[Cluster | None, float | str]:
        """What is chosen: (the cluster or its scale model, or None; slow motion or `AUTO`)."""
        cluster = self.cluster
        model = cluster and _model(cluster, self.hidden.value, self.halves.value)
        return model, self.slow.value  # pyright: ignore[reportReturnType]

    def scale(self, predict: Callable[[Cluster], Prediction], dtype: str) -> None:
        """Choose a scale at which a step shows both compute and communication, once for each
        cluster. predict : function of a cluster; dtype : of the workload."""
        cluster = self.cluster
        if cluster is None or not self._open:
            return
        halves = dtype == "float32" and bool(_in_half(cluster))
        scales = HIDDEN if cluster.hidden_scale == 1 else (1,)
        hidden = visible_scale(scales, lambda h: predict(_model(cluster, h, halves)))
        if hidden:
            self._open, self._choosing = False, True
            self.hidden.value, self.halves.value = hidden, halves
            self._choosing = False

    def on_change(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()`` whenever a menu changes."""
        for box in (self.menu, self.hidden, self.halves, self.slow):
            box.observe(lambda change: self._choosing or callback(), "value")

    def say(self, text: str) -> None:
        """Say what the scale model is, under its menus."""
        self.words.value = small_html(text)

    def _lay_out(self):
        on_cluster, self._open = self.menu.value != HERE, True
        self.halves.disabled = not (self.cluster and _in_half(self.cluster))
        self.children = [self.menu, self._scaling] if on_cluster else [self.menu]


def dropdown(description: str, options: Any, value: Any, tooltip: str, layout: Any = ROOMY) -> Any:
    """A menu as views have it."""
    return ipywidgets.Dropdown(
        options=options,
        value=value,
        description=description,
        style=WIDE,
        layout=layout,
        tooltip=tooltip,
    )


def _in_half(cluster):
    """The dtype of 16 bits in which its devices are faster than in float32, or ""; a cluster whose
    float32 stands for 16 bits has no other rates."""
    rates = cluster.device.flops
    return next((d for d in HALVES if rates.get(d, 0) > rates.get("float32", 0)), "")


@lru_cache  # with the links that it has found
def _model(cluster, hidden, halves):
    """The scale model; cluster itself where it is to be as it is."""
    dtype = _in_half(cluster) if halves else ""
    return cluster.scale_model(hidden=hidden, dtype=dtype) if hidden > 1 or dtype else cluster


def visible_scale(scales: Iterable[int], predict: Callable[[int], Prediction]) -> int | None:
    """The largest of the ``scales`` at which communication still is `VISIBLE` in a step and memory
    fits; the first where there is none. None where nothing is communicated.

    Twice the scale has four times the compute and twice the bytes, so compute has a share of 3/7 or
    more if a larger scale was possible (and nothing is hidden). predict : function of a scale.
    """
    first, *_ = scales = list(scales)
    for hidden in reversed(scales):
        found = predict(hidden)
        exposed = sum(found.exposed.values())
        if not exposed:
            return None
        if exposed >= VISIBLE * (found.step_time - found.parts["bubble"]) and found.fits:
            return hidden
    return first


def scaled(
    chosen: tuple[Cluster, float | str], predict: Callable[[Cluster], Prediction]
) -> tuple[Cluster, Prediction, str]:
    """(the cluster to emulate, its prediction, what was done in words) of `Setting.chosen`.

    predict : function of a cluster.
    """
    model, slow = chosen
    prediction, words = None, []
    if model.hidden_scale != 1:
        words.append(f"a scale model of {model.hidden_scale:g} x the hidden sizes")
    if model.float32_for:
        words.append(f"float32 stands for {model.float32_for}")
    if slow == AUTO:
        prediction = predict(model)
        slow, why = auto_slow_motion(*shortest(prediction))
        words.append(f"auto chose {why}")
    if slow != 1 or prediction is None:
        model = model.scale_model(slow_motion=slow)  # pyright: ignore[reportArgumentType]
        prediction = predict(model)
    return model, prediction, "; ".join(words)


def _menu(cluster):
    """(label, cluster) pairs: the one passed in first, then this machine and the presets."""
    presets = [preset() for preset in clusters.presets().values()]
    mine = [] if cluster is None else [(_label(cluster), cluster)]
    rest = [(_label(preset), preset) for preset in presets if preset != cluster]
    return [*mine, (f"{HERE}, not emulated", HERE), *rest]


def _label(cluster):
    return f"{cluster.caption}, {cluster.size} devices"


# -- what formulas say -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Configuration:
    """A configuration: what the knobs say. cluster None is this machine."""

    strategy: Strategy
    workload: GPT
    cluster: Cluster | None = None

    @property
    def words(self) -> str:
        """The configuration in one line."""
        on = f" on {self.cluster.caption}" if self.cluster else ""
        return f"{self.strategy!r}{on}"

    @property
    def runs(self) -> bool:
        """Whether this machine may start that many ranks; else it can only simulate them."""
        return self.strategy.world_size <= max_ranks()


class Reading(NamedTuple):
    """A `Configuration`, its `Prediction` (None on this machine), words on the scale model,
    ownership."""

    choice: Configuration
    prediction: Prediction | None
    words: str
    rows: list[dict[str, Any]]


def read(strategy: Strategy, workload: GPT, chosen: tuple[Cluster | None, float | str]) -> Reading:
    """The `Reading` of a strategy and of `Setting.chosen`.

    Raises ``ValueError`` where sizes clash, or where there are too many ranks.
    """
    strategy.check(workload)
    rows = ownership(strategy, workload)
    if chosen[0] is None:
        check_world_size(strategy.world_size)
        return Reading(Configuration(strategy, workload), None, "", rows)
    cluster, prediction, words = scaled(chosen, lambda c: predict(strategy, workload, c))  # pyright: ignore[reportArgumentType]
    return Reading(Configuration(strategy, workload, cluster), prediction, words, rows)
