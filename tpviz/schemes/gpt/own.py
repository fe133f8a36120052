"""The `Program` around what a `Custom` scheme's function builds, and how its parts make up the
whole model: found from shapes, and from initial values."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, permutations, product, repeat
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import proxy
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn

from tpviz.core.labels import label
from tpviz.schemes.context.sequence import SequenceCut

from .initial import initial, load_initial
from .model import ReferenceGPT
from .program import LEARNING_RATE, Program, gather_together, own_part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT
    from tpviz.schemes.custom import Custom

Cuts = tuple[tuple[Any, ...], ...]
"""(dim, axis) or (dim, axis, order of chunks), as the splits of a `Program`."""


def reference_model(
    workload: "GPT",
    where: torch.Tensor | None = None,
    attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> ReferenceGPT:
    """The whole GPT of a workload with its initial values: what every scheme must equal.

    An ``nn.Module`` called with (inputs, targets), each (batch, seq), which returns the mean loss.
    Its blocks are ``blocks[i]`` with ``attention.qkv``, ``attention.out``, ``mlp.up`` and
    ``mlp.down``, linear layers; besides ``embed``, ``norm`` and ``head``.

    where : for a model that is given a part of each sequence: the positions of these tokens in the
    whole sequence, int64 (tokens), such as `tpviz.SequenceCut.positions`. Learned and rotary
    positions follow it.
    attention : function of q (batch, heads, tokens, size) and k, v (batch, kv_heads, tokens, size)
    that gives what causal attention gives, in the shape of q. It takes the place of attention to
    the given tokens alone: with ``where`` keys of other ranks are wanted.
    """
    _check_part(workload, where, attention)
    module = ReferenceGPT(workload, where, dtype=getattr(torch, workload.dtype))
    load_initial(module, workload)
    for block in module.blocks if attention else ():
        own: Any = block.attention
        getattr(own.heads, "heads", own.heads).mixed = attention
    return module


def _check_part(w: "GPT", where: Any, attention: Any):
    if attention is not None and not callable(attention):
        raise ValueError(f"attention={attention!r} is no function: see tv.reference_model")
    if where is None:
        return
    if not isinstance(where, torch.Tensor) or where.dtype != torch.int64 or where.dim() != 1:
        raise ValueError("where must be positions, a tensor of int64 (tokens)")
    if w.documents and attention is None and len(where) != w.seq:
        raise ValueError(
            "a part of documents needs keys of all its tokens: give reference_model an attention"
        )


def build(
    scheme: "Custom", workload: "GPT", mesh: "DeviceMesh", device: Any, lr: float = LEARNING_RATE
) -> Program:
    """This rank's program. Raises ``ValueError`` where the function returns anything else."""
    with default_dtype(workload), torch.device(device):
        made = scheme.program(workload, mesh)
    if isinstance(made, Program):
        return made
    module, *functions = made if isinstance(made, tuple) else (made,)
    if (
        not isinstance(module, nn.Module)
        or len(functions) > 2
        or not all(callable(f) or f is None for f in functions)
    ):
        raise ValueError(
            f"{scheme.name} returned {_words(made)}: return model, (model, step) or (model, step, "
            "update), an nn.Module and functions"
        )
    step, update = (*functions, None, None)[:2]
    if update and lr != LEARNING_RATE:
        raise ValueError(
            f"lr={lr}, but {scheme.name} has an optimizer of its own: set its learning rate there"
        )
    return OwnProgram(scheme, workload, module, mesh, step, update, lr)


def _words(made: Any):
    kinds = [type(part).__name__ for part in (made if isinstance(made, tuple) else (made,))]
    return f"({', '.join(kinds)})" if isinstance(made, tuple) else kinds[0]


@contextmanager
def default_dtype(workload: "GPT") -> Generator[None]:
    """While inside, new tensors have the workload's dtype unless they say otherwise."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, workload.dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class OwnProgram(Program):
    """A rank's program of functions: see `Custom`."""

    unkept = ("input gradient",)  # it may be of this rank's mean, or of its share of the batch's

    def __init__(
        self,
        scheme: "Custom",
        workload: "GPT",
        module: nn.Module,
        mesh: "DeviceMesh",
        step: Callable[..., Any] | None,
        update: Callable[[], Any] | None,
        lr: float,
    ):
        super().__init__(workload, module, mesh, lr=lr)
        self.scheme, self.own_step, self.own_update = scheme, step, update

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.watched.clear()
        self.batch = batch
        self.module.zero_grad()
        with default_dtype(self.workload):
            loss = (self.own_step or self._plain_step)(batch)
        if loss is not None and not (isinstance(loss, torch.Tensor) and loss.numel() == 1):
            raise ValueError(
                f"the step of {self.scheme.name} returned {type(loss).__name__}: return the mean "
                "loss of this rank's rows, a tensor of one number, or None"
            )
        self.has_loss = loss is not None
        return loss if loss is None else loss.detach()

    def _plain_step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        loss = self.module(*batch)
        loss.backward()
        return loss

    def optimizer_step(self) -> None:
        with label(phase="optimizer"):
            (self.own_update or self.optimizer.step)()

    # -- for checking ------------------------------------------------------------------------------
    def watch(self) -> None:
        """From now on keep what `outputs` gives. Raises ``ValueError`` where the parameters of all
        ranks are not those of the model, at their initial values."""
        program = proxy(self)

        def keep(**seen: torch.Tensor) -> None:
            if torch.is_grad_enabled():  # else a forward that is recomputed, and seen then
                program.keep(**seen)

        hooks = {
            "embed": lambda m, args, out: keep(tokens=args[0]),
            "head": lambda m, args, out: keep(logits=out),
        }
        for name, hook in hooks.items():
            if isinstance(part := getattr(self.module, name, None), nn.Module):
                part.register_forward_hook(hook)
        shapes = self.workload.parameter_shapes()
        unknown = [name for name in self.named if name not in shapes]
        self.extra = self._extra(unknown)
        self.named = {name: p for name, p in self.named.items() if name in shapes}
        held = set().union(*gathered(list(self.named)))
        if lost := [name for name in shapes if name not in held]:
            raise ValueError(
                f"{self.scheme.name}: no rank has a parameter {lost[0]!r}, {len(lost)} are missing "
                f"in all, and unknown are {unknown[:3]}: use the names of "
                "tv.reference_model(workload)"
            )
        dtype = getattr(torch, self.workload.dtype)
        self.splits = self.cuts_of(
            {n: (p, initial(self.workload, n, dtype)) for n, p in self.named.items()}
        )

    def _extra(self, unknown: list[str]) -> list[str]:
        """What the reference lacks, in words; with what ranks do not begin with alike."""
        tensors = {f"parameter {name}": self.named[name] for name in unknown}
        tensors |= {f"buffer {name}": tensor for name, tensor in self.module.named_buffers()}
        mine = {name: crc32(_bytes(tensor)) for name, tensor in tensors.items()}
        everyone = gathered(mine)
        alike = {n: len({of[n] for of in everyone if n in of}) == 1 for n in mine}
        return [name if same else f"{name} (differs between ranks)" for name, same in alike.items()]

    def cuts_of(self, tensors: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Cuts]:
        """{name: `Cuts`} by which the ranks' tensors make up the whole. tensors : {name: (this
        rank's, the whole)}. Raises ``ValueError`` where there is no such way."""
        fit = {
            name: [
                cuts
                for cuts in self.layouts(name, part.shape, whole.shape)
                if torch.equal(own_part("", whole, {"": cuts}, self.mesh), part.detach().cpu())  # pyright: ignore[reportArgumentType]
            ]
            for name, (part, whole) in tensors.items()
        }
        everyone, found = gathered(fit), {}
        for name in fit:
            of_ranks = [fits[name] for fits in everyone if name in fits]
            agreed = [cuts for cuts in fit[name] if all(cuts in fits for fits in of_ranks)]
            if not agreed:
                raise ValueError(
                    f"{self.scheme.name}: {name} on the ranks are no even parts of the whole, in "
                    "the order of the ranks: use whole.chunk(n, dim)[rank], n and rank of one "
                    "axis's group, or say which chunks each rank has, as in "
                    f"{_example(self.scheme)}"
                )
            found[name] = agreed[0]
        return found

    def layouts(self, name: str, part: Sequence[int], whole: Sequence[int]) -> list[Cuts]:
        """All `Cuts` by which equal ``part``s make up the ``whole``; ``ValueError`` if none do."""
        axes, found = self.scheme.axes, []
        names = [axis for axis, n in reversed(axes.items()) if n > 1]
        for dims in product((None, *range(len(whole))), repeat=len(names)):
            cuts = [(dim, axis) for dim, axis in zip(dims, names) if dim is not None]
            sizes = [
                size * prod(axes[axis] for at, axis in cuts if at == dim)
                for dim, size in enumerate(part)
            ]
            if sizes == list(whole):
                found += chain(*map(self._ordered, permutations(cuts), repeat(part)))
        if not found:
            raise ValueError(
                f"{self.scheme.name}: {name} has the shape {tuple(part)} on this rank, which is no "
                f"even part of {tuple(whole)} over {axes}"
            )
        return found

    def _ordered(self, cuts: Cuts, part: Sequence[int]) -> Iterator[Cuts]:
        """The cuts, and those of which some are in the order of chunks that their axis has."""
        size, ways = list(part), []
        for dim, axis in cuts:
            size[dim] *= self.scheme.axes[axis]
            order = self.scheme.chunks.get(axis)
            fits = order and size[dim] % len(order) == 0
            ways.append([(dim, axis), (dim, axis, order)] if fits else [(dim, axis)])
        return product(*ways)

    def outputs(self) -> torch.Tensor:
        """The last step's logits (batch, seq, vocab); rows are recognised by their tokens."""
        if not any(gathered(self.has_loss)):
            raise ValueError(
                f"the step of {self.scheme.name} returned no loss on any rank: return the mean "
                "loss of this rank's rows"
            )
        mine = {name: torch.cat(kept) for name, kept in self.watched.items()}
        if not {"tokens", "logits"} <= set().union(*gathered(list(mine))):
            raise ValueError(
                f"{self.scheme.name}: no rank called both its model's embed, with tokens, and its "
                "head, which gives the logits"
            )
        tokens = {"tokens": (mine["tokens"], self.batch[0].cpu())} if "tokens" in mine else {}
        [cuts, *_] = [cuts["tokens"] for cuts in gathered(self.cuts_of(tokens)) if cuts]
        whole = self.workload.batch, self.workload.seq, self.workload.vocab
        logits, splits = {n: t for n, t in mine.items() if n == "logits"}, {}
        for name, part in logits.items():
            fit = self.layouts(name, part.shape, whole)
            # tokens may be whole where the head's input is not
            alike = (c for dims in (2, 1) for c in fit if _below(dims, c) == _below(dims, cuts))
            splits[name] = next(alike, ())
        return self.joined(logits, splits)["logits"]

    def gradients(self) -> dict[str, torch.Tensor]:
        known = {name: p.grad for name, p in self.named.items() if p.grad is not None}
        found = self.full(known)
        lost = [name for name in self.workload.parameter_shapes() if name not in found]
        self.unkept = ["input gradient", *(f"gradient {name}" for name in lost)]
        return found

    def full(self, locals_by_name: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.joined(locals_by_name, self.splits)

    def joined(
        self, parts: Mapping[str, torch.Tensor], splits: Mapping[str, Cuts]
    ) -> dict[str, torch.Tensor]:
        """As `gather_together`; a rank without a tensor gets it from the first rank that has it."""
        names, rank = gathered(list(parts)), dist.get_rank()
        for name in parts:
            for _, axis, *_ in splits[name]:
                if lost := [r for r in self.scheme.mesh.group(rank, axis) if name not in names[r]]:
                    raise ValueError(f"{self.scheme.name}: rank {lost[0]} has no part of {name}")
        found = gather_together(parts, splits, self.mesh)
        first = {name: r for r in reversed(range(len(names))) for name in names[r]}
        if any(len(of_rank) < len(first) for of_rank in names):
            for others in gathered({n: t.cpu() for n, t in found.items() if first[n] == rank}):
                found |= {n: t for n, t in others.items() if n not in found}
        return found


def _below(dims: int, cuts: Cuts):
    """The cuts of the first ``dims`` dims."""
    return {cut for cut in cuts if cut[0] < dims}


def _example(scheme: "Custom"):
    axis, n = max(scheme.axes.items(), key=lambda item: item[1])
    order = SequenceCut(n, "zigzag").order[:8]
    return f"tv.Custom(..., chunks={ {axis: [*order]} })".replace("]", ", ...]" if n > 4 else "]")


def _bytes(tensor: torch.Tensor):
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def gathered(value: Any) -> list[Any]:
    """Every rank's ``value``, by rank."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
