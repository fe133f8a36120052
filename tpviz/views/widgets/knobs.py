"""Controls made from a strategy's own fields: bounds, choices and help come from its knobs.

knobs = Knobs(tv.Megatron)
knobs.values()          # {"tp": 4, "sp": False}
"""

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain, combinations, islice, product
from math import prod
from types import MappingProxyType, SimpleNamespace
from typing import Any

import ipywidgets
import traitlets

from tpviz.views.plans.fields import is_pair, knob_fields, label, pairs, small_html

WIDE, LETTERS = {"description_width": "90px"}, 13
"""Room for a knob's name, and so many letters of it."""
CONTROL = {"flex": "0 0 290px"}
NARROW = {"flex": "1 1 200px", "max_width": "290px"}
WRAPPED = {"display": "flex", "flex_flow": "row wrap"}


def control(
    name: str,
    default: Any,
    help: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Collection[Any] | None = None,
    most: int | None = None,
) -> ipywidgets.DOMWidget:
    """The ipywidgets control of one knob.

    choices and the default make a menu, or choices check boxes where the default is a tuple of some
    of them; a bool a check box, a bounded int a slider (its upper end at most ``most``), a float a
    number field, a pair of whole numbers a menu of meshes of at most ``most`` ranks, and any other
    tuple or a str a text field read as a Python literal.
    """
    # Lab cuts off a name that is longer than its column; that of a check box stands behind it.
    cut = len(name) > LETTERS and not isinstance(default, bool)
    style = {"description_width": "initial"} if cut else WIDE
    options = {"description": name, "style": style, "tooltip": help, "layout": CONTROL}
    if choices is not None and isinstance(default, tuple):
        return Several(choices, default, name, help, CONTROL)
    if choices is not None:
        menu = [(label(c), c) for c in dict.fromkeys((*choices, default))]
        return ipywidgets.Dropdown(options=menu, value=default, **options)
    if isinstance(default, bool):
        return ipywidgets.Checkbox(value=default, **options)
    if isinstance(default, int) and low is not None and high is not None:
        top = max(default, high if most is None else min(high, most))
        return ipywidgets.IntSlider(value=default, min=low, max=top, **options)
    if isinstance(default, int):
        return ipywidgets.IntText(value=default, **options)
    if isinstance(default, float) and low is not None and high is not None:
        return ipywidgets.BoundedFloatText(value=default, min=low, max=high, **options)
    if isinstance(default, float):
        return ipywidgets.FloatText(value=default, **options)
    if most is not None and is_pair(default):
        shapes = sorted({*pairs(most), default}, key=lambda shape: (prod(shape), -shape[0]))
        return ipywidgets.Dropdown(
            options=[(label(shape), shape) for shape in shapes], value=default, **options
        )
    text = default if isinstance(default, str) else repr(default)
    return ipywidgets.Text(value=text, continuous_update=False, **options)


def slider(
    name: str, value: float, help: str, low: float, high: float, step: float
) -> ipywidgets.DOMWidget:
    """A slider of a number, whose ends make room for its value."""
    kind = ipywidgets.FloatSlider if isinstance(step, float) else ipywidgets.IntSlider
    return kind(
        value,
        min=min(low, value),
        max=max(high, value),
        step=step if isinstance(step, float) or value % step == 0 else 1,
        description=name,
        style=WIDE,
        layout=CONTROL,
        tooltip=help,
    )


def small(text: str) -> ipywidgets.HTML:
    """A line of help: small print that may take two lines where there is little room."""
    return ipywidgets.HTML(small_html(text), layout={"flex": "1 1 0"})


def stepped(
    name: str, value: Any, help: str, stops: Collection[Any], layout: Mapping[str, str]
) -> ipywidgets.DOMWidget:
    """A slider that stops at these numbers only; of what has a name a menu."""
    options = [(label(v), v) for v in stops]
    kind = ipywidgets.SelectionSlider if type(value) in (int, float) else ipywidgets.Dropdown
    style = WIDE if layout is CONTROL else {"description_width": "50px"}
    return kind(
        options=options, value=value, description=name, style=style, layout=layout, tooltip=help
    )


# -- knobs that clash ------------------------------------------------------------------------------
# The rule of all views: the knob moved last keeps its value, the others give way, each to the
# nearest value that works, and the view says which did. Where none can, it says why.
TRIES = 200
"""How many changes of other knobs are tried before a clash is refused."""


def settled(
    controls: Mapping[str, Any], moved: Collection[str], works: Callable[[], bool]
) -> dict[str, tuple[Any, Any]]:
    """Move the fewest other knobs, at most two and numbers first, so that ``works()``: {name:
    (before, after)}; empty where that is not possible, and nothing has moved. moved : names, the
    last one last; those before it move only where others do not help."""
    order = [n for n in controls if n not in moved] + [*moved][:-1]
    near = {name: found for name in order if (found := _nearby(controls[name]))}
    near = dict(sorted(near.items(), key=lambda item: type(item[1][0]) not in (int, float)))
    one = ({name: value} for name, values in near.items() for value in values)
    both = (
        {a: v, b: w} for a, b in combinations(near, 2) for v, w in product(near[a][:4], near[b][:4])
    )
    with ExitStack() as held:
        before = {name: held.enter_context(borrowed(controls[name])) for name in near}
        for changed in islice(chain(one, both), TRIES):
            for name, value in changed.items():
                controls[name].value = value
            if works():
                break
            for name in changed:
                controls[name].value = before[name]
        else:
            return {}
    for name, value in changed.items():  # now it is said
        controls[name].value = value
    return {name: (before[name], value) for name, value in changed.items()}


def _nearby(box):
    """The other values of a control that can be counted, the nearest first."""
    if isinstance(box, ipywidgets.IntSlider):
        values = range(box.min, box.max + 1, box.step)  # pyright: ignore[reportOperatorIssue, reportArgumentType, reportOptionalOperand]
    elif isinstance(box, ipywidgets.FloatSlider):
        values = [box.min + n * box.step for n in range(round((box.max - box.min) / box.step) + 1)]  # pyright: ignore[reportOperatorIssue, reportArgumentType, reportOptionalOperand]
    elif isinstance(box, ipywidgets.Checkbox):
        values = (False, True)
    else:
        values = [value for _, value in getattr(box, "options", ())]
    numbers = all(isinstance(v, (int, float)) for v in (*values, box.value))
    distance = (lambda v: abs(v - box.value)) if numbers else (lambda v: 0)
    return sorted((v for v in values if v != box.value), key=distance)


@contextmanager
def borrowed(control: Any) -> Iterator[Any]:
    """A control whose value may change, and is put back; nobody hears of it. Gives the value."""
    value = control.value
    with control.hold_trait_notifications():
        try:
            yield value
        finally:
            control.value = value


class Several(ipywidgets.HBox):
    """A check box for each of ``names``; ``value`` is the tuple of those that are checked."""

    value = traitlets.Tuple()

    def __init__(
        self,
        names: Collection[str],
        value: Collection[str],
        description: str,
        tooltip: str,
        layout: dict[str, str],
    ):
        self.boxes = {
            name: ipywidgets.Checkbox(
                name in value, description=name, indent=False, layout={"width": "60px"}
            )
            for name in names
        }
        label = ipywidgets.Label(
            description,
            tooltip=tooltip,
            layout={"width": "90px", "justify_content": "flex-end", "margin": "2px 8px 2px 2px"},
        )
        super().__init__([label, *self.boxes.values()], layout=layout)  # its view has no tooltip
        self.value, self._setting = tuple(value), False
        for box in self.boxes.values():
            box.observe(lambda change: self._checked(), "value")
        self.observe(lambda change: self._set(), "value")

    def _checked(self):
        if not self._setting:
            self.value = tuple(name for name, box in self.boxes.items() if box.value)

    def _set(self):
        self._setting = True
        for name, box in self.boxes.items():
            box.value = name in self.value
        self._setting = False


class Knobs(ipywidgets.VBox):
    """One row per knob of ``cls``: the control and its line of help.

    defaults: {name: value} shown at first instead of the class's own; most: end of int sliders, and
    of the ranks of a mesh; compact: no lines of help (they are tooltips), as many in a row as fit.
    Knobs that others leave without effect are not shown. Of compact knobs, sliders: {name: (low,
    high, step)} of numbers that are sliders, more: controls besides, by name, hidden: names that
    are not shown. stops: {name: values} of knobs whose values `offer` may change: whole numbers are
    sliders that stop there only. without: knobs that others have.
    """

    def __init__(
        self,
        cls: type,
        defaults: Mapping[str, Any] | None = None,
        most: int | None = None,
        compact: bool = False,
        sliders: Mapping[str, tuple[float, float, float]] | None = None,
        more: Mapping[str, ipywidgets.DOMWidget] | None = None,
        hidden: Collection[str] = (),
        stops: Mapping[str, Collection[Any]] = MappingProxyType({}),
        without: Collection[str] = (),
    ):
        self.cls = cls
        self.controls, self._literal = {}, set()
        self._usual = {f.name: f.default for f in knob_fields(cls)}
        shown = [f for f in knob_fields(cls) if f.name not in without]
        for f in shown:
            bounds: dict[str, Any] = {
                k: f.metadata.get(k) for k in ("help", "low", "high", "choices")
            }
            value = (defaults or {}).get(f.name, f.default)
            if f.name in (sliders or {}):
                self.controls[f.name] = slider(f.name, value, bounds["help"], *sliders[f.name])  # pyright: ignore[reportOptionalSubscript]
            elif (
                f.name in stops
                and (type(value) is int or is_pair(value))
                and not f.metadata["choices"]
            ):
                narrow = NARROW if compact else CONTROL
                box = stepped(f.name, value, bounds["help"], stops[f.name], narrow)
                self.controls[f.name] = box
            else:
                self.controls[f.name] = control(f.name, value, most=most, **bounds)
            if isinstance(self.controls[f.name], ipywidgets.Text) and not isinstance(
                f.default, str
            ):
                self._literal.add(f.name)
        self.controls |= more or {}
        if compact:
            self._lines: dict[str, ipywidgets.DOMWidget] = self.controls
            boxes = [box for name, box in self.controls.items() if name not in hidden]
            rows = [ipywidgets.Box(boxes, layout=WRAPPED)]
        else:
            beside = {"align_items": "center"}
            rows = [
                ipywidgets.HBox([box, small(f.metadata["help"])], layout=beside)
                for f, box in zip(shown, self.controls.values())
            ]
            self._lines = {f.name: row for f, row in zip(shown, rows)}
        self._where = {f.name: where for f in shown if (where := f.metadata.get("where"))}
        if self._where:
            self.on_change(self._show)
            self._show()
        super().__init__(rows)

    def _show(self):
        """Show the knobs that have an effect beside the others' values; others in a row keep their
        place."""
        values = SimpleNamespace(**self._usual | {n: box.value for n, box in self.controls.items()})
        for name, where in self._where.items():
            there, layout = where(values), self._lines[name].layout
            layout.visibility = "visible" if there else "hidden"
            layout.display = "" if there or self._lines is self.controls else "none"

    def values(self) -> dict[str, Any]:
        """{name: value} of the controls. Raises ValueError on a text that is no value."""
        usual = self._usual
        return {
            name: _parsed(name, box.value, usual[name]) if name in self._literal else box.value
            for name, box in self.controls.items()
        }

    def offer(self, name: str, values: Collection[Any], value: Any) -> None:
        """Let a slider or a menu choose among ``values``, and set any control to ``value``."""
        box = self.controls[name]
        with box.hold_sync():  # one message: the values, and the one chosen
            if isinstance(box, ipywidgets.SelectionSlider | ipywidgets.Dropdown):
                if [v for _, v in box.options] != list(values):
                    box.options = [(label(v), v) for v in values]
            if box.value != value:
                box.value = value

    def on_change(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()`` whenever a control moves."""
        for box in self.controls.values():
            box.observe(lambda change: callback(), "value")

    def __repr__(self):
        words = ", ".join(f"{name}={box.value!r}" for name, box in self.controls.items())
        return f"<Knobs {self.cls.__name__}({words})>"


def _parsed(name, text, usual):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{name}: {text!r} is not a value; write for example {usual!r}") from error
