"""A bug zoo: programs that run and are wrong must be flagged by `verify`, each where it shows."""

import sys

import cloudpickle
import pytest
import torch

import tpviz as tv
from tpviz.verbs.equality import error

W = tv.GPT(layers=2, hidden=16, heads=4, seq=8, batch=4, vocab=32)
PARAMETERS = len(W.parameter_shapes())

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the ranks cannot import this file


class Broken(tv.Megatron):
    """Megatron(tp=2) with one thing changed after it was built."""

    def build(self, *args, **options):
        program = super().build(*args, **options)
        self.spoil(program)
        return program


class NoSum(Broken):
    def spoil(self, program):
        down = program.module.blocks[1].mlp.down
        down.forward = lambda x: x @ down.weight.t() + down.bias


class BiasOnEveryRank(Broken):
    def spoil(self, program):
        down = program.module.blocks[0].mlp.down
        plain = down.forward
        down.forward = lambda x: plain(x) + down.bias


class DoubledGradient(Broken):
    def spoil(self, program):
        program.named["blocks.1.norm1.bias"].register_hook(lambda grad: 2 * grad)


class RoundedSum(Broken):
    """One sum over tp comes in float32."""

    def spoil(self, program):
        down = program.module.blocks[1].mlp.down
        plain = down.forward
        down.forward = lambda x: plain(x).float().double()


class RoundedGradient(Broken):
    """One gradient comes in float32, as by a reduced-precision all-reduce."""

    def spoil(self, program):
        program.named["blocks.0.mlp.up.bias"].register_hook(lambda grad: grad.float().double())


class SlightlyOff(Broken):
    """A relative error of 1e-8 in the smallest of all gradients."""

    def spoil(self, program):
        program.named["blocks.0.norm1.weight"].register_hook(lambda grad: grad * (1 + 1e-8))


class NoInputSum(Broken):
    """f left out: the backward of a column-parallel layer keeps its own part of the input's
    gradient."""

    def spoil(self, program):
        up = program.module.blocks[0].mlp.up
        up.forward = lambda x: x @ up.weight.t() + up.bias


class NoSyncOfNorms(Broken):
    def spoil(self, program):
        program.summed = {}


class WholeTargets(Broken):
    """Every rank takes token t for its own row t mod rows: the vocabulary offset forgotten."""

    def spoil(self, program):
        program.module.embed.rank = 0


class NotANumber(Broken):
    def spoil(self, program):
        program.named["norm.weight"].register_hook(lambda grad: grad * float("nan"))


class OneCollectiveTooMany(Broken):
    """Right numbers, wrong traffic."""

    def spoil(self, program):
        import torch
        import torch.distributed as dist

        plain = program.synchronise

        def synchronise():
            plain()
            dist.all_reduce(torch.zeros(1), group=program.mesh.get_group("tp"))

        program.synchronise = synchronise


class NeverWaited(Broken):
    """Right numbers whenever the sum is quick enough, as it is here."""

    def spoil(self, program):
        import time
        from types import SimpleNamespace

        import torch.distributed as dist

        down, plain = program.module.blocks[0].mlp.down, dist.all_reduce

        def issue(y, **how):
            plain(y, **{**how, "async_op": True})
            return SimpleNamespace(wait=lambda: None)

        def forward(x):
            dist.all_reduce = issue
            try:
                return type(down).forward(down, x)
            finally:
                dist.all_reduce = plain
                time.sleep(0.05)

        down.forward = forward


class BrokenData(tv.DataParallel):
    def build(self, *args, **options):
        program = super().build(*args, **options)
        self.spoil(program)
        return program


class SameRowsOnEveryRank(BrokenData):
    def spoil(self, program):
        forward = program.inner.forward
        batch = []

        def first_rows(rows):
            import torch
            import torch.distributed as dist

            batch[:] = [r.clone() for r in rows]
            for r in batch:
                dist.broadcast(r, 0)
            return forward([torch.as_tensor(r) for r in batch])

        program.inner.forward = first_rows


class NeverReduced(BrokenData):
    def spoil(self, program):
        program.buckets[0].reduce = lambda: None


class NotGathered(BrokenData):
    """ZeRO 1 that forgets to send the updated shares around: wrong from the second step on."""

    def spoil(self, program):
        program.optimizer_step = program.optimizer.step


def flagged(strategy, **more):
    found = tv.verify(strategy, W, progress=False, **more)
    assert not found.ok and not found
    assert "NOT EQUAL" in repr(found)
    return found


def wrong(found, kind):
    return {
        name.removeprefix(kind + " ")
        for name, error in found.errors.items()
        if name.startswith(kind + " ") and error > 1e-10
    }


@pytest.mark.parametrize("bug", [NoSum, BiasOnEveryRank, WholeTargets])
def test_a_wrong_forward_shows_in_the_outputs(bug):
    found = flagged(bug(tp=2))
    assert found.errors["outputs"] > 1e-6
    assert found.ledger_ok == (bug is not NoSum)


def test_a_missing_sum_backward_shows_before_it_only():
    found = flagged(NoInputSum(tp=2))
    assert found.errors["outputs"] < 1e-10 < found.errors["input gradient"]
    assert not {n for n in wrong(found, "gradient") if n.startswith("blocks.1")}
    assert "blocks.0.norm2.weight" in wrong(found, "gradient")
    assert any(
        "tp/all_reduce/backward: run has 4 x" in line and "formula has 5 x" in line
        for line in found.ledger_diff
    )


def test_a_result_used_before_it_was_there_is_no_luck():
    found = flagged(NeverWaited(tp=2), steps=1)
    assert found.ledger_ok
    assert found.unwaited == tuple(
        f"rank {rank}: never waited for all_reduce over tp in blocks.0.mlp.down" for rank in (0, 1)
    )
    assert found.unwaited[0] in repr(found)
    assert tv.verify(tv.Megatron(tp=2), W, steps=1, progress=False).unwaited == ()


def test_one_doubled_gradient_is_named():
    found = flagged(DoubledGradient(tp=2), steps=1)
    assert wrong(found, "gradient") == {"blocks.1.norm1.bias"} == {found.worst}
    assert found.ledger_ok and found.errors["outputs"] < 1e-10


@pytest.mark.parametrize(
    "bug, name", [(RoundedGradient, "blocks.0.mlp.up.bias"), (SlightlyOff, "blocks.0.norm1.weight")]
)
def test_a_small_error_of_a_small_gradient_is_no_rounding(bug, name):
    """Of size 1e-4, so that the error is 1e-12 and less: scaled by the gradient it is not small."""
    found = flagged(bug(tp=2), steps=1)
    assert wrong(found, "gradient") == {name} == {found.worst}
    assert found.errors["outputs"] < 1e-13


def test_one_sum_in_float32_shows():
    found = flagged(RoundedSum(tp=2), steps=1)
    assert found.errors["outputs"] > 1e-10 and found.ledger_ok


def test_what_rounding_does_is_measured_and_allowed():
    """A gradient that is 0 but for rounding, beside one that is not."""
    noise, size = (
        torch.tensor(values, dtype=torch.float64) for values in ([3e-19, -1e-19], [1e-4, 2e-4])
    )
    assert error(-noise, noise, noise / 2) < 1e-10
    assert error(noise * 1e4, noise, noise / 2) > 1e-10
    assert error(size * (1 + 1e-13), size, size + noise) < 1e-10
    assert error(size * (1 + 1e-8), size, size + noise) > 1e-10
    assert error(torch.zeros(2), torch.zeros(2), torch.zeros(2)) == 0
    assert error(noise, torch.zeros(2), torch.zeros(2)) == float("inf")
    assert error(size[:1], size, size) == error(size * torch.nan, size, size) == float("inf")


def test_forgotten_norms_under_sequence_parallelism():
    found = flagged(NoSyncOfNorms(tp=2, sp=True), steps=1)
    assert wrong(found, "gradient") == set(tv.Megatron(tp=2, sp=True).partial(W))
    assert any("tp/all_reduce/sync: run has nothing" in line for line in found.ledger_diff)


def test_not_a_number_is_an_infinite_error():
    found = flagged(NotANumber(tp=2), steps=1)
    assert found.max_error == float("inf") and found.worst == "norm.weight"


def test_right_numbers_with_wrong_traffic_are_flagged():
    found = flagged(OneCollectiveTooMany(tp=2))
    assert found.max_error < 1e-10 and not found.ledger_ok
    assert len(found.ledger_diff) == 2 * 3  # every rank, every step
    assert found.ledger_diff[0].startswith(
        "rank 0, step 0: tp/all_reduce/sync: run has 1 x, 4 payload bytes"
    )


def test_every_rank_on_the_same_rows():
    found = flagged(SameRowsOnEveryRank(dp=2))
    assert len(wrong(found, "gradient")) == PARAMETERS


def test_a_bucket_that_is_never_reduced():
    found = flagged(NeverReduced(dp=2, bucket_mb=0.01))
    first = {
        part[0]
        for part in tv.DataParallel(dp=2, bucket_mb=0.01)
        .buckets(tv.GPT(**{**vars(W), "dtype": "float64"}))[0]
        .parts
    }
    assert wrong(found, "gradient") == first < set(W.parameter_shapes())


def test_shares_that_are_not_gathered_show_in_the_next_step():
    found = flagged(NotGathered(dp=2, zero=1))
    assert not wrong(found, "gradient") and len(wrong(found, "parameter")) == PARAMETERS
    assert any("dp/all_gather/optimizer: run has nothing" in line for line in found.ledger_diff)


def test_what_is_right_passes_and_prints_a_table():
    found = tv.verify(tv.Megatron(tp=2), W, steps=2, progress=False)
    assert found.ok and found and found.max_error < 1e-10 and found.worst
    text = repr(found)
    name = "Megatron(tp=2, sp=False, chunks=1, accumulation=1, recompute='none', offload=0)"
    assert text.startswith(f"equal (tolerance 1e-10): {name}, 2 ranks, 2 steps")
    assert f"{PARAMETERS} gradients" in text
    assert text.endswith("ledger: equal to the formula on every rank")


def test_bad_steps():
    with pytest.raises(ValueError, match="steps=0 is too small"):
        tv.verify(tv.Megatron(tp=2), W, steps=0)


def test_what_was_computed_in_float32_is_known_to_a_unit_of_it():
    """A number of few digits: that of changed parameters may be the same."""
    unit = torch.finfo(torch.float32).eps
    assert error(1 + unit, 1.0, 1.0) > 1e-8
    assert error(1 + unit, 1.0, 1.0, torch.float32) < 1e-10 < error(1.0001, 1.0, 1.0, torch.float32)
