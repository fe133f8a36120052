"""`tpviz.Context` on a module that is not ours: which tokens a rank gives it, and its attention to
the tokens of other ranks.

A rank runs the whole module on its part of each sequence. Only attention needs the other parts:
while a module that calls ``F.scaled_dot_product_attention`` runs, that name is the attention of
`tpviz.schemes.context`. Positions are an input, since a module that counts its tokens would begin
at 0 on every rank. A rank's loss is the mean over its tokens; gradients are means over all ranks.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from tpviz.core.checks import divides
from tpviz.core.labels import label
from tpviz.core.mesh import group_along
from tpviz.core.step import Collective, Part, count
from tpviz.core.trace import Ledger
from tpviz.core.workload import GPT
from tpviz.schemes.collectives import gather_first
from tpviz.schemes.context.layers import attention
from tpviz.schemes.replicas import Replicas

from .grid import AfterBackward, average, cut_rows, in_backward
from .partition.leaves import tensors_of
from .replicas import without_numbers
from .structure import check_rotary
from .watch import ForwardWatch, in_evaluation

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.context.strategy import Context

    from .plan import Planned
    from .sent import LayerCall

IGNORED = -100
"""The label of a token whose loss does not count, as in ``F.cross_entropy``."""


# -- attention that the module asks for ------------------------------------------------------------
class AttentionCall(NamedTuple):
    """One attention of a forward in one process. path : of the module that calls it. heads, keys :
    of queries, and of keys and values. seq : tokens; size : numbers of a head."""

    path: str
    batch: int
    heads: int
    keys: int
    seq: int
    size: int


@contextmanager
def attended_by(function: Any) -> Iterator[None]:
    """While inside, ``F.scaled_dot_product_attention`` is this function."""
    before, F.scaled_dot_product_attention = F.scaled_dot_product_attention, function
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


def causal(
    path: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of a call of ``F.scaled_dot_product_attention`` with these arguments, q scaled so
    that the usual factor is left. Raises ``ValueError`` for any that sequences cannot be cut in."""
    tokens, others, wrong = query.shape[-2], key.shape[-2], ""
    if attn_mask is not None:
        wrong = (
            f"has a mask {tuple(attn_mask.shape)}: use whole sequences without padding, documents "
            f"or a mask of your own, and a sliding_window of None or above {others}"
        )
    elif tokens != others:
        wrong = f"is of {tokens} queries to {others} keys: cross attention and caches are not cut"
    elif not is_causal and tokens > 1:
        wrong = "sees all tokens: only causal attention (is_causal=True) is cut"
    elif dropout_p:
        wrong = f"drops {dropout_p:g} of its weights: use an attention dropout of 0"
    elif query.dim() != 4 or query.shape[-1] != value.shape[-1]:
        wrong = (
            f"is of queries {tuple(query.shape)} and values {tuple(value.shape)}: use (batch, "
            "heads, tokens, size) with one size"
        )
    if wrong:
        raise ValueError(f"{path or 'the model'}: its attention {wrong}")
    usual = query.shape[-1] ** -0.5
    return query if scale in (None, usual) else query * (scale / usual), key, value


class _Whole(ForwardWatch):
    """Notes every attention of a forward in one process."""

    def __init__(self):
        super().__init__()
        self.calls: list[AttentionCall] = []

    def see(self, function: Any, given: Any, result: Any) -> None:
        """Nothing: attention is another function while this watches."""

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        path = self.inside[-1] if self.inside else ""
        q, k, _ = causal(path, *args, **kwargs)
        batch, heads, seq, size = q.shape
        self.calls.append(AttentionCall(path, batch, heads, k.shape[1], seq, size))
        return WHOLE(*args, **kwargs)


WHOLE = F.scaled_dot_product_attention


def attention_of(
    model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]
) -> tuple[AttentionCall, ...]:
    """Every attention in one forward of ``inputs`` in evaluation mode. Raises ``ValueError`` where
    there is none, and as `causal`."""
    watch = _Whole()
    with in_evaluation(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        with watch.of(model), attended_by(watch):
            model(*inputs[0], **inputs[1])
    if not watch.calls:
        raise ValueError(
            f"{type(model).__name__} never calls torch.nn.functional.scaled_dot_product_attention, "
            "whose place attention over cp takes: use it under this name; of Hugging Face's models "
            "model.set_attn_implementation('sdpa') does"
        )
    return tuple(watch.calls)


PLACE: list[Any] = []
"""What took the place of the function, of all models; under them what was there before."""


class CutAttention:
    """In the place of ``F.scaled_dot_product_attention`` between `enter` and `leave`: while the
    module at ``path`` runs, or (None) during a backward, in which parts of it may be recomputed."""

    def __init__(self, path: str | None, sequences: "Sequences"):
        self.path, self.sequences = path, sequences

    def enter(self, *_: Any) -> None:
        """Take the place."""
        PLACE.extend([self] if PLACE else [F.scaled_dot_product_attention, self])
        F.scaled_dot_product_attention = self

    def leave(self, *_: Any) -> None:
        """Give it back to the one below; others may have entered since."""
        if self in PLACE:
            del PLACE[len(PLACE) - 1 - PLACE[::-1].index(self)]
            F.scaled_dot_product_attention = PLACE[-1]
            if len(PLACE) == 1:
                PLACE.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Attention of this rank's tokens; the arguments are those of the function."""
        if self.path is None and not in_backward():  # that backward raised
            self.leave()
            return F.scaled_dot_product_attention(*args, **kwargs)
        q, k, v = causal(self.path or "", *args, **kwargs)
        self.sequences.check_tokens(q.shape[2])
        return self.sequences.attention(q, k, v)


def _without_mask(ranks, module, query, key, value, mask, sliding_window=None, **how):
    """Hugging Face's attention for parts of sequences. Under a name that has no mask of its own the
    models make none, which positions that jump would be taken for documents by."""
    from transformers import AttentionInterface

    tokens = ranks * query.shape[2]
    if sliding_window is not None and sliding_window < tokens:
        raise ValueError(
            f"sequences of {tokens} tokens are longer than sliding_window={sliding_window}: use at "
            f"most {sliding_window // ranks * ranks} tokens, or sliding_window=None"
        )
    return AttentionInterface()["sdpa"](module, query, key, value, mask, **how)


def _ask_for_no_mask(model, ranks):
    for module in model.modules():
        if hasattr(module, "set_attn_implementation"):
            from transformers import AttentionInterface

            name = f"tpviz_{ranks}_parts"
            AttentionInterface.register(name, partial(_without_mask, ranks))
            module.set_attn_implementation(name)


# -- one rank's tokens, and what all ranks make of them --------------------------------------------
class Sequences:
    """Parts of the batch and of its sequences, with the interface of `tpviz.modules.grid.Grid`.

    quiet : whether gradients stay local for now. tokens : of each sequence that this rank is to be
    given.
    """

    def __init__(self, mesh: "DeviceMesh", plan: "SequencePlan"):
        self.cut, self.mesh, self.quiet, self.plan = plan.cut, mesh, False, plan
        self.axes = ("dp",) * (plan.dp > 1) + self.cut.axes
        self.sizes = {axis: mesh.get_group(axis).size() for axis in self.axes}
        self.replicas = group_along(mesh, plan.replicas.axis)
        self.attention = attention(self.cut, mesh)
        self.tokens = plan.seq // self.cut.ranks

    def attach(self, module: nn.Module, pieces: Any = ()) -> None:
        """Take the place of attention in ``module``, and watch backward through it."""
        self.module, modules = module, dict(module.named_modules())
        for path in dict.fromkeys(call.path for call in self.plan.calls):
            own = CutAttention(path, self)
            modules[path].register_forward_pre_hook(own.enter)
            modules[path].register_forward_hook(own.leave, always_call=True)
        _ask_for_no_mask(module, self.cut.ranks)
        self.backward = CutAttention(None, self)
        AfterBackward(module, self._finish, self.backward.leave, self.backward.enter)
        module.register_forward_pre_hook(self._given, with_kwargs=True)

    def _given(self, module, args, kwargs):
        """Positions must be given, and a mask would be lost."""
        names = signature(module.forward)
        if "position_ids" not in names.parameters:
            return
        given = names.bind_partial(*args, **kwargs).arguments
        if given.get("attention_mask") is not None:
            raise ValueError("attention_mask is not cut: give model.rows(batch), which checks it")
        if given.get("position_ids") is None:
            raise ValueError("position_ids are missing: give model.rows(batch), which adds them")

    def check_tokens(self, tokens: int) -> None:
        """Raise ``ValueError`` unless this rank was given so many tokens of each sequence."""
        if tokens != self.tokens:
            raise ValueError(
                f"attention has {tokens} tokens of each sequence, and this rank's part is "
                f"{self.tokens}: give each rank model.rows(batch)"
            )

    def _finish(self):
        """Backward is over."""
        self.backward.leave()
        if not self.quiet:
            with label(phase="sync"), torch.no_grad():
                average([p for p in self.module.parameters() if p.requires_grad], self.replicas)

    def first_ledger(self) -> Ledger:
        """Empty: the first forward asks no more than others."""
        return Ledger()

    @property
    def shares(self) -> int:
        """Number of parts that the batch and its sequences are cut into."""
        return self.replicas.size()

    @property
    def share(self) -> int:
        """Which of them this rank's is."""
        return self.replicas.rank()

    def rows(self, batch: Any) -> Any:
        """This rank's tokens of its rows of a whole batch; see `Parallelized.rows`."""
        rows, seq = _sizes(batch)
        self.cut.check(seq)
        if isinstance(batch, dict):
            batch = self._named(batch, seq)
        elif "position_ids" in signature(self.module.forward).parameters:
            raise ValueError(
                f"{type(self.module).__name__} takes position_ids, which are added to inputs by "
                "name: give a dict, as in {'input_ids': tokens}"
            )
        dp = self.sizes.get("dp", 1)
        divides("batch", rows, "dp", dp)
        if dp > 1:
            batch = cut_rows(batch, rows, self.mesh.get_group("dp").rank(), dp)
        self.tokens = seq // self.cut.ranks
        return self._tokens(batch, seq)

    def _tokens(self, tree, seq):
        of_tokens = lambda t: isinstance(t, Tensor) and t.dim() > 1 and t.shape[1] == seq
        return tree_map(lambda t: self.cut.part(t, self.mesh) if of_tokens(t) else t, tree)

    def _named(self, batch, seq):
        """Of inputs by name: positions are added, labels are shifted before they are cut."""
        found, device = dict(batch), tensors_of(batch)[0].device
        mask = found.pop("attention_mask", None)
        if mask is not None and not bool((mask == 1).all() and mask.dim() == 2):
            raise ValueError(
                f"attention_mask leaves out {int((mask != 1).sum())} of {mask.numel()} tokens: "
                "padding is not cut, use whole sequences"
            )
        if "position_ids" in signature(self.module.forward).parameters:
            where = found.setdefault("position_ids", torch.arange(seq, device=device)[None])
            if "position_ids" in batch and not bool((where.diff() == 1).all()):
                raise ValueError(
                    "position_ids do not go up by 1: several documents in a sequence are not cut"
                )
            last = int(where.max()) + 1 if "position_ids" in batch else seq
            check_rotary(self.module, last)
        if (labels := found.get("labels")) is not None:
            found |= self._labels(labels, found.get("num_items_in_batch"))
        return found

    def _labels(self, labels, count):
        """Hugging Face's language models shift labels by one token, over the border of a part, and
        take the mean over those that count, of which ranks have unequally many."""
        if getattr(self.module, "loss_type", "") not in ("ForCausalLM", None):  # None: by default
            if lost := int((labels == IGNORED).sum()):
                raise ValueError(
                    f"labels leave out {lost} of {labels.numel()} tokens, unequally many on each "
                    "rank: take the loss outside of the model"
                )
            return {}
        shifted = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        count = (shifted != IGNORED).sum() if count is None else count
        return {"shift_labels": shifted, "num_items_in_batch": count / self.shares}

    def joined(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks as one: rows and tokens (batch, seq, ...) in the order of the
        whole batch, or the mean of scalars. Collective."""
        if not tensor.dim():
            parts, work = gather_first(tensor.detach().reshape(1), self.replicas)
            work.wait()
            return parts.mean()
        if tensor.dim() < 2 or tensor.shape[1] != self.tokens:
            raise ValueError(
                f"an output of shape {tuple(tensor.shape)} has no dim 1 of {self.tokens} tokens, "
                "this rank's part: only outputs for each token can be put together (of Hugging "
                "Face's models with use_cache=False)"
            )
        found = tensor.detach()
        for axis in reversed(self.axes):
            dim, group = int(axis != "dp"), self.mesh.get_group(axis)
            found, work = gather_first(found.transpose(0, dim), group)
            work.wait()
            found = found.transpose(0, dim)
        return self.cut.restored(found)

    def places(self, tensor: Tensor) -> Tensor:
        """For each element of this rank's, its number among those of all ranks."""
        if tensor.dim() < 2:
            return torch.zeros(tensor.shape, dtype=torch.int64)
        rows, tokens, *features = tensor.shape
        dp, ranks = self.sizes.get("dp", 1), self.cut.ranks
        whole = torch.arange(tensor.numel() * dp * ranks)
        whole = whole.view(rows * dp, tokens * ranks, *features)
        own = whole.chunk(dp)[self.mesh.get_group("dp").rank() if dp > 1 else 0]
        return self._tokens(own, tokens * ranks)


def _sizes(batch):
    """(rows, tokens) of a batch, by its first tensor that has both."""
    for tensor in tensors_of(batch):
        if tensor.dim() > 1:
            return tuple(tensor.shape[:2])
    raise ValueError("no input has rows and tokens: give tensors (batch, seq, ...)")


# -- the plan --------------------------------------------------------------------------------------
class SequencePlan:
    """What `Sequences` will do to a model, known before: ``calls``, the attention of one forward;
    rows and tokens of the example; what ranks send. parts : {path of a module: into how many parts
    its heads are split}.

    Raises ``ValueError`` as `attention_of`, and where sizes do not divide.
    """

    easy = False
    wrong = (
        "tokens meet outside of attention, or their positions are counted inside of the model: "
        "take them as an input, (1, seq) or position_ids, which model.rows cuts"
    )

    def __init__(
        self,
        context: "Context",
        dp: int,
        model: nn.Module,
        inputs: tuple[tuple[Any, ...], dict[str, Any]] | None,
    ):
        assert context.sequence
        if inputs is None:
            raise ValueError(
                f"{context.short} without example_inputs: give a batch (batch, seq), which shows "
                "where the model's attention is"
            )
        self.context, self.cut, self.dp = context, context.sequence, dp
        cut = {axis: context.axes[axis] for axis in self.cut.axes}
        self.replicas = Replicas.along({**({"dp": dp} if dp > 1 else {}), **cut})
        self.rows, self.seq = _sizes(inputs)
        divides("batch", self.rows, "dp", dp)
        self.cut.check(self.seq)
        check_rotary(model, self.seq)
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl for m in model.modules()):
            raise ValueError(
                "the model is compiled: compile what parallelize returns, not the model"
            )
        if without_numbers(model):  # whose masks cannot be seen to be causal
            _ask_for_no_mask(model, self.cut.ranks)
        self.calls = attention_of(model, inputs)
        self.parts: dict[str, int] = {}
        for call in self.calls:
            if (call.batch, call.seq) != (self.rows, self.seq):
                raise ValueError(
                    f"{call.path or 'the model'}: its attention is of {call.batch} rows of "
                    f"{call.seq} tokens, the inputs have {self.rows} of {self.seq}: only sequences "
                    "that go through the whole model are cut"
                )

    def settle(self, model: nn.Module, pairs: "Iterable[Planned]", groups: Any = None) -> Self:
        """This, with the layers that are split taken into account. Raises ``ValueError`` where
        heads do not divide."""
        local = {}
        for part in (part for pair in pairs for part in pair.layers):
            self.parts[part.path.rpartition(".")[0]] = part.parts
            layer = model.get_submodule(part.path)
            local |= {id(getattr(layer, name)): part.local(name) for name in ("weight", "bias")}
        learn = [p for p in model.parameters() if p.requires_grad]
        self.gradients = sum(prod(local.get(id(p), p.shape)) for p in learn), len(learn)
        axis, ranks = self.cut.exchange
        for call in self.calls:
            parts = self.parts.get(call.path, 1)
            over = axis if parts == 1 else f"{axis}*tp"
            divides("heads of keys", call.keys, over, ranks * parts, within=call.heads)
        return self

    @property
    def shares(self) -> int:
        """Number of parts that the batch and its sequences are cut into."""
        return self.replicas.ranks

    def check(self, inputs: Any) -> None:
        """Nothing: sizes were checked when this was made."""

    def ledger(
        self, calls: "Iterable[LayerCall]", itemsize: int, tokens: int | None = None
    ) -> Ledger:
        """Of the `Ledger`: every attention, as `tpviz.Context` has it for these sizes, and the mean
        of gradients, with one number more for each parameter (`tpviz.modules.grid.average`).
        tokens : of a rank, those of the example by default."""
        step = [part for call in self.calls for part in self._attention(call, itemsize, tokens)]
        summed = Collective(self.replicas.axis, "all_reduce", sum(self.gradients) * itemsize)
        sizes = {"dp": self.dp, **self.context.axes}
        return count([*step, Part("sync", "", (summed,))], sizes)

    def _attention(self, call, itemsize, tokens=None):
        """Its `Part`s, forward and backward."""
        parts = self.parts.get(call.path, 1)
        heads, keys = call.heads // parts, call.keys // parts
        tokens = tokens or self.rows * self.seq // self.shares
        sizes = {"hidden": heads * call.size, "heads": heads, "kv_heads": keys}
        dtype = {2: "bfloat16", 4: "float32", 8: "float64"}[itemsize]
        w = GPT(batch=1, seq=tokens * self.cut.ranks, dtype=dtype, **sizes)
        both = self.cut.operations(self.context.part(w), heads, keys)
        return [Part(way, call.path, tuple(ops)) for way, ops in zip(("forward", "backward"), both)]

    def to_table(self) -> list[list[str]]:
        """A list of rows of strings, header first: one row for each attention, with what a rank
        sends for a token of its own, in elements."""
        rows = [["attention", "heads", "of keys", "a rank's tokens", "forward", "backward"]]
        for call in self.calls:
            parts = self.parts.get(call.path, 1)
            own = f"{self.seq // self.cut.ranks} of {self.seq}"
            sent = [_sent(count([part], self.context.axes)) for part in self._attention(call, 8, 1)]
            path = call.path or "(the model)"
            rows.append([path, str(call.heads // parts), str(call.keys // parts), own, *sent])
        return rows

    @property
    def notes(self) -> list[str]:
        """What the user is to do."""
        return [
            f"each rank has {self.seq // self.cut.ranks} of {self.seq} tokens"
            + f" of {self.rows // self.dp} of {self.rows} rows" * (self.dp > 1)
            + ": give it model.rows(batch), and let its loss be the mean over its tokens; compared "
            f"are only the example's inputs and its {self.seq} tokens: give one as in training"
        ]


def _sent(ledger):
    """As in "3 send cp (64)": how many, and elements of each."""
    return ", ".join(
        f"{row.count} {row.collective} {row.axis} ({row.payload_bytes // row.count // 8})"
        for row in ledger.rows
        if row.collective != "recv"
    )
