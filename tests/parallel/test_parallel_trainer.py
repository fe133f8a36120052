"""`Trainer`: an unmodified model trained on ranks is the model trained in one process."""

from types import SimpleNamespace

import foreign
import pytest
import torch

import tpviz as tv
from tpviz.parallel import TrainingArguments

MEAN = 0.05  # of the gradient's norm: clipped in every step


def data(count=24):
    ids = torch.arange(count * foreign.TOKENS).view(count, foreign.TOKENS) * 7 % 20
    return [{"input_ids": row, "labels": row} for row in ids]


def squared(output):
    return output.logits.double().square().mean()


def expected(model, args, dataset, batch, steps):
    """The same in one process, written once more: losses, and the model."""
    generator = torch.Generator().manual_seed(args.seed)
    order = torch.randperm(len(dataset), generator=generator).tolist()
    groups = [{"params": [p for p in model.parameters() if (p.dim() < 2) == flat],
               "weight_decay": 0.0 if flat else args.weight_decay} for flat in (False, True)]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    losses = []
    for step in range(steps):
        rows = [dataset[i] for i in order[step * batch:(step + 1) * batch]]
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


def made():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return foreign.gpt2().double().eval()


@pytest.mark.parametrize("strategy", [tv.Merak(pp=2, tp=2, microbatches=4),
                                      tv.Merak(pp=2, dp=2, microbatches=4, schedule="zb_v")],
                         ids=lambda s: s.short)
def test_equals_one_process(strategy):
    args = TrainingArguments(max_steps=3, learning_rate=1e-2, max_grad_norm=MEAN, weight_decay=0.1)
    model, whole, dataset = made(), made(), data()
    found = tv.Trainer(model, strategy, args, dataset, loss=squared).train(timeout=120)
    losses = expected(whole, args, dataset, 4 * strategy.dp, 3)
    assert found.global_step == 3 and found.metrics["losses"] == pytest.approx(losses, rel=1e-10)
    assert found.training_loss == pytest.approx(sum(losses) / 3)
    for (name, a), b in zip(model.named_parameters(), whole.parameters()):
        assert torch.allclose(a, b, rtol=0, atol=1e-10), name


def test_arguments_like_those_of_hugging_face():
    args = SimpleNamespace(**{**vars(TrainingArguments()), "per_device_train_batch_size": 2,
                              "lr_scheduler_type": SimpleNamespace(value="constant")})
    trainer = tv.Trainer(made(), tv.Merak(pp=2, microbatches=4), args, data())
    assert trainer.batch == 8 and trainer.steps == 3 and trainer.schedule == "constant"


@pytest.mark.parametrize("args, count, message", [
    (TrainingArguments(), 3, "a step takes 4 examples .* and train_dataset has 3"),
    (TrainingArguments(lr_scheduler_type="cosine"), 24, "lr_scheduler_type='cosine' is not"),
    (TrainingArguments(per_device_train_batch_size=0), 24, "train_batch_size=0 is too small"),
])
def test_bad_input(args, count, message):
    with pytest.raises(ValueError, match=message):
        tv.Trainer(made(), tv.Merak(pp=2, microbatches=4), args, data(count))
