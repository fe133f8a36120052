"""The view of a mixture of experts over ranks: rows that go to experts and back, and loads.

>>> view = ExpertsView(tv.Experts(ep=4))                                         # doctest: +SKIP
"""

from dataclasses import replace

from tpviz.core.routing import Routing
from tpviz.core.workload import GPT
from tpviz.schemes.experts.strategy import Experts
from tpviz.views.figures import experts as figure
from tpviz.views.films.experts import ExpertFilm, routed

from .base import Film, Framed, named
from .knobs import NARROW, Knobs, control, stepped

NONE = "none"
WORKLOAD = GPT(layers=1, seq=64, batch=8, experts=8, top_k=2, routing=Routing(1.0))
SKEWS, CAPACITIES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0), (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


class ExpertsView(Framed):
    """One layer of experts over the ranks of ep: the choices of each rank's tokens, their rows on
    the way to the ranks that have the experts, what each computes, and the way back.

    Parameters
    ----------
    strategy : `tpviz.Experts`, alone or around a tensor parallelism; None is ``Experts(ep=4)``.
    workload : `tpviz.GPT` with experts; None has 8, of which each of 64 tokens of a sequence
        chooses 2. Without a `tpviz.Routing` choices are even until ``skew`` moves.
    autoplay : start playing (never where the reader prefers reduced motion).

    ``step`` is the step shown, from 0, ``strategy`` and ``workload`` are those shown, and ``film``
    the `ExpertFilm` with all numbers of rows; ``error`` says why the current knobs cannot be shown,
    or is "". Rows are exact; time is by rows alone, without that of messages. Raises ``ValueError``
    on another strategy, on sizes that clash, above 8 ranks and above 16 experts; ``TypeError`` on
    an argument that does not exist.
    """

    picture: "ExpertsSteps"

    @named()
    def __init__(
        self,
        strategy: Experts | None = None,
        workload: GPT | None = None,
        *,
        autoplay: bool = False,
    ):
        self.strategy = Experts(ep=4) if strategy is None else strategy
        if not isinstance(self.strategy, Experts):
            raise ValueError(f"This shows tv.Experts, not {getattr(strategy, 'short', strategy)}")
        if self.strategy.dispatch != "all_to_all":
            raise ValueError(
                f"dispatch={self.strategy.dispatch!r} has all tokens on all ranks, and this shows "
                "rows on the way to their experts: use dispatch='all_to_all', which gives experts "
                "the same rows"
            )
        self.workload = w = WORKLOAD if workload is None else workload
        if not isinstance(w, GPT):
            raise ValueError(f"ExpertsView needs a workload such as tv.GPT(experts=8), not {w!r}")
        figure.check(self.strategy.ep, w.experts)
        self.strategy.check(w)
        skew, capacity = (w.routing or Routing()).skew, w.capacity or NONE
        tops = sorted({w.top_k, *(n for n in (1, 2, 4, 8) if n <= w.experts)})
        skews = sorted({*SKEWS, skew})
        more = {
            "top_k": stepped("top_k", w.top_k, "experts of a token", tops, NARROW),
            "skew": stepped("skew", skew, "0: all experts alike; 1: Zipf's law", skews, NARROW),
            "capacity": control(
                "capacity",
                capacity,
                "choices that an expert takes, in parts of an even share; none: all",
                choices=(NONE, *CAPACITIES),
            ),
        }
        knobs = Knobs(
            Experts,
            vars(self.strategy),
            compact=True,
            more=more,
            without=("etp", "dispatch", "overlap", "accumulation", "recompute"),
            stops={"ep": sorted({1, 2, 4, 8, self.strategy.ep})},
        )
        super().__init__(knobs, ExpertsSteps(autoplay))
        self.picture.show(*self._read())

    def _read(self):
        values = self.knobs.values()  # pyright: ignore[reportAttributeAccessIssue]
        s = replace(self.strategy, ep=values["ep"])
        routing = replace(self.workload.routing or Routing(), skew=values["skew"])
        capacity = None if values["capacity"] == NONE else values["capacity"]
        w = replace(self.workload, top_k=values["top_k"], capacity=capacity, routing=routing)
        film = routed(s, w)
        self.strategy, self.workload = s, w
        title = f"{w.experts} experts over {s.ep} rank{'s' * (s.ep > 1)}"
        return film, title, f"{s.short}, {w.short}"

    def _made_with(self):
        return {"strategy": self.strategy, "workload": self.workload}

    @property
    def film(self) -> ExpertFilm:
        """The `ExpertFilm` shown."""
        return self.picture.subject


class ExpertsSteps(Film):
    """The picture of `ExpertsView`; rows travel as messages of the microscope."""

    kind, _figure, _scene_of = "microscope", figure, staticmethod(figure.experts_scene)

    def _told(self):
        return figure.describe(self.subject, self.scene["title"])
