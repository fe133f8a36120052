"""Plans, models and clusters written as in Python, with plain values only: read for the command
line and for agents; nothing else is evaluated. `code` writes them, for cells of notebooks.

>>> strategy("Megatron(tp=2) * DataParallel(dp=2)").world_size
4
>>> workload("layers=2, hidden=64").hidden, workload("llama3('8B', batch=8)").batch
(64, 8)
>>> cluster("nvswitch(4)").size, cluster("as_run_by(dgx('H100-SXM-80GB', 16))").size
(4, 16)
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import reduce
from inspect import signature
from math import inf
from operator import mul
from typing import TYPE_CHECKING, Any

from tpviz.cluster import Cluster, Device, Dimension, Level, clusters
from tpviz.core import models
from tpviz.core.mesh import Mesh
from tpviz.core.routing import Routing
from tpviz.core.workload import GPT
from tpviz.schemes import strategies
from tpviz.schemes.factor import Factor

if TYPE_CHECKING:
    from tpviz.schemes.strategy import Strategy


def strategy(text: str) -> "Strategy":
    """The strategy that a text says, as its ``short`` writes it: calls, multiplied, perhaps
    ``(... * ...).with_order("tp-dp")``. Raises ``ValueError`` for anything else, and as its classes
    do."""
    return _product(_expression(text), strategies())


def workload(text: str) -> GPT:
    """The model that a text says: sizes of a `tpviz.GPT`, ``layers=2, hidden=64``, or a preset of
    `tpviz.models`, ``llama3('8B', batch=8)``. Raises as `strategy` does."""
    preset = text.partition("(")[0].strip().isidentifier()  # not "layers=2"
    call = text if preset else f"GPT({text})"
    return _made(_expression(call), {"GPT": GPT, **models.presets()}, "workload")


def cluster(text: str) -> Cluster:
    """The cluster that a text says: a preset of `tpviz.clusters`, or one ``as_run_by`` a framework
    around it. Raises as `strategy` does."""
    known = {**clusters.presets(), "as_run_by": clusters.as_run_by}
    return _made(_expression(text), known, "cluster")


def _expression(text: str):
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not written as in Python: {error.msg}") from None


def _product(node: ast.expr, known: Mapping[str, Callable[..., Any]]) -> Any:
    """What a product of calls says, in order."""

    def of(node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return [*of(node.left), *of(node.right)]
        return [node]

    several = of(node)
    if len(several) > 1:
        return reduce(mul, (_product(one, known) for one in several))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "with_order"
    ):
        given, named = _values(node, {}, "")
        return _product(node.func.value, known).with_order(*given, **named)
    return _made(node, known, "strategy")


def _made(node: ast.expr, known: Mapping[str, Callable[..., Any]], what: str) -> Any:
    """What ``Name(1, knob=2)``, or a name alone, says; a value may be another such call."""
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    name = ast.unparse(call.func)
    if name not in known:
        raise ValueError(f"{name!r} is no {what}; there are {', '.join(sorted(known))}")
    given, named = _values(call, known, what)
    return known[name](*given, **named)


def _values(call: ast.Call, known: Mapping[str, Callable[..., Any]], what: str):
    """The arguments of a call: (those by place, those by name)."""

    def value(node):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in known:
            return _made(node, known, what)
        return ast.literal_eval(node)

    try:
        named = {word.arg or "**": value(word.value) for word in call.keywords}
        return [value(one) for one in call.args], named
    except ValueError as error:
        if "malformed node" not in str(error):
            raise
        raise ValueError(f"{ast.unparse(call)}: use plain values, such as tp=2 or (2, 2)") from None


# -- and back --------------------------------------------------------------------------------------
def code(value: Any) -> str:
    """A strategy, a model, a cluster, or a plain value as code of Python, with tpviz as ``tv``.

    >>> from tpviz import ATP, Pipeline
    >>> code(ATP(mesh=(2, 2)) * Pipeline(pp=4)), code(cluster("dgx")), code(("a", 1.5))
    ('tv.ATP() * tv.Pipeline(pp=4)', 'tv.clusters.dgx()', "('a', 1.5)")

    Raises ``ValueError`` for anything else, such as a schedule of one's own.
    """
    if isinstance(value, Factor) and {*map(type, value.factors)} <= {*strategies().values()}:
        words = " * ".join(_call(one, _turned(one)) for one in value.factors)
        order = getattr(value, "placement", "")
        return f"({words}).with_order({order!r})" if order else words
    if isinstance(value, tuple | list):
        words = [*map(code, value)]
        inside = ", ".join(words) + "," * (isinstance(value, tuple) and len(words) == 1)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{code(k)}: {code(v)}' for k, v in value.items())}}}"
    if isinstance(value, Cluster):
        for name, preset in clusters.presets().items():
            if preset() == value:
                return f"tv.clusters.{name}()"
    if isinstance(value, GPT | Cluster | Mesh | Device | Dimension | Level | Routing):
        return _call(value, [f for f in fields(value) if f.init])
    if value is None or isinstance(value, bool | int | float | str):
        return "float('inf')" if value == inf else repr(value)
    raise ValueError(f"{value!r} has no code of its own")


def cell(name: str, maker: Callable[..., Any], **given: Any) -> str:
    """The code of a notebook's cell that makes a view with ``tv.<name>``, of the arguments that are
    not at the default of ``maker``. Raises ``ValueError`` where one has no `code`."""
    usual = signature(maker).parameters
    told = {n: v for n, v in given.items() if n not in usual or usual[n].default != v}
    arguments = ", ".join(f"{name}={code(v)}" for name, v in told.items())
    return f"import tpviz as tv\n\nview = tv.{name}({arguments})"


def _turned(factor: Any):
    """The fields of a factor that are knobs of its own."""
    return [f for f in fields(factor) if f.metadata]


def _call(value: Any, several: Iterable[Any]):
    words = []
    for f in several:
        usual = f.default if f.default_factory is MISSING else f.default_factory()
        if (own := getattr(value, f.name)) != usual:
            words.append(f"{f.name}={code(own)}")
    return f"tv.{type(value).__name__}({', '.join(words)})"
