"""`Trainer`: an ordinary model, data and arguments in, trained on pp x tp x dp ranks.

The face is that of Hugging Face's ``Trainer`` (names of arguments, `train` and `evaluate`, what
they return), so that a script changes one name, as Merak's ``MerakTrainer``; transformers is not
needed.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.utils.data import default_collate

from tpviz.core.checks import whole_number
from tpviz.ranks.launch import launch
from tpviz.ranks.launch import progress as report
from tpviz.schemes.merak.strategy import Merak, as_merak

from .module import parallelize

if TYPE_CHECKING:
    from .pipelined import Pipelined

    class Examples(Sized, Protocol):
        """Of a data set."""

        def __getitem__(self, index: int, /) -> Any: ...


@dataclass
class TrainingArguments:
    """What `Trainer` reads of ``args``: a ``transformers.TrainingArguments`` or one of these.

    per_device_train_batch_size : examples of a microbatch, in evaluation too: a program is traced
    for one size. max_steps : training steps; -1 for ``num_train_epochs`` through the data. The rest
    is AdamW's, and the largest gradient norm (0 for any); seed : of the order of the examples, and
    of dropout. The learning rate falls linearly to 0 after ``warmup_steps``, or stays ("constant").
    """

    per_device_train_batch_size: int = 1
    max_steps: int = -1
    num_train_epochs: float = 1.0
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: str = "linear"
    warmup_steps: int = 0
    seed: int = 42


class TrainOutput(NamedTuple):
    """Result of training. global_step : steps done. training_loss : mean loss of the steps. metrics
    : dict with ``losses``, one a step, and ``report``, the `PipelineReport`."""

    global_step: int
    training_loss: float
    metrics: dict[str, Any]


class Trainer:
    """Trains and evaluates ``model`` under a `tpviz.Merak`.

    model : a module, which is left with the trained parameters. args : see `TrainingArguments`.
    train_dataset, eval_dataset : examples by index. data_collator : examples -> the model's inputs,
    a dict or a tuple; torch's ``default_collate`` by default. loss, batch_dim, balance : as
    `tpviz.parallelize` takes them. A step takes per_device_train_batch_size * microbatches * dp
    examples.

    Raises ``ValueError`` where the data are fewer than that, or arguments are not understood.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        strategy: Merak,
        args: Any = None,
        train_dataset: "Examples | None" = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        eval_dataset: "Examples | None" = None,
        **pipeline: Any,
    ):
        if not isinstance(strategy := as_merak(strategy), Merak):
            raise ValueError(
                f"Trainer trains under Merak(pp=..., tp=..., dp=...), not {strategy.short}: use "
                "that, or tv.parallelize and a loop of your own"
            )
        self.model, self.strategy, self.args = model, strategy, args or TrainingArguments()
        self.dataset, self.collate = train_dataset, data_collator or default_collate
        self.eval_dataset, self.pipeline = eval_dataset, pipeline
        self.each = whole_number(
            "per_device_train_batch_size", self.args.per_device_train_batch_size
        )
        self.batch = self.each * strategy.microbatches * strategy.dp
        self.parallel = None  # the `Pipelined` of this world
        if train_dataset is not None or eval_dataset is None:
            self._enough("train_dataset", train_dataset)
        if self.schedule not in ("linear", "constant"):
            raise ValueError(
                f"lr_scheduler_type={self.schedule!r} is not possible: use 'linear' or 'constant'"
            )

    @property
    def schedule(self) -> str:
        """Name of the learning-rate schedule."""
        name = self.args.lr_scheduler_type
        return getattr(name, "value", name)

    @property
    def steps(self) -> int:
        """Training steps in all."""
        if self.args.max_steps > 0:
            return self.args.max_steps
        return max(1, int(self.args.num_train_epochs * (len(self.dataset) // self.batch)))  # pyright: ignore[reportArgumentType]

    def _enough(self, name, dataset):
        """Raise ``ValueError`` unless there is a batch of them."""
        count = 0 if dataset is None else len(dataset)
        if count < self.batch:
            raise ValueError(
                f"a step takes {self.batch} examples ({self.each} a microbatch, "
                f"{self.strategy.microbatches} microbatches, {self.strategy.dp} "
                f"replicas), and {name} has {count}"
            )

    def train(self, timeout: float | None = None) -> TrainOutput:
        """Train: a `TrainOutput`. Outside of ranks they are started (``timeout``: seconds of the
        whole call, None for any); within a world of them this is to be called on each."""
        self._enough("train_dataset", self.dataset)
        losses, plan, state = self._on_ranks(self._train_here, timeout)
        self._load(state)
        return TrainOutput(
            len(losses), sum(losses) / len(losses), {"losses": losses, "report": plan}
        )

    def evaluate(
        self, eval_dataset: "Examples | None" = None, timeout: float | None = None
    ) -> dict[str, float]:
        """The mean loss over an evaluation set, in evaluation mode and without gradients:
        {"eval_loss": its mean over all batches, "eval_samples": examples that it is of}.

        eval_dataset : other than the trainer's own. Batches are as large as in training, and what
        is left over at the end is left out. timeout, and ranks, as for `train`.
        Raises ``ValueError`` where there is not one batch.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        self._enough("eval_dataset", dataset)
        losses = self._on_ranks(self._evaluate_here, timeout, dataset)
        return {"eval_loss": sum(losses) / len(losses), "eval_samples": self.batch * len(losses)}

    def _on_ranks(self, function, timeout, *args):
        """What the function gives, here or on the first of ranks that are started for it."""
        if dist.is_available() and dist.is_initialized():
            return function(*args)
        return launch(function, *args, world_size=self.strategy.world_size, timeout=timeout)[0]

    @torch.no_grad()
    def _load(self, state):
        for name, parameter in self.model.named_parameters():
            if parameter.shape == state[name].shape:  # on a rank the layers may be split by now
                parameter.copy_(state[name])

    def _train_here(self):
        """One rank: (losses of all steps, report, the trained parameters)."""
        args, steps = self.args, self.steps
        order = self._order()
        first = self._batch(next(order))
        model = self._parallel(first)
        # ranks that have the same rows drop the same, or what they share would drift apart
        torch.manual_seed(args.seed + model.pipeline.mesh.get_local_rank("dp"))
        optimizer = torch.optim.AdamW(
            _decayed(model, args.weight_decay),
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
        )
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate)
        losses = []
        for step in range(steps):
            batch = first if step == 0 else self._batch(next(order))
            optimizer.zero_grad()
            losses.append(_mean_loss(model, model.step, batch))
            if args.max_grad_norm:
                model.clip_grad_norm_(args.max_grad_norm)
            optimizer.step()
            rate.step()
            report(step + 1, steps, f"loss {losses[-1]:.4f}")
        return losses, repr(model.report), model.full_state_dict()

    def _evaluate_here(self, dataset):
        """One rank: the losses of all batches."""
        losses, count = [], len(dataset) // self.batch
        for number in range(count):
            batch = self._batch(range(number * self.batch, (number + 1) * self.batch), dataset)
            model = self._parallel(batch)
            losses.append(_mean_loss(model, model.evaluate, batch))
            report(number + 1, count, f"loss {losses[-1]:.4f}")
        return losses

    def _parallel(self, batch) -> "Pipelined":
        """The model on this world's ranks: made once, since it is split in place."""
        if self.parallel is None:
            self.parallel = parallelize(self.model, self.strategy, batch, **self.pipeline)
        return self.parallel

    def _rate(self, step):
        warm, steps = self.args.warmup_steps, self.steps
        if step < warm:
            return step / max(1, warm)
        return 1.0 if self.schedule == "constant" else (steps - step) / max(1, steps - warm)

    def _order(self):
        """Indices of each step's examples: every epoch in an order of its own, what is left over
        at its end left out."""
        generator = torch.Generator().manual_seed(self.args.seed)
        while True:
            order = torch.randperm(len(self.dataset), generator=generator).tolist()  # pyright: ignore[reportArgumentType]
            for start in range(0, len(order) - self.batch + 1, self.batch):
                yield order[start : start + self.batch]

    def _batch(self, indices, dataset=None):
        dataset = self.dataset if dataset is None else dataset
        batch = self.collate([dataset[i] for i in indices])  # pyright: ignore[reportOptionalSubscript]
        if isinstance(batch, torch.Tensor):
            return (batch,)
        return dict(batch) if hasattr(batch, "keys") else tuple(batch)


def _mean_loss(model, function, batch):
    """Of a batch, by ``model.step`` or ``model.evaluate``."""
    given, named = ((), batch) if isinstance(batch, dict) else (batch, {})
    return model.mean_loss(function(*given, **named))


def _decayed(model, decay):
    """As Hugging Face's: biases and norms do not decay."""
    named = dict(model.named_parameters())
    flat = [p for name, p in named.items() if p.dim() < 2]
    return [
        {"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": decay},
        {"params": flat, "weight_decay": 0.0},
    ]
