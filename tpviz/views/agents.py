"""``tpviz mcp``: predict, search, verify and the ledger of a trace as tools of the Model Context
Protocol, over standard input and output (https://modelcontextprotocol.io).

Plans, models and clusters are texts as on the command line (`tpviz.verbs.written`). Every number
has its unit and a label that says where it comes from. Ranks start where a call asks for them with
``start_ranks``, and are ended before it answers: a person who approves calls sees it there, each
time, and a flag of the server would have approved all that come. Standard output is the protocol's:
while it serves, what else is printed goes to standard error.
"""

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, redirect_stdout
from functools import wraps
from math import isfinite
from sys import stderr
from typing import Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import Field, ValidationError
from typing_extensions import TypedDict

import tpviz as tv
from tpviz.cluster import clusters
from tpviz.cluster.profiles import framework_of
from tpviz.core import models
from tpviz.verbs import written
from tpviz.verbs.checks import check_fit
from tpviz.verbs.predict import Prediction
from tpviz.verbs.ranking import Row, plans

Label = Literal[
    "predicted", "fitted", "simulated", "emulated", "measured", "imported", "formula", "unknown"
]
_T = TypeVar("_T")
_one_at_a_time = threading.Lock()  # of verifications: each ends all ranks when it is done


class Quantity(TypedDict):
    """A number and what it is. value: null where it is unknown. label: "predicted" by formula on
    described hardware, "fitted" by formula with numbers fitted to published runs, "simulated" on a
    virtual clock, "emulated" on ranks paced as a cluster, "measured" on ranks, "imported" from
    another program's trace, "formula" exact by formula, "unknown"."""

    value: float | None
    unit: str
    label: Label


class LedgerLine(TypedDict):
    """Collectives of one kind, axis and phase, of one step of one rank: how many, the bytes of
    their tensors, and the bytes that a rank sends where a ring moves them."""

    axis: str
    collective: str
    phase: str
    count: int
    payload: Quantity
    wire: Quantity


class PredictResult(TypedDict):
    """A step by formula: its parts sum to it, memory is of one rank, by kind."""

    strategy: str
    world_size: int
    cluster: str
    badge: str
    step_time: Quantity
    parts: dict[str, Quantity]
    exposed_communication: dict[str, Quantity]
    tokens_per_second: Quantity
    mfu: Quantity
    memory: dict[str, Quantity]
    fits: bool | None
    ledger: list[LedgerLine] | None
    words: str


class PlanFound(TypedDict):
    """A strategy in its place; same_plan: others that differ in knobs without effect."""

    strategy: str
    predicted: Quantity
    simulated: Quantity | None
    exposed_communication: Quantity
    memory: Quantity
    same_plan: list[str]


class SearchResult(TypedDict):
    """Plans, the fastest first, and in words why, and what was left out."""

    cluster: str
    plans: list[PlanFound]
    words: str


class VerifyResult(TypedDict):
    """Whether a split model has the numbers of one process, measured in float64 on real ranks."""

    ok: bool
    strategy: str
    ranks: int
    steps: int
    max_error: Quantity
    worst: str
    ledger_is_formula: bool | None
    ledger_differences: list[str]
    unwaited: list[str]
    not_compared: list[str]
    words: str


class LedgerResult(TypedDict):
    """Of a trace file: one step of one rank. notes: what is unknown, left out or assumed."""

    path: str
    badge: str
    label: Label
    ranks: list[int]
    rank: int
    step: int | None
    rows: list[LedgerLine]
    notes: list[str]


Strategy = Annotated[
    str,
    Field(description='A product of strategies, such as "Megatron(tp=2) * DataParallel(dp=2)"'),
]
Model = Annotated[
    str,
    Field(
        description='Sizes of a GPT, "layers=2, hidden=64", or a preset, "llama3(\'8B\', batch=8)"'
    ),
]
Hardware = Annotated[
    str,
    Field(
        description='A preset, "nvswitch(8)", or as_run_by one, with numbers fitted to published '
        "runs: \"as_run_by(dgx('H100-SXM-80GB', 64), 'Megatron-LM')\""
    ),
]


# -- tools -----------------------------------------------------------------------------------------
def predict(
    strategy: Strategy, gpt: Model = "", cluster: Hardware = "nvswitch(8)"
) -> PredictResult:
    """Predict one training step by formula: time and its parts, memory of a rank, exposed
    communication by axis, and the ledger of collectives. Starts nothing; takes milliseconds."""
    plan, model, hardware = _plan(strategy, gpt, cluster)
    found = tv.predict(plan, model, hardware)
    label = _label(found)
    seconds = _times(label)
    memory = _or_none(found.memory)
    return PredictResult(
        strategy=plan.short,
        world_size=plan.world_size,
        cluster=hardware.caption,
        badge=found.badge,
        step_time=seconds(found.step_time),
        parts={name: seconds(s) for name, s in found.parts.items()},
        exposed_communication={axis: seconds(s) for axis, s in found.exposed.items()},
        tokens_per_second=_quantity(found.tokens_per_second, "tokens/s", label),
        mfu=_quantity(found.mfu, "fraction of peak FLOP/s", label),
        memory={
            kind: _quantity(n, "bytes", "predicted")
            for kind, n in ({**memory, "total": memory.total} if memory else {}).items()
        },
        fits=found.fits if memory else None,
        ledger=_lines(_or_none(found.ledger), "formula"),
        words=found.describe(),
    )


def search(
    gpt: Model = "",
    cluster: Hardware = "nvswitch(8)",
    strategies: Annotated[
        list[str] | None, Field(description="Classes to try, such as ATP and AxoNN; null: all")
    ] = None,
    top: Annotated[int, Field(description="Plans to give; so many are simulated")] = 5,
    seconds: Annotated[float, Field(description="CPU seconds that it may take, about")] = 9.0,
) -> SearchResult:
    """Find the fastest plans for a model on a cluster: by formula, the first ones by simulation of
    their programs. Starts no ranks."""
    model, hardware = written.workload(gpt), written.cluster(cluster)
    found = tv.search(model, hardware, strategies, top, seconds=seconds, progress=False)
    ranked = [group for _, group in zip(range(top), plans(found.rows))]
    return SearchResult(
        cluster=hardware.caption,
        plans=[_found(group) for group in ranked],
        words=found.describe(),
    )


def verify(
    strategy: Strategy,
    gpt: Model = "",
    steps: Annotated[int, Field(description="AdamW steps to compare")] = 3,
    start_ranks: Annotated[
        bool, Field(strict=True, description="Must be true: processes start on this machine")
    ] = False,
    timeout: Annotated[float, Field(description="Seconds after which it is given up")] = 120.0,
) -> VerifyResult:
    """Run a strategy on real ranks in float64 and compare outputs, gradients, parameters and the
    ledger with one process. It starts as many processes as the strategy has ranks, on this machine,
    only with start_ranks=true; none is left when it answers."""
    plan, model = written.strategy(strategy), written.workload(gpt)
    check_fit(plan, model)
    if not start_ranks:
        raise ValueError(
            f"{plan.short} would start {plan.world_size} processes on this machine: ask for them "
            "with start_ranks=true; predict and search start none"
        )
    with _one_at_a_time:
        try:
            done = tv.verify(plan, model, steps, timeout=timeout, progress=False)
        finally:
            tv.restart()
    differences = done.ledger_diff
    return VerifyResult(
        ok=done.ok,
        strategy=plan.short,
        ranks=plan.world_size,
        steps=steps,
        max_error=_quantity(done.max_error, "relative to the tensor's largest value", "measured"),
        worst=done.worst,
        ledger_is_formula=None if differences is None else not differences,
        ledger_differences=list(differences or ()),
        unwaited=list(done.unwaited),
        not_compared=list(done.not_compared),
        words=repr(done),
    )


def ledger(
    path: Annotated[str, Field(description="A trace of tpviz, Kineto or Chrome, or a folder")],
    rank: Annotated[int | None, Field(description="null: the lowest")] = None,
    step: Annotated[int | None, Field(description="null: the last one marked, or all")] = None,
) -> LedgerResult:
    """Read a trace file of this machine and count the collectives of a step of a rank: axis, kind,
    phase, count, payload and bytes on the wire. Only reads."""
    trace = tv.load_trace(path)
    rows = trace.ledger(rank, step)
    label = _source(trace.badge)
    return LedgerResult(
        path=path,
        badge=trace.badge,
        label=label,
        ranks=trace.ranks,
        rank=trace.ranks[0] if rank is None else rank,
        step=step if step is not None or not trace.steps else trace.steps[-1],
        rows=_lines(rows, label) or [],
        notes=list(trace.fact("notes")),
    )


# -- the server ------------------------------------------------------------------------------------
def serve() -> None:
    """Serve the tools over standard input and output until the client leaves."""
    Agents().run("stdio")


class Agents(MCPServer):
    """The server. Bad arguments are answered in one line."""

    def __init__(self):
        self.offered = {
            verb.__name__: Tool.from_function(
                _told(verb), annotations=ToolAnnotations(read_only_hint=verb is not verify)
            )
            for verb in (predict, search, verify, ledger)
        }
        for tool in self.offered.values():
            tool.parameters["additionalProperties"] = False
        super().__init__(
            "tpviz",
            version=tv.__version__,
            instructions=_instructions(),
            tools=list(self.offered.values()),
            lifespan=_printing_elsewhere,
            log_level="WARNING",
        )

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """The answer of a tool. Raises ``ToolError`` with what is wrong, for the agent to read."""
        if (tool := self.offered.get(name)) is None:
            raise ToolError(f"there is no tool {name!r}; there are {', '.join(self.offered)}")
        known = tool.parameters["properties"]
        if odd := [word for word in arguments if word not in known]:
            raise ToolError(f"{name} takes no {', '.join(odd)}; it takes {', '.join(known)}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if isinstance(cause := error.__cause__, ToolError):
                raise cause from None  # without the library's words in front
            if isinstance(cause, ValidationError):
                raise ToolError("; ".join(map(_misfit, cause.errors()))) from None
            raise


def _misfit(found: Any) -> str:
    """One argument that does not fit its schema, in words."""
    place = ".".join(map(str, found["loc"]))
    if found["type"] == "missing":
        return f"{place} is missing"
    return f"{place}={found['input']!r}: {found['msg'].lower()}"


def _instructions():
    """What an agent reads first: how things are said, and the names there are."""
    known = ", ".join(tv.strategies()), ", ".join(models.presets()), ", ".join(clusters.presets())
    return (
        "How neural networks are split over many devices. A strategy is a product of "
        f"{known[0]}, each with its knobs; a model is sizes of a GPT or one of {known[1]}; a "
        f"cluster is one of {known[2]}. All are written as in Python, with plain values. Numbers "
        "have units and a label: predicted, fitted and simulated ones were not measured. An error "
        "says the nearest values that work."
    )


@asynccontextmanager
async def _printing_elsewhere(server: Any) -> AsyncGenerator[None, None]:
    """What is printed meanwhile goes to standard error, also what `print` has not yet written when
    the server ends and standard output is the protocol's file again."""
    with redirect_stdout(stderr):
        yield


def _told(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb; what it says of bad input and of ranks that failed is the tool's answer."""

    @wraps(verb)
    def answering(*args: Any, **kwargs: Any) -> Any:
        try:
            return verb(*args, **kwargs)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise ToolError(str(error)) from None

    return answering


# -- words and numbers -----------------------------------------------------------------------------
def _plan(strategy: str, gpt: str, cluster: str):
    return written.strategy(strategy), written.workload(gpt), written.cluster(cluster)


def _label(found: Prediction) -> Label:
    """Outside of the range that numbers were fitted in, the badge says what is."""
    return "fitted" if framework_of(found.cluster) and not found.outside else "predicted"


def _times(label: Label) -> Callable[[float], Quantity]:
    return lambda seconds: _quantity(seconds, "s", label)


def _quantity(value: float, unit: str, label: Label) -> Quantity:
    """JSON has no nan: what is unknown is null, and says so."""
    if not isfinite(value):
        return {"value": None, "unit": unit, "label": "unknown"}
    return {"value": value, "unit": unit, "label": label}


def _or_none(formula: Callable[[], _T]) -> _T | None:
    """What a strategy's formula says; None where it has none."""
    try:
        return formula()
    except NotImplementedError:
        return None


def _lines(found: Any, label: Label) -> list[LedgerLine] | None:
    """The rows of a `Ledger`; None for none."""
    if found is None:
        return None
    return [
        LedgerLine(
            axis=row.axis,
            collective=row.collective,
            phase=row.phase,
            count=row.count,
            payload=_quantity(row.payload_bytes, "bytes", label),
            wire=_quantity(row.wire_bytes, "bytes", label),
        )
        for row in found
    ]


def _found(group: list[Row]) -> PlanFound:
    """A plan of a search."""
    row = group[0]
    seconds = _times(_label(row.prediction))
    return PlanFound(
        strategy=row.strategy.short,
        predicted=seconds(row.predicted),
        simulated=None if row.simulated is None else _quantity(row.simulated, "s", "simulated"),
        exposed_communication=seconds(sum(row.prediction.exposed.values())),
        memory=_quantity(row.prediction.memory().total, "bytes", "predicted"),
        same_plan=[other.strategy.short for other in group[1:]],
    )


def _source(badge: str) -> Label:
    """What a trace's badge says of where it comes from; "unknown" where its parts differ."""
    labels: tuple[Label, ...] = "emulated", "simulated", "imported"
    for label in labels:
        if badge.startswith(label):
            return label
    return "measured" if badge.startswith(("this machine", "NCCL", "shared GPU")) else "unknown"
