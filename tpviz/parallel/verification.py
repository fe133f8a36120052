"""`verify_parallel`: is a split model the same model? Everything compared with one process.

    tv.verify_parallel(make_model, tv.ATP(mesh=(2, 2)), example_inputs)
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

from tpviz.checks import whole_number
from tpviz.runtime.launch import launch
from tpviz.schemes.merak import Merak

from .grid import rows_of
from .module import inputs_of, parallelize
from .report import Report
from .stages import loss_of

TOLERANCE = 1e-10  # as `tpviz.verify`: far above float64's rounding, far below a term left out


@dataclass(frozen=True)
class ParallelVerification:
    """What `verify_parallel` found; truth is ``ok``.

    errors : {what: error} for "outputs" (of a pipeline "losses"), and "gradient <name>" and
    "parameter <name>" of every parameter: the largest over the ranks of
    max |a - b| / max(1, max |b|), b being one process's.
    report : the `Report` of the split.
    """

    strategy: object
    steps: int
    errors: dict
    report: Report

    @property
    def max_error(self):
        """The largest error; infinite where a value is not a number or a gradient is missing."""
        return max(self.errors.values())

    @property
    def worst(self):
        """What has the largest error."""
        return max(self.errors, key=self.errors.get)

    @property
    def ok(self):
        """All errors at most 1e-10."""
        return self.max_error <= TOLERANCE

    def __bool__(self):
        return self.ok

    def to_table(self):
        """Rows of strings (what, largest error, where), header first."""
        rows = [["compared", "largest error", "where"]]
        rows += [[name, f"{error:.1e}", ""] for name, error in self.errors.items()
                 if name in ("outputs", "losses")]
        for kind in ("gradient", "parameter"):
            of_kind = {k: e for k, e in self.errors.items() if k.startswith(kind + " ")}
            name = max(of_kind, key=of_kind.get)
            rows.append([f"{len(of_kind)} {kind}s", f"{of_kind[name]:.1e}",
                         name.removeprefix(kind + " ")])
        return rows

    def __repr__(self):
        table = self.to_table()
        widths = [max(len(row[k]) for row in table) for k in range(3)]
        verdict = "equal" if self.ok else "NOT EQUAL"
        return "\n".join([
            f"{verdict} (tolerance {TOLERANCE}): {self.report.model} by {self.strategy.short}, "
            f"{self.steps} AdamW steps, float64",
            *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)])


def verify_parallel(make_model, strategy, example_inputs, steps=3, *, rules=None, loss=None,
                    mesh=None, easy=False, equal_rows=False, timeout=120, device=None, **pipeline):
    """Split ``make_model()`` on real ranks in float64; compare every number with one process.

    Compared on every rank: the outputs and every parameter's gradient of the first step, and all
    parameters after ``steps`` AdamW steps. Evaluation mode, so dropout is off: it would drop other
    elements.

    make_model : a function of no arguments; called with one seed on each rank.
    example_inputs, rules, mesh, easy, equal_rows, pipeline : as `parallelize` takes them; ``mesh``
        only within a world. With AxoNN they are the whole batch, of which each rank takes its rows.
    loss : function of the model's output; by default all its floating-point tensors, weighted. With
        AxoNN it must be a mean over rows, and first dims of outputs must be rows; with Merak a mean
        over rows, by default the model's own.
    timeout, device : as `tpviz.launch` takes them.

    Inside a world the ranks are those of the world, and each returns its own errors. Returns a
    `ParallelVerification`; raises what `parallelize` raises.
    """
    steps = whole_number("steps", steps)
    example_inputs = tree_map(_wide, example_inputs)
    how = {"rules": rules, "easy": easy, "equal_rows": equal_rows, **pipeline}
    job = (make_model, strategy, example_inputs, steps, loss, how)
    if dist.is_available() and dist.is_initialized():
        errors, report = _verify_here(*job, mesh, device)
    else:
        plan = parallelize(_made(make_model), strategy, example_inputs, **how)  # errors now
        if totals := getattr(plan.report, "totals", None):
            rows_of(example_inputs, 0, totals.shares, " * ".join(totals.axes))
        found = launch(_sent_here, *job, None, device, world_size=strategy.world_size,
                       timeout=timeout, device=device)
        errors = {name: max(errors[name] for errors, _ in found) for name in found[0][0]}
        report = found[0][1] or plan.report
    return ParallelVerification(strategy, steps, errors, report)


def _sent_here(*job):
    """One rank's errors and report; that of a pipeline holds a graph, which cannot be sent."""
    errors, report = _verify_here(*job)
    return errors, report if isinstance(report, Report) else None


def _verify_here(make_model, strategy, example_inputs, steps, loss, how, mesh, device):
    """One rank: ({what: error}, report)."""
    device = device or "cpu"
    inputs = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x,
                      example_inputs)
    whole, model = (_made(make_model).to(device) for _ in range(2))
    if isinstance(strategy, Merak):
        return _verify_pipeline(whole, model, strategy, inputs, steps, loss, mesh, how)
    split = parallelize(model, strategy, inputs, mesh=mesh, **how)
    given = inputs_of(inputs), inputs_of(split.rows(inputs))
    of_rows = split.share, split.shares
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (whole, split)]
    errors = {}
    for step in range(steps):
        outputs = []
        for module, optimizer, (args, kwargs), share in zip(
                (whole, split), optimizers, given, ((0, 1), of_rows)):
            optimizer.zero_grad()
            outputs.append(module(*args, **kwargs))
            (loss(outputs[-1]) if loss else _loss(outputs[-1], *share)).backward()
        if step == 0:
            found = _floats(outputs[1])
            found = map(split.grid.joined, found) if split.grid else found
            errors["outputs"] = max(map(_error, found, _floats(outputs[0])))
            expected = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
            errors |= _errors("gradient", split.full_gradients(), expected)
        for optimizer in optimizers:
            optimizer.step()
    errors |= _errors("parameter", split.full_state_dict(), dict(whole.named_parameters()))
    return errors, split.report


def _verify_pipeline(whole, model, strategy, inputs, steps, loss, mesh, how):
    """The same of a pipeline: losses in place of outputs."""
    split = parallelize(model, strategy, inputs, mesh=mesh, loss=loss, **how)
    args, kwargs = inputs_of(inputs)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (whole, split)]
    errors = {"losses": 0.0}
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = loss_of(whole(*args, **kwargs), loss, None)
        expected.backward()
        found = split.step(*args, **kwargs)
        if found is not None:
            mean = split.mean_over_replicas(found)
            errors["losses"] = max(errors["losses"], _error(mean, expected))
        if step == 0:
            gradients = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
            errors |= _errors("gradient", split.full_gradients(), gradients)
        for optimizer in optimizers:
            optimizer.step()
    errors |= _errors("parameter", split.full_state_dict(), dict(whole.named_parameters()))
    return errors, split.report


def _made(make_model):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make_model().double().eval()


def _wide(x):
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _floats(outputs):
    return [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and
            t.is_floating_point()]


def _loss(outputs, share, shares):
    """Every element counts, each with another weight, so that no two can be exchanged; a share has
    the weights of its rows, and the mean over shares is the whole's."""
    total = 0
    for t in _floats(outputs):
        count = t.numel() if t.dim() else 0
        place = torch.arange(share * count, share * count + t.numel(), device=t.device)
        total = total + (t * place.to(t.dtype).cos().view_as(t)).mean()
    return total


def _errors(kind, found, expected):
    return {f"{kind} {name}": _error(found[name], value) if name in found else float("inf")
            for name, value in expected.items()}


def _error(found, expected):
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.detach(), expected.detach()
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1))
    return error if error == error else float("inf")
