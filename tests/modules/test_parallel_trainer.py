"""`Trainer`: an unmodified model trained on ranks is the model trained in one process."""

from types import SimpleNamespace

import foreign
import pytest
import torch
from torch import nn

import tpviz as tv
from tpviz.modules import TrainingArguments
from tpviz.modules.stages import Evaluation

MEAN = 0.05  # of the gradient's norm: clipped in every step


def data(count=24):
    ids = torch.arange(count * foreign.TOKENS).view(count, foreign.TOKENS) * 7 % 20
    return [{"input_ids": row, "labels": row} for row in ids]


def squared(output):
    return getattr(output, "logits", output).double().square().mean()


def expected(model, args, dataset, batch, steps):
    """The same in one process, written once more: losses, and the model."""
    generator = torch.Generator().manual_seed(args.seed)
    order = torch.randperm(len(dataset), generator=generator).tolist()
    groups = [
        {
            "params": [p for p in model.parameters() if (p.dim() < 2) == flat],
            "weight_decay": 0.0 if flat else args.weight_decay,
        }
        for flat in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    losses = []
    for step in range(steps):
        rows = [dataset[i] for i in order[step * batch : (step + 1) * batch]]
        inputs = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * (steps - step) / steps
        optimizer.zero_grad()
        loss = squared(model(**inputs))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def made(make=foreign.gpt2):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().eval()


@pytest.mark.parametrize(
    "strategy",
    [tv.Merak(pp=2, tp=2, microbatches=4), tv.Merak(pp=2, dp=2, microbatches=4, schedule="zb_v")],
    ids=lambda s: s.short,
)
def test_equals_one_process(strategy):
    args = TrainingArguments(max_steps=2, learning_rate=1e-2, max_grad_norm=MEAN, weight_decay=0.1)
    model, whole, dataset = made(), made(), data()
    found = tv.Trainer(model, strategy, args, dataset, loss=squared).train(timeout=120)
    losses = expected(whole, args, dataset, 4 * strategy.dp, 2)
    assert found.global_step == 2 and found.metrics["losses"] == pytest.approx(losses, rel=1e-10)
    assert found.training_loss == pytest.approx(sum(losses) / 2)
    for (name, a), b in zip(model.named_parameters(), whole.parameters()):
        assert torch.allclose(a, b, rtol=0, atol=1e-10), name


def test_arguments_like_those_of_hugging_face():
    args = SimpleNamespace(
        **{
            **vars(TrainingArguments()),
            "per_device_train_batch_size": 2,
            "lr_scheduler_type": SimpleNamespace(value="constant"),
        }
    )
    trainer = tv.Trainer(made(), tv.Merak(pp=2, microbatches=4), args, data())
    assert trainer.batch == 8 and trainer.steps == 3 and trainer.schedule == "constant"


@pytest.mark.parametrize(
    "args, count, message",
    [
        (TrainingArguments(), 3, "a step takes 4 examples .* and train_dataset has 3"),
        (TrainingArguments(lr_scheduler_type="cosine"), 24, "lr_scheduler_type='cosine' is not"),
        (TrainingArguments(per_device_train_batch_size=0), 24, "train_batch_size=0 is too small"),
    ],
)
def test_bad_input(args, count, message):
    with pytest.raises(ValueError, match=message):
        tv.Trainer(made(), tv.Merak(pp=2, microbatches=4), args, data(count))


@pytest.mark.parametrize("strategy", [tv.Context(cp=2), tv.Megatron(tp=2)])
def test_other_strategies_are_told_of_merak(strategy):
    with pytest.raises(ValueError, match=r"trains under Merak\(.* not (Context|Megatron)\("):
        tv.Trainer(made(), strategy, TrainingArguments(), data())


# -- evaluation ----------------------------------------------------------------------------------
class Layers(nn.Module):
    """A few layers with dropout, of which a trace is quick."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, input_ids, labels):
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x).tanh(), 0.2, self.training)
        return x


def dropping():
    """In training mode a fifth of everything is dropped, in evaluation mode nothing is."""
    dropped = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}
    return made(lambda: foreign.gpt2(**dropped)).train()


def mean_loss(model, dataset):
    was = model.training
    with torch.no_grad():
        ids = torch.stack([row["input_ids"] for row in dataset])
        found = float(squared(model.eval()(input_ids=ids, labels=ids)))
    model.train(was)
    return found


def test_evaluates_what_it_was_given_and_what_it_has_trained():
    args, dataset = TrainingArguments(max_steps=2, learning_rate=1e-2), data()
    model = made(Layers).train()
    strategy = tv.Merak(pp=2, dp=2, microbatches=2, schedule="gpipe")
    trainer = tv.Trainer(model, strategy, args, dataset, loss=squared, eval_dataset=dataset[:10])
    before = trainer.evaluate(timeout=120)
    assert before["eval_samples"] == 8 and model.training
    assert before["eval_loss"] == pytest.approx(mean_loss(model, dataset[:8]), rel=1e-10)
    trainer.train(timeout=120)
    after = trainer.evaluate(dataset[8:])
    assert after["eval_samples"] == 16
    assert after["eval_loss"] == pytest.approx(mean_loss(model, dataset[8:]), rel=1e-10)
    assert abs(after["eval_loss"] / before["eval_loss"] - 1) > 1e-3


def in_a_world(strategy, args):
    """Evaluated, trained, evaluated on the same ranks: losses, gradients that evaluation left,
    and what the trained model has as one process."""
    torch.manual_seed(torch.distributed.get_rank())
    dataset, model, whole = data(), dropping(), dropping()
    trainer = tv.Trainer(model, strategy, args, dataset, loss=squared, eval_dataset=dataset)
    first, left = trainer.evaluate(), [p.grad for p in trainer.parallel.parameters()]
    trainer.train()
    whole.load_state_dict(trainer.parallel.full_state_dict(), strict=False)
    modes = {module.training for module in model.modules()}
    return (
        first["eval_loss"],
        trainer.evaluate()["eval_loss"],
        mean_loss(dropping(), dataset),
        mean_loss(whole, dataset),
        left,
        modes,
    )


def test_evaluation_within_a_world_trains_on():
    """Two programs over the same parameters: the one without dropout sees what the other learns."""
    strategy = tv.Merak(pp=2, tp=2, microbatches=4, schedule="zb_v")
    args = TrainingArguments(max_steps=2, learning_rate=1e-2)
    for first, second, before, after, left, modes in tv.launch(
        in_a_world, strategy, args, world_size=4, progress=False, timeout=120
    ):
        assert first == pytest.approx(before, rel=1e-10)
        assert second == pytest.approx(after, rel=1e-10) and abs(second / first - 1) > 1e-3
        assert left == [None] * len(left) and modes == {True}


def test_evaluation_needs_a_batch():
    trainer = tv.Trainer(made(), tv.Merak(pp=2, microbatches=4), eval_dataset=data(6))
    with pytest.raises(ValueError, match="eval_dataset has 2"):
        trainer.evaluate(data(2))
    with pytest.raises(ValueError, match="train_dataset has 0"):
        trainer.train()


def test_evaluation_without_ranks_or_its_model():
    plan = tv.parallelize(made(), tv.Merak(pp=2), foreign.tokens(4))
    with pytest.raises(ValueError, match="this is a plan: inside ranks"):
        plan.evaluate(**foreign.tokens(4))
    partition = SimpleNamespace(
        graph=SimpleNamespace(training=True, model="GPT2LMHeadModel"),
        stages=[SimpleNamespace(index=0, parameters=["a"])],
    )
    other = SimpleNamespace(stages=[SimpleNamespace(index=0, parameters=["a", "b"])])
    kept = made()
    with pytest.raises(ValueError, match="stages 0 would hold other parameters than in training"):
        Evaluation(kept, lambda *_: other, None).program(partition, {}, ())
    with pytest.raises(ValueError, match="which was deleted: keep the model passed to parallelize"):
        Evaluation(made(), None, None).program(partition, {}, ())
