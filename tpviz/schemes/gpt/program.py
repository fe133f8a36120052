"""A rank's training step, the same handle for every scheme, and the one-process reference's.

The gather methods give full tensors under the reference's names on every rank, by collectives of
their own; they are for checking, not part of a step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import proxy

import torch
import torch.distributed as dist

from tpviz.core.labels import label
from tpviz.core.mesh import group_along
from tpviz.schemes.collectives import GroupsByAxis, own_of, reordered, restored
from tpviz.schemes.gradients import add_up, own_rows, share
from tpviz.schemes.zero.flat_param import FlatBucket, gather_updated

from .experts import LoadBias, weigh
from .initial import load_initial
from .model import ReferenceGPT

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT
    from tpviz.schemes.context.sequence import SequenceCut
    from tpviz.schemes.grid.layout import Layout

LEARNING_RATE = 1e-3


def batch_of(
    workload: "GPT", step: int, device: "str | torch.device" = "cpu"
) -> tuple[torch.Tensor, ...]:
    """(inputs, targets) of a training step as tensors (batch, seq) on ``device``."""
    return tuple(torch.from_numpy(a).to(device) for a in workload.tokens(step))


def adamw(
    parameters: Iterable[torch.Tensor] | Iterable[dict[str, Any]], lr: float = LEARNING_RATE
) -> torch.optim.AdamW:
    """The optimizer of all programs: PyTorch's fused AdamW, default betas and weight decay."""
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


def load_parts(
    module: "nn.Module",
    workload: "GPT",
    splits: Mapping[str, Sequence[tuple[Any, ...]]],
    mesh: GroupsByAxis,
    copies: Mapping[str, str] | tuple[()] = (),
) -> None:
    """Fill each parameter with this rank's part of its initial value; splits: as in `Program`,
    copies: as `load_initial` takes them."""
    load_initial(module, workload, lambda name, full: own_part(name, full, splits, mesh), copies)


def own_part(
    name: str,
    full: torch.Tensor,
    splits: Mapping[str, Sequence[tuple[Any, ...]]],
    mesh: GroupsByAxis,
) -> torch.Tensor:
    """This rank's part of a parameter."""
    for dim, axis, *order in reversed(splits.get(name, ())):
        full = own_of(reordered(full, dim, *order), mesh.get_group(axis), dim)
    return full


def gather(
    local: torch.Tensor, splits: Sequence[tuple[Any, ...]], mesh: GroupsByAxis | None
) -> torch.Tensor:
    """The full tensor from every rank's part; ``splits``: (dim, axis) pairs, inner axis first, or
    (dim, axis, order) where ranks have chunks of the dim in another order, see `reordered`."""
    return gather_together({"": local}, {"": splits}, mesh)[""]


def gather_together(
    parts: Mapping[str, torch.Tensor],
    splits: Mapping[str, Sequence[tuple[Any, ...]]],
    mesh: GroupsByAxis | None,
) -> dict[str, torch.Tensor]:
    """{name: full tensor}, as by `gather`, in one all-gather for tensors cut over the same axes."""
    alike = {}
    for name in parts:
        alike.setdefault(tuple(axis for _, axis, *_ in splits.get(name, ())), []).append(name)
    full = {}
    for axes, names in alike.items():
        tensors = [parts[name].detach() for name in names]
        for number, axis in enumerate(axes):
            group = mesh.get_group(axis)  # pyright: ignore[reportOptionalMemberAccess]
            if group.size() == 1:
                continue
            flat = torch.cat([t.reshape(-1) for t in tensors])
            received = [torch.empty_like(flat) for _ in range(group.size())]
            dist.all_gather(received, flat, group=group)
            of_ranks = [of_rank.split([t.numel() for t in tensors]) for of_rank in received]
            cuts = [splits[name][number] for name in names]
            tensors = [
                restored(torch.cat([part.view_as(t) for part in shards], dim), dim, *order)
                for (dim, _, *order), t, *shards in zip(cuts, tensors, *of_ranks)
            ]
        full |= zip(names, tensors)
    return {name: full[name].contiguous() for name in parts}


class Program:
    """One rank's part of the training of a workload.

    module : the rank's network; called with (inputs, targets) it returns the mean loss.
    splits : {parameter name: [(dim, axis)]}, inner axis first; empty where the rank holds the
    whole parameter.
    layout : of a tensor-parallel module: how its activations are cut.
    rows : (dim, axis) of the rows of activations, inner axis first, where the batch is shared
    inside this program. sequence : how sequences are cut, where they are. summed : {axis:
    parameters whose gradients `synchronise` adds up over it}.
    clip : largest norm of the gradient, 0 for any.
    accumulation : microbatches of a step.
    buckets : flat buffers of data parallelism, if there are any, that have the gradients and
    parameters. bias : what balances loads after each step, if anything does.
    unkept : what of a step `verify` cannot compare: "input gradient", "gradient <name>" of a
    parameter of which no rank keeps the whole gradient. extra : what this rank holds that the
    reference lacks, as "parameter <name>" or "buffer <name>".
    """

    clip, accumulation = 0.0, 1
    layout: "Layout | None" = None
    rows: Sequence[tuple[Any, ...]] = ()
    sequence: "SequenceCut | None" = None
    buckets: Sequence[FlatBucket] = ()
    bias: LoadBias | None = None
    unkept: Sequence[str] = ()
    extra: Sequence[str] = ()

    def __init__(
        self,
        workload: "GPT",
        module: "nn.Module",
        mesh: "DeviceMesh | None" = None,
        splits: Mapping[str, Sequence[tuple[Any, ...]]] | None = None,
        lr: float = LEARNING_RATE,
        accumulation: int = 1,
        clip: float = 0.0,
        layout: "Layout | None" = None,
        rows: Sequence[tuple[Any, ...]] = (),
        sequence: "SequenceCut | None" = None,
        summed: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ):
        self.workload, self.module, self.mesh = workload, module, mesh
        self.accumulation, self.clip, self.layout, self.rows = accumulation, clip, layout, rows
        self.sequence, self.summed = sequence, summed
        self.named = dict(module.named_parameters())
        self.splits = splits or {}
        self.optimizer = adamw(module.parameters(), lr)
        self.watched: dict[str, list[Any]] = {}

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """Forward, backward and gradient synchronisation of one batch.

        ``batch`` is the whole one: inputs and targets, each (batch, seq). Returns the loss: the
        mean over the sequences this rank saw.
        """
        self.begin()
        loss = self.accumulate(self.own_rows(batch))
        self.synchronise()
        if self.clip:
            self.clip_gradients()
        return loss

    def begin(self) -> None:
        """Forget the gradients of the step before."""
        self.optimizer.zero_grad()

    def own_rows(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's rows of the whole batch, and of each its tokens."""
        return own_rows(batch, self.rows, self.mesh, self.sequence)

    def accumulate(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Forward and backward of this rank's rows, in microbatches whose gradients add up to this
        rank's part of the whole batch's. Returns the mean loss of the rows."""
        self.watched.clear()
        count, losses = self.accumulation, []
        factor = share(rows[0].numel(), self.workload.batch * self.workload.seq, count)
        if self.workload.aux_loss:
            weigh(self.module, factor)
        for number, part in enumerate(zip(*(of_all.chunk(count) for of_all in rows))):
            with label(microbatch=number if count > 1 else -1):
                self.before_forward(number)
                loss = self.forward(part)
                self.before_backward()
                loss.backward(torch.full_like(loss, factor))
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def before_forward(self, microbatch: int) -> None:
        """Hook for schemes, called before each microbatch's forward."""

    def before_backward(self) -> None:
        """Hook for schemes, called between a microbatch's forward and backward."""

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss of the batch, ready for backward."""
        return self.module(*batch)

    def synchronise(self) -> None:
        """Complete the gradients that are sums over an axis, in one message an axis."""
        with label(phase="sync"):
            for axis, names in self.summed.items():
                self.sum_gradients(axis, [self.named[name] for name in names])

    def sum_gradients(self, axis: str, parameters: Sequence[torch.Tensor]) -> None:
        """Add up the gradients of all ranks along an axis, in one message."""
        add_up(parameters, group_along(self.mesh, axis))  # pyright: ignore[reportArgumentType]

    def clip_gradients(self) -> None:
        """Scale gradients of a norm above ``clip`` down to it; here of a module that is whole."""
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)

    def optimizer_step(self) -> None:
        """Update the parameters from the gradients of the last `step`."""
        self.optimizer.step()
        gather_updated([bucket for bucket in self.buckets if bucket.zero in (1, 2)])
        if self.bias:
            with label(phase="optimizer"):
                self.bias.update()

    @property
    def parts(self) -> Iterable["nn.Module"]:
        """The modules of which one has the embedding, and one the head."""
        return [self.module]

    def watch(self) -> None:
        """From now on record what `outputs` and `input_gradient` return."""
        program = proxy(self)  # the graph of what is kept may lead to the head: a circle no
        #                        collector sees, with the program and its groups in it

        def keeper(name):
            def keep(module, args, out):
                if name == "input" and out.requires_grad:
                    out.retain_grad()
                program.keep(**{name: out})

            return keep

        for part in self.parts:
            for name, layer in (("input", "embed"), ("logits", "head")):
                if hasattr(part, layer):
                    getattr(part, layer).register_forward_hook(keeper(name))

    def keep(self, **tensors: torch.Tensor) -> None:
        """Store tensors of a microbatch's forward for `watch`: first ``input``, then ``logits``."""
        for name, tensor in tensors.items():
            self.watched.setdefault(name, []).append(tensor)

    def outputs(self) -> torch.Tensor:
        """The logits (batch, seq, vocab) of the last step."""
        cuts = self.layout.outputs if self.layout else []
        return self._of_batch("logits", self.watched.get("logits", ()), cuts)

    def input_gradient(self) -> torch.Tensor:
        """The gradient of the loss with respect to the first block's input (batch, seq, hidden)."""
        cuts = self.layout.inputs if self.layout else []
        return self._of_batch("input", [x.grad for x in self.watched.get("input", ())], cuts)

    def _of_batch(self, name, microbatches, cuts):
        """Batch first, from the parts of all microbatches; the batch's dim is the sequence's
        neighbour."""
        first = int(bool(self.layout and self.layout.sp))
        whole = self.everywhere(name, torch.cat(microbatches, first) if microbatches else None)
        rows = [(first, axis) for _, axis in self.rows]
        cut = reversed(self.sequence.axes) if self.sequence else ()
        tokens = [(1 - first, axis) for axis in cut]
        full = gather(whole, [*cuts, *tokens, *rows], self.mesh)
        full = full.transpose(0, 1) if first else full
        return self.sequence.restored(full) if self.sequence else full

    def everywhere(self, name: str, tensor: torch.Tensor | None) -> torch.Tensor:
        """A tensor of `keep`, or its gradient, on ranks that have none: here all have it."""
        assert tensor is not None, name
        return tensor

    def full(self, locals_by_name: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """{name: full tensor} from this rank's parts."""
        return gather_together(locals_by_name, self.splits, self.mesh)

    def gradients(self) -> dict[str, torch.Tensor]:
        """{name: gradient of the batch's mean loss}, full tensors."""
        found = {name: p.grad for name, p in self.named.items()}
        for bucket in self.buckets:
            found |= bucket.full_gradients()
        return self.full(found)  # pyright: ignore[reportArgumentType]

    def parameters(self) -> dict[str, torch.Tensor]:
        """{name: value}, full tensors."""
        found: dict[str, torch.Tensor] = dict(self.named)
        for bucket in self.buckets:
            found |= bucket.full_parameters()
        return self.full(found)


def reference_program(
    workload: "GPT",
    dtype: torch.dtype | None = None,
    device: "str | torch.device" = "cpu",
    lr: float = LEARNING_RATE,
    clip: float = 0.0,
    accumulation: int = 1,
) -> Program:
    """The whole model in one process, on one device; ``clip``: as of a `Strategy`."""
    module = ReferenceGPT(workload, dtype=dtype or getattr(torch, workload.dtype), device=device)
    load_initial(module, workload)
    made = Program(workload, module, lr=lr, clip=clip, accumulation=accumulation)
    made.bias = LoadBias(workload, [module]) if workload.bias_balance else None
    return made


def program_inside(
    strategy: Any, workload: "GPT", mesh: Any, dtype: Any, device: Any, lr: float, count: int = 1
) -> Program:
    """A rank's program of what is ``inside`` of replicas; where that is nothing, of one process.
    Not of experts: the reference computes all of them for each token, which nobody would train by.
    count : microbatches."""
    if not strategy.inner and not workload.experts:
        return reference_program(workload, dtype, device, lr, accumulation=count)
    inside = replace(strategy.inside, accumulation=count)
    return inside.build(workload, mesh, dtype, device, lr=lr)
