"""`verify_parallel`: is a split model the same model? Everything compared with one process.

tv.verify_parallel(make_model, tv.ATP(mesh=(2, 2)), example_inputs)
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from tpviz.core.checks import whole_number
from tpviz.core.tables import listed
from tpviz.core.trace import Ledger
from tpviz.ranks.launch import launch, progress
from tpviz.ranks.recorder import record
from tpviz.schemes.merak.strategy import Merak, as_merak
from tpviz.verbs.equality import (
    Verdict,
    error,
    errors,
    largest,
    ledger_diff,
    ledger_lines,
    left_out,
    nudge,
    unwaited,
    unwaited_lines,
)

from .experts import ExpertCall, ExpertPlan, choices_in
from .module import inputs_of, parallelize
from .partition.leaves import tensors_of
from .report import ModuleReport
from .sent import calls_of, pipeline_ledger
from .stages import loss_of
from .watch import lowest, watched

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.atp.strategy import ATP
    from tpviz.schemes.axonn.strategy import AxoNN
    from tpviz.schemes.megatron.strategy import Megatron

    from .pipelined import PipelineReport
    from .plan import Planned
    from .rules import Pair


@dataclass(frozen=True, repr=False)
class ParallelVerification(Verdict):
    """What `verify_parallel` found; truth is ``ok``.

    errors : {what: error} for "outputs" (of a pipeline "losses"), "gradient <name>" and
    "parameter <name>" of every parameter, and "buffer <name>" where layers are split: the largest
    over the ranks, scaled as `tpviz.verify` scales them.
    report : the `ModuleReport` of the split.
    ledger_diff : one line for each difference of a rank's measured ledger from the formula, which
    is that of the report with the calls of layers seen in one process.
    unwaited : one line for each rank that used the result of a collective without waiting for it.
    reduced : {module: dtype} of the modules that compute in less than float64, though their
    parameters are float64. With them rounding is that of the lowest dtype: the model can be
    compared no better, and `ok` says that it is equal as far as that goes.
    not_compared : what of the model the verdict says nothing of: outputs that are no floating-point
    numbers, buffers of a pipeline, what evaluation mode leaves out.
    """

    strategy: "ATP | AxoNN | Megatron | Merak"
    steps: int
    errors: dict[str, float]
    report: "ModuleReport | PipelineReport"
    ledger_diff: tuple[str, ...] = ()
    unwaited: tuple[str, ...] = ()
    reduced: dict[str, str] = field(default_factory=dict)
    not_compared: tuple[str, ...] = ()

    def __repr__(self):
        return self._said(
            f"{self.report.model} by {self.strategy.short}, {self.steps} AdamW steps",
            self._reduced(),
        )

    def _reduced(self):
        """In words: what is not compared at the level of float64."""
        by_dtype = {}
        for path, dtype in self.reduced.items():
            by_dtype.setdefault(dtype, []).append(path)
        verdict = "equal" if self.ok else "NOT EQUAL"
        return [
            f"{listed(paths, most=3)} {'computes' if len(paths) == 1 else 'compute'} in "
            f"{dtype}: {verdict} within {dtype} rounding, not compared at float64 level"
            for dtype, paths in by_dtype.items()
        ]


def verify_parallel(
    make_model: Callable[[], torch.nn.Module],
    strategy: "ATP | AxoNN | Megatron | Merak",
    example_inputs: Any,
    steps: int = 3,
    *,
    rules: "Pair | dict[str, Any] | Sequence[Pair | dict[str, Any]] | None" = None,
    loss: Callable[..., torch.Tensor] | None = None,
    mesh: "DeviceMesh | None" = None,
    easy: bool = False,
    equal_rows: bool = False,
    timeout: float | None = 120,
    device: str | None = None,
    **pipeline: Any,
) -> ParallelVerification:
    """Split ``make_model()`` on real ranks in float64; compare every number with one process.

    Compared on every rank: the outputs of every step, every parameter's gradient of the first, all
    parameters after ``steps`` AdamW steps, and the ledger with the formula; a collective whose
    result is used before it was waited for is named. Evaluation mode, so dropout is off: it would
    drop other elements.

    make_model : a function of no arguments; called with one seed on each rank.
    example_inputs, rules, mesh, easy, equal_rows, pipeline : as `parallelize` takes them; ``mesh``
        only within a world. With AxoNN they are the whole batch, of which each rank takes its rows.
    loss : function of the model's output; by default all its floating-point tensors, weighted. With
        AxoNN it must be a mean over rows, and first dims of outputs must be rows; with Merak a mean
        over rows, by default the model's own.
    timeout, device : as `tpviz.launch` takes them.

    Inside a world the ranks are those of the world, and each returns its own errors. Returns a
    `ParallelVerification`; raises what `parallelize` raises, and ``ValueError`` without inputs.
    """
    steps = whole_number("steps", steps)
    if example_inputs is None:
        raise ValueError("example_inputs=None: give a batch, on which the ranks are compared")
    example_inputs = tree_map(_wide, example_inputs)
    how = {"rules": rules, "easy": easy, "equal_rows": equal_rows, **pipeline}
    strategy = as_merak(strategy)
    job = (make_model, strategy, example_inputs, steps, loss, how)
    if dist.is_available() and dist.is_initialized():
        found, first = [_verify_here(*job, mesh, device)], dist.get_rank()
        report = found[0].report
    else:
        plan = parallelize(_made(make_model), strategy, example_inputs, **how)  # errors now
        _refuse_unless_it_runs(_made(make_model), example_inputs)
        if totals := getattr(plan.report, "totals", None):
            totals.check(example_inputs)
        found = launch(
            _sent_here,
            *job,
            None,
            device,
            world_size=strategy.world_size,
            timeout=timeout,
            device=device,
        )
        report, first = found[0].report or plan.report, 0
    return ParallelVerification(
        strategy,
        steps,
        largest([rank.errors for rank in found]),
        report,
        ledger_diff([rank.ledger_diff for rank in found], first),
        unwaited_lines([rank.unwaited for rank in found], first),
        found[0].reduced,
        left_out([rank.not_compared for rank in found], first),
    )


class _Rank(NamedTuple):
    """What a rank found."""

    errors: dict
    report: Any
    unwaited: str
    reduced: dict
    ledger_diff: list
    not_compared: list


def _sent_here(*job):
    """One rank's; the report of a pipeline holds a graph, which cannot be sent."""
    found = _verify_here(*job)
    return found if isinstance(found.report, ModuleReport) else found._replace(report=None)


def _verify_here(make_model, strategy, example_inputs, steps, loss, how, mesh, device):
    """One rank's `_Rank`."""
    progress(0, steps, "verifying")
    device = device or "cpu"
    inputs = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, example_inputs)
    whole, nudged, model = (_made(make_model).to(device) for _ in range(3))
    way = (_Stages if isinstance(strategy, Merak) else _Layers)(
        model,
        strategy,  # pyright: ignore[reportArgumentType]
        inputs,
        loss,
        mesh,
        how,
    )
    split, found = way.split, {way.compared: 0.0}
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (whole, nudged, split)]
    with record() as recorder, way.watching(whole):
        for step in range(steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            if step == 0:
                with watched(whole) as reduced, way.noted(whole):
                    expected = way.whole(whole)
                dtype = lowest(reduced)
                nudge(nudged.parameters(), dtype)
            else:
                expected = way.whole(whole)
            close = way.whole(nudged)
            with recorder.step():
                given = way.own()
            given = way.joined(given)
            three = zip(given, expected, close, strict=bool(given))
            found[way.compared] = max(found[way.compared], *(error(*t, dtype) for t in three), 0.0)
            if step == 0:
                found |= _gradient_errors(split, whole, nudged, dtype)
            for optimizer in optimizers:
                optimizer.step()
            progress(step + 1, steps, "verifying")
    found |= errors(
        "parameter",
        split.full_state_dict(),
        dict(whole.named_parameters()),
        dict(nudged.named_parameters()),
        dtype,
    )
    found |= way.buffers(whole, nudged, dtype)
    reduced = {
        path or f"the model ({type(whole).__name__})": str(dtype).removeprefix("torch.")
        for path, dtype in reduced.items()
    }
    ledgers = [recorder.trace.ledger(step=step) for step in range(steps)]
    return _Rank(
        found,
        split.report,
        unwaited(recorder.trace),
        reduced,
        ledger_lines(ledgers, map(way.ledger, range(steps))),
        [*way.not_compared(whole), *_only_in_training(whole)],
    )


def _gradient_errors(split, whole, nudged, dtype):
    """Of every parameter; infinite where one process has none and a rank has."""
    found = split.full_gradients()
    none = [n for n, p in whole.named_parameters() if p.grad is None and n in found]
    return errors("gradient", found, _gradients(whole), _gradients(nudged), dtype) | {
        f"gradient {name}": float("inf") for name in none if found[name].any()
    }


def _only_in_training(model):
    """What evaluation mode leaves out."""
    kinds = torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm
    found = {
        type(m).__name__ for m in model.modules() if isinstance(m, kinds) and getattr(m, "p", 1)
    }
    return [f"{kind} in training mode" for kind in sorted(found)]


class _Way:
    """What the two ways of splitting a model have in common."""

    split: Any  # a `Parallelized` or a `Pipelined`
    given: Any
    pairs: "Iterable[Planned]"
    shares: int

    @contextmanager
    def noted(self, module):
        """While inside, the calls of split layers are noted, of which the formula is."""
        with calls_of(module, self.pairs) as calls:
            yield
        layers = dict(module.named_modules())
        self.calls = [
            call._replace(
                tokens=call.tokens // self.shares,
                # of an output that the loss does not use there is no backward
                back=call.back
                and not (call.trained and layers[call.part.path].weight.grad is None),
            )
            for call in calls
        ]

    def watching(self, module):
        """While inside, what one process does at every step is noted."""
        return nullcontext()


class _Layers(_Way):
    """How a `Parallelized` and one process make a step."""

    compared = "outputs"

    def __init__(
        self, model, strategy: "ATP | AxoNN | Megatron", inputs, loss, mesh, how: dict[str, Any]
    ):
        self.split = split = parallelize(model, strategy, inputs, mesh=mesh, **how)
        self.given, self.rows, self.loss = inputs_of(inputs), inputs_of(split.rows(inputs)), loss
        self.others: set[str] = set()
        self.pairs, self.shares = split.report.pairs, split.shares
        self.chosen: list[list[ExpertCall]] = []

    @contextmanager
    def watching(self, module):
        """Of every step the experts that one process chooses, by which rows go."""
        plan = self.split.report.totals
        with choices_in(module, plan.stacks if isinstance(plan, ExpertPlan) else ()) as self.chosen:
            yield

    def ledger(self, step):
        """What this rank is to send in a step, by formula."""
        grid, report = self.split.grid, self.split.report
        if isinstance(report.totals, ExpertPlan):
            report = replace(report, totals=report.totals.after(self.chosen[step]))
        return report.ledger_of(self.calls, 8) + (
            grid.first_ledger() if grid and step == 0 else Ledger.of([])
        )

    def whole(self, module):
        """What one process computes of the whole batch, and backward."""
        return self._outputs(module, self.given, None)

    def own(self):
        """What this rank computes of its rows, and backward."""
        return self._outputs(self.split, self.rows, self.split.grid)

    def _outputs(self, module, given, grid):
        args, kwargs = given
        outputs = module(*args, **kwargs)
        (self.loss(outputs) if self.loss else _loss(outputs, grid)).backward()
        self.others |= {str(t.dtype) for t in tensors_of(outputs) if not t.is_floating_point()}
        return _floats(outputs)

    def joined(self, outputs) -> list[torch.Tensor]:
        """Those of all rows. Collective."""
        return self.split.joined(outputs)

    def buffers(self, whole, nudged, dtype):
        """Errors of buffers, which every rank has whole."""
        own, expected, close = (dict(m.named_buffers()) for m in (self.split.module, whole, nudged))
        return errors("buffer", own, expected, close, dtype)

    def not_compared(self, whole):
        """Outputs that have no gradient."""
        return [f"outputs of {dtype}" for dtype in sorted(self.others)]


class _Stages(_Way):
    """The same of a `Pipelined`: losses in place of outputs."""

    compared = "losses"

    def __init__(self, model, strategy: Merak, inputs, loss, mesh, how: dict[str, Any]):
        self.split = parallelize(model, strategy, inputs, mesh=mesh, loss=loss, **how)
        self.given, self.loss = inputs_of(inputs), loss
        plan = self.split.report.plan
        self.pairs, self.shares = plan.pairs if plan else (), strategy.dp * strategy.microbatches

    def ledger(self, step):
        return pipeline_ledger(self.split, self.calls)

    def whole(self, module):
        args, kwargs = self.given
        loss = loss_of(module(*args, **kwargs), self.loss, None)
        loss.backward()
        return [loss]

    def own(self):
        args, kwargs = self.given
        return self.split.step(*args, **kwargs)

    def joined(self, loss) -> list[torch.Tensor]:
        return [] if loss is None else [self.split.mean_over_replicas(loss)]

    def buffers(self, whole, nudged, dtype):
        return {}

    def not_compared(self, whole):
        """A stage has the buffers that it reads."""
        return [f"buffer {name}" for name, _ in whole.named_buffers()]


def _gradients(module):
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def _made(make_model):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make_model().double().eval()


def _refuse_unless_it_runs(model, inputs):
    """Raise ``ValueError`` where the model itself, on one process, fails in float64."""
    args, kwargs = inputs_of(inputs)  # pyright: ignore[reportGeneralTypeIssues]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        said = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{type(model).__name__} does not run in float64, in which it would be compared "
            f"({type(error).__name__}: {said}): use operations that have float64; of Hugging "
            "Face's experts model.set_experts_implementation('eager') has"
        ) from error


def _wide(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _floats(outputs):
    return [t for t in tensors_of(outputs) if t.is_floating_point()]


def _loss(outputs, grid):
    """Every element counts, each with another weight, so that no two can be exchanged; a share has
    the weights of its elements, and the mean over shares is the whole's."""
    total: Any = 0
    for t in _floats(outputs):
        place = grid.places(t) if grid else torch.arange(t.numel()).view_as(t)
        total = total + (t * place.to(t.device, t.dtype).cos()).mean()
    return total
