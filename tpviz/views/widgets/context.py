"""The view of context parallelism: whose block of attention is where and when, beside the ranks.

>>> view = ContextView(tv.Context(cp=4), against="ring")                         # doctest: +SKIP
"""

from dataclasses import replace

from tpviz import clusters
from tpviz.cluster import Cluster
from tpviz.core.trace import Trace
from tpviz.core.workload import GPT
from tpviz.schemes.context.sequence import KINDS
from tpviz.schemes.context.strategy import Context
from tpviz.verbs.predict import check
from tpviz.views.figures import context as figure
from tpviz.views.films.context import PHASES, AttentionFilm, simulated, traced

from .base import Film, Framed, named
from .knobs import Knobs, control

NONE = "none"
WORKLOAD = GPT(
    layers=1, hidden=4096, heads=32, kv_heads=8, seq=8192, batch=1, dtype="bfloat16", rotary=True
)
LENGTHS = tuple(2**power for power in range(11, 18))
"""Tokens of a sequence that its knob has."""


class ContextView(Framed):
    """The causal square of one attention by blocks: the rank that computes each, at which step of
    the ring, and which keys and values travel; beside it what each rank does, over time.

    Parameters
    ----------
    strategy : `tpviz.Context`, alone or around a tensor parallelism; None is ``Context(cp=4)``.
    workload : `tpviz.GPT`; None has a layer of 4,096 features and sequences of 8,192 tokens.
    cluster : of as many ranks; None is a node of H100s.
    against : a second kind on the same clock, or "none".
    phase : "forward" or "backward".
    autoplay : start playing (never where the reader prefers reduced motion).

    ``step`` is the step shown, from 0, ``strategy`` and ``workload`` are those shown, and
    ``films`` the `AttentionFilm` of each kind; ``error`` says why the current knobs cannot be
    shown, or is "". Times are simulated, those of a trace given to `measured` are its own. Raises
    ``ValueError`` on another strategy, on sizes that clash, and above 8 ranks; ``TypeError`` on an
    argument that does not exist.
    """

    picture: "ContextSteps"

    @named()
    def __init__(
        self,
        strategy: Context | None = None,
        workload: GPT | None = None,
        cluster: Cluster | None = None,
        *,
        against: str = "ring",
        phase: str = "forward",
        autoplay: bool = False,
    ):
        self.strategy = Context(cp=4) if strategy is None else strategy
        if not isinstance(self.strategy, Context):
            raise ValueError(f"This shows tv.Context, not {getattr(strategy, 'short', strategy)}")
        self.workload = WORKLOAD if workload is None else workload
        if not isinstance(self.workload, GPT):
            raise ValueError(f"ContextView needs a workload such as tv.GPT(), not {workload!r}")
        if self.strategy.ulysses > 1 or self.workload.documents:
            raise ValueError("one ring without documents is shown: use ulysses=1, documents=()")
        self.cluster = clusters.nvswitch(figure.MOST) if cluster is None else cluster
        figure.check(self.strategy.cp)
        self._measured: tuple[Trace, Context, GPT] | None = None
        seq = self.workload.seq
        more = {
            "against": control("against", against, "a second kind", choices=(NONE, *KINDS)),
            "seq": control("seq", seq, "tokens", choices=sorted({*LENGTHS, seq})),
            "phase": control("phase", phase, "of the step", choices=PHASES),
        }
        knobs = Knobs(
            Context,
            vars(self.strategy),
            compact=True,
            more=more,
            without=("accumulation", "recompute", "offload", "ulysses"),
            stops={"cp": sorted({1, 2, 4, 8, self.strategy.cp})},
        )
        super().__init__(knobs, ContextSteps(autoplay))
        self.picture.show(*self._read())

    def _read(self):
        values = self.knobs.values()  # pyright: ignore[reportAttributeAccessIssue]
        against, seq, phase = (values.pop(name) for name in ("against", "seq", "phase"))
        strategy, w = replace(self.strategy, **values), replace(self.workload, seq=seq)
        kinds = [strategy.kind, *(kind for kind in [against] if kind not in (NONE, strategy.kind))]
        films = [self._film(replace(strategy, kind=kind), w, phase) for kind in kinds]
        self.strategy, self.workload = strategy, w
        title = f"{seq:,} tokens over {strategy.cp} rank{'s' * (strategy.cp > 1)}"
        return films, title, f"{strategy.short}, {w.short}, {phase}, on {self.cluster.caption}"

    def _made_with(self):
        chosen = {name: self.controls[name].value for name in ("against", "phase")}
        on = {"workload": self.workload, "cluster": self.cluster}
        return {"strategy": self.strategy, **on, **chosen}

    def _film(self, strategy, w, phase):
        check(strategy, w, self.cluster)
        if self._measured and self._measured[1:] == (strategy, w):
            return traced(self._measured[0], strategy.sequence, phase, strategy.axes)
        return simulated(strategy, w, self.cluster, phase)

    def measured(self, trace: Trace | None) -> None:
        """Draw the times of a trace where knobs stand as they do now: of a run, of a simulation, or
        of a program that `tpviz.record` saw, on as many ranks; None takes them away.

        Raises ``ValueError`` where the trace is of another strategy, workload or number of ranks,
        or has no such attention, and where no sequence is cut.
        """
        s, w = self.strategy, self.workload
        if trace is not None:
            if s.sequence is None:
                raise ValueError("cp=1 cuts no sequence: use cp=2 or more")
            told = {"world_size": len(trace.ranks), **trace.meta}
            shown = {"strategy": repr(s), "workload": repr(w), "world_size": s.world_size}
            for name, mine in shown.items():
                if (its := told.get(name, mine)) != mine:
                    raise ValueError(
                        f"the trace is of another {name}: {its}, and this view shows {mine}"
                    )
            traced(trace, s.sequence, self.controls["phase"].value, s.axes)
        self._measured = None if trace is None else (trace, s, w)
        self._redraw()

    @property
    def films(self) -> list[AttentionFilm]:
        """The `AttentionFilm` of each kind shown."""
        return self.picture.subject


class ContextSteps(Film):
    """The picture of `ContextView`; messages travel as those of the microscope."""

    kind, _figure, _scene_of = "microscope", figure, staticmethod(figure.context_scene)

    def _told(self):
        return figure.describe(self.subject, self.scene["title"])

    def _words(self):
        kinds = " against ".join(figure.NAMES[film.cut.kind] for film in self.subject)
        return f"{kinds}: {super()._words()}"
