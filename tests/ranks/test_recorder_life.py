"""What a recorder is asked for, how it begins and ends, and what it refuses."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tpviz as tv


def test_every_operator_on_request():
    few, many = tv.launch(_details, world_size=1)[0]
    assert few == ["addmm"]
    assert set(many) > {"addmm", "view", "t"} or set(many) > {"addmm", "t"}


def _details():
    layer, names = torch.nn.Linear(4, 4), []
    for detail in ("kernels", "all"):
        with tv.record(detail=detail) as rec:
            layer(torch.ones(2, 4))
        names.append(rec.trace["name"].tolist())
    return names


def test_recording_works_without_ranks():
    with tv.record() as rec:
        torch.ones(4, 8) @ torch.ones(8, 2)
    assert rec.trace["flops"].tolist() == [2 * 4 * 8 * 2]
    assert rec.trace.meta["overhead"] >= 0


FUSED = {
    "flash": lambda x, causal: (
        [x, x, x, 0.0, causal],
        lambda out, lse, q, k, m, n, seed, offset, _: [
            *(x, x, x, x, out, lse, q, k, m, n, 0.0, causal, seed, offset)
        ],
    ),
    "efficient": lambda x, causal: (
        [x, x, x, None, True, 0.0, causal],
        lambda out, lse, seed, offset: [
            *(x, x, x, x, None, out, lse, seed, offset, 0.0, [True] * 3 + [False], causal)
        ],
    ),
    "cudnn": lambda x, causal: (
        [x, x, x, None, True, 0.0, causal],
        lambda out, lse, q, k, m, n, seed, offset, _: [
            *(x, x, x, x, out, lse, seed, offset, None, q, k, m, n, 0.0, causal)
        ],
    ),
}
"""{kernel of fused attention: its arguments, and those of its backward from its results}."""


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", FUSED)
def test_causal_attention_counts_half_of_what_the_flop_counter_does(kind, causal):
    name = f"_scaled_dot_product_{kind}_attention"
    x = torch.empty(2, 4, 16, 8, dtype=torch.bfloat16, device="meta")
    arguments, back = FUSED[kind](x, causal)
    with FlopCounterMode(display=False) as counter, tv.record() as rec:
        results = getattr(torch.ops.aten, name)(*arguments)
        getattr(torch.ops.aten, f"{name}_backward")(*back(*results))
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert counter.get_total_flops() == (2 + 5) * product
    assert rec.trace["flops"].tolist() == [n * product // (1 + causal) for n in (2, 5)]


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu_counts_as_on_a_gpu(causal):
    x = torch.randn(2, 4, 16, 8, requires_grad=True)
    with tv.record() as rec:
        torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=causal).sum().backward()
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert rec.trace["flops"].tolist() == [n * product // (1 + causal) for n in (2, 5)]


def test_unknown_detail_and_nesting_are_refused():
    with pytest.raises(ValueError, match="kernels"):
        tv.record(detail="some")
    with tv.record(), pytest.raises(RuntimeError, match="already being recorded"), tv.record():
        pass


def test_an_exception_inside_leaves_no_recorder_behind():
    with pytest.raises(ZeroDivisionError), tv.record():
        1 / 0  # noqa: B018
    with tv.record() as rec:
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert len(rec.trace) == 1


def test_a_group_that_is_not_recorded_is_said():
    messages = tv.launch(_warning, world_size=1, backend="gloo")
    assert 'backend="tpviz"' in messages[0]


def _warning():
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tv.record():
            pass
    return str(caught[0].message)


def test_a_step_that_raises_keeps_its_number_and_the_next_takes_another():
    x = torch.ones(2, 2)
    with tv.record() as rec:
        with pytest.raises(ZeroDivisionError), rec.step():
            1 / 0  # noqa: B018
        x @ x
        with rec.step():
            x @ x
    assert rec.trace.steps == [0, 1]
    assert rec.trace.select(kind="compute")["step"].tolist() == [-1, 1]


def test_steps_cannot_be_nested_and_a_recorder_records_once():
    with tv.record() as rec, rec.step(), pytest.raises(RuntimeError, match="cannot be nested"):
        with rec.step():
            pass
    with pytest.raises(RuntimeError, match="records once"), rec:
        pass


def test_without_any_module_a_step_has_no_phases():
    with tv.record() as rec, rec.step():
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert rec.trace.select(kind="compute")["phase"].tolist() == [""]


def test_gradients_reduced_by_hand_after_backward_are_synchronisation():
    assert tv.launch(_reduced_by_hand, world_size=2) == [["forward", "sync"]] * 2


def _reduced_by_hand():
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    with tv.record() as rec, rec.step():
        y = layer(x)
        torch.distributed.all_reduce(y.detach())
        y.sum().backward()
        torch.distributed.all_reduce(layer.weight.grad)
    return rec.trace.select(kind="comm")["phase"].tolist()


def test_collectives_that_nobody_waits_for_harm_no_later_job():
    """Their rows must not be what keeps a group alive: it would end on a thread of gloo's."""
    for _ in range(15):
        assert tv.launch(_never_waits, world_size=4) == [6] * 4


def _never_waits():
    import torch.distributed as dist

    mesh = tv.Mesh({"d1": 2, "d2": 2}).device_mesh()
    with tv.record() as rec:
        for axis in ("d1", "d2") * 3:
            dist.all_reduce(torch.ones(200_000), group=mesh.get_group(axis), async_op=True)
    return len(rec.trace)
