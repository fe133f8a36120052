"""The choices beside the strategy: which cluster, how small a model of it, how slow its motion."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets

from tpviz import clusters
from tpviz.cluster import Cluster

from .knobs import WIDE, small_html
from .slow import auto_slow_motion, shortest

if TYPE_CHECKING:
    from tpviz.verbs.predict import Prediction

HIDDEN = (1, 2, 4, 8, 16, 32, 64)
SLOW = (1, 10, 100, 1_000, 10_000)
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
        wide = {"width": "auto", "max_width": "440px"}
        self.menu = ipywidgets.Dropdown(
            options=_menu(cluster),
            value=cluster or HERE,
            description="cluster",
            style=WIDE,
            layout=wide,
            tooltip="where the ranks run: on this machine as it is, or on an emulated cluster",
        )
        self.hidden = ipywidgets.Dropdown(
            options=[(f"stands for {c} x" if c > 1 else "as it is", c) for c in HIDDEN],
            description="hidden sizes",
            style=WIDE,
            layout={"width": "290px"},
            tooltip="scale model: a system with hidden sizes so many times larger",
        )
        self.slow = ipywidgets.Dropdown(
            options=[(AUTO, AUTO), *((f"{s:,} x", s) for s in SLOW)],
            value=AUTO if cluster is None or cluster.slow_motion == 1 else 1,
            description="slow motion",
            style=WIDE,
            layout={"width": "290px"},
            tooltip="all rates are divided by this",
        )
        self.words = ipywidgets.HTML()
        self._scaling = ipywidgets.VBox([self.hidden, self.slow, self.words])
        super().__init__([self.menu])
        self.menu.observe(lambda change: self._lay_out(), "value")
        self._lay_out()

    @property
    def chosen(self) -> tuple[Cluster | None, int, float | str]:
        """What is chosen: (cluster or None, hidden scale, slow motion or `AUTO`)."""
        cluster = None if self.menu.value == HERE else self.menu.value
        return cluster, self.hidden.value, self.slow.value  # pyright: ignore[reportReturnType]

    def on_change(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()`` whenever a menu changes."""
        for box in (self.menu, self.hidden, self.slow):
            box.observe(lambda change: callback(), "value")

    def say(self, text: str) -> None:
        """Say what the scale model is, under its menus."""
        self.words.value = small_html(text)

    def _lay_out(self):
        on_cluster = self.menu.value != HERE
        self.children = [self.menu, self._scaling] if on_cluster else [self.menu]


def scaled(
    chosen: tuple[Cluster, int, float | str], predict: "Callable[[Cluster], Prediction]"
) -> "tuple[Cluster, Prediction, str]":
    """(the cluster to emulate, its prediction, what was done in words) of `Setting.chosen`.

    predict : function of a cluster.
    """
    cluster, hidden, slow = chosen
    model = cluster.scale_model(hidden=hidden)
    prediction, words = None, []
    if hidden > 1:
        words.append(f"a scale model of {hidden} x the hidden sizes")
    if slow == AUTO:
        prediction = predict(model)
        found = auto_slow_motion(*shortest(prediction))
        slow, why = found.factor, f"auto chose {found.words}"
        words.append(why)
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
