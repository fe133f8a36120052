"""Shared by all animated views: one lock, checked arguments, a static twin, shown errors.

The picture itself is a scene made by `tpviz.views.figures`; the browser draws it (anywidget, no
CDN, no build). JupyterLab may run callbacks on other threads while a cell runs: a view has a lock.
"""

import difflib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import wraps
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anywidget
import ipywidgets
import traitlets

from tpviz.core.checks import one_of
from tpviz.schemes.advice import unadvised
from tpviz.verbs.written import cell
from tpviz.views.figures.assets import module, stylesheet
from tpviz.views.figures.film import film_svg
from tpviz.views.figures.page import place, swept, write_view
from tpviz.views.figures.svg import check_step
from tpviz.views.figures.terms import explained
from tpviz.views.plans.fields import gave_words, small_html

from .job import Latest
from .knobs import borrowed, settled
from .still import STYLE, Still

_Args = ParamSpec("_Args")
_Init = TypeVar("_Init", bound=Callable[..., None])
_log = logging.getLogger(__name__)


def shown(
    method: Callable[Concatenate[Any, _Args], None],
) -> Callable[Concatenate[Any, _Args], None]:
    """Decorator for callbacks of a view: an exception is shown in the view and logged, not lost."""

    @wraps(method)
    def guarded(self: Any, *args: _Args.args, **kwargs: _Args.kwargs) -> None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            _log.exception("callback of %r failed", self)
            self.show_error(error)

    return guarded


def check_names(cls_name: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise ``TypeError`` on unknown keyword names, with the nearest known one."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(known))}"
            raise TypeError(f"{cls_name} has no argument {name!r}; {hint}")


def check_sweep(sweep: Iterable[str], known: Collection[str]) -> None:
    """Raise ``ValueError`` on a knob that a view does not have."""
    for name in sweep:
        if name not in known:
            names = ", ".join(known)
            raise ValueError(f"sweep={name!r}: give values of a knob of this view: {names}")


def named(*more: str) -> Callable[[_Init], _Init]:
    """Decorator for the ``__init__`` of a view: unknown keyword names are refused by `check_names`.

    more : names that its ``**sizes`` takes.
    """

    def decorated(init):
        _, *own = signature(init).parameters.values()
        known = {p.name for p in own if p.kind is not Parameter.VAR_KEYWORD} | set(more)

        @wraps(init)
        def checked(self, *args, **kwargs):
            check_names(type(self).__name__, kwargs, known)
            init(self, *args, **kwargs)

        return checked

    return decorated  # pyright: ignore[reportReturnType]


class View(Still, anywidget.AnyWidget):
    """A view of one scene.

    Traits: ``scene`` (dict), ``rank`` (the one selected), ``error`` (text shown in the view) and
    ``generation``, raised last at each change and mirrored as ``data-generation`` in the page.
    Subclasses give ``_draw(**options) -> SVG`` and ``_words``; ``_scene_of``, which makes the scene
    of what `show` is given, first the ``subject``; and ``_figure``, which has ``to_table(subject)``
    and ``describe(subject)``.
    """

    scene = traitlets.Dict().tag(sync=True)
    rank = traitlets.Int(0).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)
    generation = traitlets.Int(0).tag(sync=True)
    _css = stylesheet() + STYLE
    kind: str
    """The JavaScript module that draws it."""
    subject: Any = None
    _scene_of: Callable[..., dict[str, Any]]
    _figure: Any

    def __init_subclass__(cls, **kwargs):
        if "kind" in vars(cls):
            cls._esm = module(cls.kind)
        super().__init_subclass__(**kwargs)

    if TYPE_CHECKING:  # of the subclasses

        def _draw(self, **options: Any) -> str: ...
        def _words(self) -> str: ...

    def __init__(self):
        self._lock = threading.RLock()
        super().__init__()

    def show(self, subject: Any, *more: Any) -> None:
        """Draw something else; what is chosen stays where it still exists."""
        scene = self._scene_of(subject, *more)
        if "captions" in scene:
            scene["help"] = [*scene.get("help", ()), *explained(scene)]
        with self._lock:
            before, self.subject = self.subject, subject
            self.publish(scene=scene, error="", **self._chosen_in(scene, before))

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        return self._figure.to_table(self.subject)

    def describe(self) -> str:
        """The view in words."""
        return self._told()

    def _told(self):
        return self._figure.describe(self.subject)

    def _chosen_in(self, scene, before):
        """{trait: its value in another scene}. before : the subject until now."""
        return {}

    def publish(self, **traits: Any) -> None:
        """Set traits as one message, ``generation`` last. Safe from any thread."""
        with self._lock, self.hold_sync():
            for name, value in traits.items():
                setattr(self, name, value)
            self.generation += 1

    def show_error(self, error: BaseException | str) -> None:
        """Show an exception, or a text ("" clears it), in the view."""
        text = (
            f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        )
        self.publish(error=text)

    def to_svg(self, **options: Any) -> str:
        """The view as it stands as one static SVG; ``theme`` "light", "dark" or "auto"."""
        return self._draw(**options) if self.scene else ""

    def to_html(self, path: str | PathLike[str], *, title: str = "") -> Path:
        """Write the view as one HTML file that plays without kernel and network; returns the path.

        title : above the view, which shows its own. Raises ``ValueError`` for a view without a
        picture.
        """
        if not self.scene:
            raise ValueError(f"{self!r} has no picture to write yet")
        view = place(self.kind, self.state())
        return write_view(path, self.scene["title"], view, self.to_svg(), title)

    def state(self) -> dict[str, Any]:
        """{trait: value} of what the browser draws."""
        own = self.trait_names(sync=True)
        usual = {*anywidget.AnyWidget.class_trait_names(), "_anywidget_id", "_css", "_esm"}
        return {name: getattr(self, name) for name in own if name not in usual}

    def __repr__(self):
        return f"<{type(self).__name__} {self._words() if self.scene else 'empty'}>"


class Film(View):
    """A view whose pictures are made in Python, played by ``film.js``.

    Its scene has ``badge``, ``title``; ``width``, ``height`` and ``top``, px of head that the page
    shows itself; ``common``, the SVG of all steps; for each step its ``captions``. There may be
    ``words`` of each step, its ``numbers`` ([label, value]) or ``facts`` of all, ``finding`` (what
    all of it shows, its headline), ``notes`` (lines), ``help`` (more of them, with `explained`),
    a ``legend`` (as `figures.legend.keyed` gives), and ``under``, HTML below the picture. Then
    either, or both, of

    * ``frames``, for each step its SVG, or a list of places in ``pieces``, where much of it comes
      again. What has ``data-path`` [x0, y0, control x, y, x1, y1] travels along it while the step
      is played, ``data-lag`` (0..1 of the way) behind.
    * ``stops``, for each step the px on a time axis at which it ends, from ``head`` to ``foot``
      (px): there stands a play-head, which moves evenly in time. One zooms on ``axis`` ("left",
      "right", "y": px; its "duration", "unit" "s" or ""): what `figures.lanes.timed` drew. It is
      shorter where there is less room, down to a picture ``least`` px wide. Bars stand where their
      ``data-to`` says (px) while they are gathered; ``data-rest`` is pale then.

    A click on what has ``data-step`` goes to that step, one on ``data-rank`` chooses the rank. Ids
    and references in the SVG begin with ``tpv-``. ``step`` is the step shown, from 0; first it is
    the one at which the film ``opens`` (may lack), although it plays from the start. ``autoplay``
    starts playing, never where the reader prefers reduced motion.
    """

    step = traitlets.Int(0).tag(sync=True)
    autoplay = traitlets.Bool(False).tag(sync=True)
    _svg: Callable[..., str] = staticmethod(film_svg)

    def __init__(self, autoplay: bool = False):
        super().__init__()
        self.autoplay = one_of("autoplay", autoplay, (True, False))

    def describe(self) -> str:
        """What is shown, and the step, in words."""
        return f"{self._told()} Shown: {self.scene['captions'][self.step]}. {self._said()}".rstrip()

    def _said(self):
        return self.scene["words"][self.step]

    def _words(self):
        return f"{self.scene['title']}, {self.scene['captions'][self.step]}"

    def _chosen_in(self, scene, before):
        return {"step": self._step_in(scene)}

    def _step_in(self, scene):
        """The step in another scene: the same, or where it opens if no other was chosen."""
        chosen = self.scene and self.step != self.scene.get("opens", 0)
        return min(self.step if chosen else scene.get("opens", 0), len(scene["captions"]) - 1)

    def _draw(self, **options):
        return self._svg(self.scene, **{"step": self.step, **options})


class Detailed(Film):
    """A film with one selected part: the trait named by ``_part`` is its number, -1 for none, and
    ``detail`` describes it. The details of all parts together would be a large message.

    Subclasses give ``_count(scene)`` of the parts, and ``_detail_of(number) -> dict``, which has
    ``_part`` and raises ``ValueError`` on a part that is not there.
    """

    detail = traitlets.Dict().tag(sync=True)
    _part: str

    def __init__(self, autoplay: bool = False):
        super().__init__(autoplay)
        self.observe(self._chosen, self._part)

    if TYPE_CHECKING:

        def _detail_of(self, number: int) -> dict[str, Any]: ...
        def _count(self, scene: dict[str, Any]) -> int: ...

    @shown
    def _chosen(self, change):
        """Another part was selected, here or in the picture."""
        with self._lock:
            number = getattr(self, self._part)
            if self.scene and self.detail.get(self._part) != number:
                self.publish(detail=self._detail_of(number))

    def state(self) -> dict[str, Any]:
        """As of every view; and ``details``, of all parts, for a page without kernel."""
        count = self._count(self.scene)
        return {**super().state(), "details": [self._detail_of(i) for i in range(-1, count)]}

    def select(self, number: int) -> None:
        """Select a part, -1 for none. Raises ``ValueError`` for an unknown one."""
        self._detail_of(number)
        self.publish(**{self._part: number})

    def _chosen_in(self, scene, before):
        number = getattr(self, self._part)
        number = number if number < self._count(scene) else -1
        chosen = {self._part: number, "detail": self._detail_of(number)}
        return super()._chosen_in(scene, before) | chosen

    def _draw(self, step: int | None = None, **options: Any) -> str:
        number = options.pop(self._part, None)
        detail = self.detail if number is None else self._detail_of(number)
        return self._svg(self.scene, self.step if step is None else step, detail, **options)


class Framed(Still, ipywidgets.VBox):
    """Knobs around a `Film`, its ``picture``, to which it forwards tables, texts and errors.

    Subclasses give ``_read() -> tuple``: the knobs' values, as arguments of ``picture.show``. It
    raises ``ValueError`` where sizes clash: then others give way, as
    `tpviz.views.widgets.knobs.settled` says, and ``gave`` has which; or ``error`` says why there is
    no picture.
    """

    picture: Film
    gave: str

    def __init__(self, knobs: ipywidgets.Box, picture: Film):
        self._lock, self._moved = threading.RLock(), Latest(self._redraw)
        self.knobs, self.picture, self._line = knobs, picture, ipywidgets.HTML()
        self.controls: dict[str, Any] = dict(getattr(knobs, "controls", {}))
        self._turned: dict[str, bool] = {}
        self._writer = 0
        controls = ipywidgets.VBox([knobs, self._line])
        frame = ipywidgets.Box([picture, controls])
        super().__init__([frame])
        for box, name in (
            (self, "column"),
            (frame, "framed"),
            (picture, "shared"),
            (controls, "controls"),
        ):
            box.add_class(f"tpv-{name}")  # of view.css
        self._say_gave("")
        for name, box in self.controls.items():
            self.hear(name, box)

    def hear(self, name: str, box: ipywidgets.DOMWidget) -> None:
        """A control of the view: where it moves, the picture is drawn anew."""
        self.controls[name] = box
        box.observe(lambda change: self._turn(name, change), "value")

    def _turn(self, name, change):
        """A knob was moved, not by `settled`: the last one moved is the last of ``_turned``."""
        if change.new != change.old and self._writer != threading.get_ident():
            self._turned.pop(name, None)
            self._turned[name] = True
            self._moved()

    def _say_gave(self, words):
        """Which knobs gave way to the one moved last, or ""."""
        self.gave, self._line.value = words, small_html(words)
        self._line.layout.display = "" if words else "none"

    def _works(self):
        try:
            with unadvised():
                self._read()
        except ValueError:
            return False
        return True

    if TYPE_CHECKING:

        def _read(self) -> tuple[Any, ...]: ...

    def _made_with(self) -> dict[str, Any]:
        """The arguments with which the class makes the view as it stands. Raises ``ValueError``
        where there are none."""
        raise ValueError(f"{type(self).__name__} has no code of its own")

    def cell(self) -> str:
        """The code of a notebook's cell that makes the view as it stands. Raises ``ValueError``
        where something in it is not said in code: a schedule or a machine of one's own."""
        return cell(type(self).__name__, type(self), **self._made_with())

    @shown
    def _redraw(self):
        """A knob moved: the new picture, or the reason for none; the last valid one stays."""
        with self._lock:
            turned, self._turned = [*self._turned], {}
            try:
                drawn, words = self._read(), ""
            except ValueError as error:
                words = gave_words(self._settle(turned), str(error))
                if not words:
                    self._say_gave("")
                    self.picture.show_error(str(error))
                    return
                drawn = self._read()
            self._say_gave(words)
            self.picture.show(*drawn)

    def _settle(self, turned):
        self._writer = threading.get_ident()
        try:
            return self._gave_way(turned) if turned else {}
        finally:
            self._writer = 0

    def _gave_way(self, turned):
        return settled(self.controls, turned, self._works)

    def to_html(
        self,
        path: str | PathLike[str],
        sweep: Mapping[str, Iterable[Any]] | None = None,
        *,
        title: str = "",
    ) -> Path:
        """Write one HTML file that plays without kernel and network; returns the path.

        sweep : as of `to_place`, which also says what is raised. title : above the picture, which
        shows its own.
        """
        view = self.to_place(sweep)
        return write_view(path, self.picture.scene["title"], view, self.to_svg(), title)

    def to_place(self, sweep: Mapping[str, Iterable[Any]] | None = None) -> str:
        """The view's `tpviz.views.figures.page.place` in a page of several.

        sweep : {knob: values}, a slider for each, at the knob's own value if that is among them.
        The pictures of all combinations are drawn now; where sizes clash, the page says so. Raises
        ``ValueError`` for a knob that the view does not have, a value that it does not take, and
        where no combination can be drawn.
        """
        sweep = sweep or {}
        check_sweep(sweep, self.controls)
        try:
            with self._lock, ExitStack() as stack:
                start = {name: self.controls[name].value for name in sweep}
                for name in sweep:
                    stack.enter_context(borrowed(self.controls[name]))
                words = {name: self.controls[name].tooltip or "" for name in sweep}
                return swept(self.picture.kind, sweep, self._state_at, start, words)
        finally:
            with suppress(ValueError):
                self._read()  # what it remembers is that of its own knobs

    def _state_at(self, **values):
        """What the browser draws where the knobs have these values; or the error alone."""
        for name, value in values.items():
            try:
                self.controls[name].value = value
            except traitlets.TraitError as error:
                raise ValueError(f"sweep: {name}={value!r} is no value of this knob") from error
        picture = type(self.picture)(self.picture.autoplay)  # not the one in the notebook
        try:
            picture.show(*self._read())
            state = picture.state()
            with suppress(ValueError):
                state["cell"] = self.cell()
            return state
        except ValueError as error:
            return {"error": str(error)}
        finally:
            picture.close()

    def show_error(self, error: BaseException | str) -> None:
        """Show an exception, or a text ("" clears it), in the picture."""
        self.picture.show_error(error)

    @property
    def error(self) -> str:
        """Why the current knobs cannot be shown, or ""."""
        return self.picture.error

    @property
    def step(self) -> int:
        """The step shown, from 0."""
        return self.picture.step

    @step.setter
    def step(self, step: int) -> None:
        check_step(self.picture.scene, step)
        self.picture.publish(step=step)

    def to_svg(self, **options: Any) -> str:
        """The view as one static SVG; options ``step``, ``theme`` "light", "dark", "auto", and what
        else the picture has."""
        return self.picture.to_svg(**options)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        return self.picture.to_table()

    def describe(self) -> str:
        """The view in words."""
        return self.picture.describe()

    def __repr__(self):
        return f"<{type(self).__name__} {self.picture._words()}>"
