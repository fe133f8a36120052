"""The schemes that a grid of AxoNN may be: named where they are reached, and what they send is
what our own versions of them send."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.views.films.grid_cases import KNOWN, cases

W = tv.GPT(layers=3, hidden=64, heads=8, seq=8, batch=16, tied=False)


def axonn(x=1, y=1, z=1, data=1, **knobs):
    return tv.AxoNN(x=x, y=y, z=z, data=data, **knobs)


@pytest.mark.parametrize(
    "strategy, names",
    [
        (axonn(), ["one device"]),
        (axonn(x=4), ["Megatron-LM"]),
        (axonn(x=4, order="yxz", overlap=()), ["Megatron-LM"]),
        (axonn(y=2), ["reversed Megatron-LM"]),
        (axonn(z=4, keep=False), ["FSDP (ZeRO-3)"]),
        (axonn(z=4, recompute=True), ["FSDP (ZeRO-3)"]),
        (axonn(z=4), ["ZeRO-2-like"]),
        (axonn(z=2, data=2), ["HSDP"]),
        (axonn(z=2, data=2, keep=False), ["HSDP"]),
        (axonn(data=8), ["DDP"]),
        (axonn(x=2, y=2), ["Tensor3D (2D)"]),
        (axonn(x=2, y=4, data=2), ["Tensor3D (2D)"]),
        (axonn(x=2, y=2, z=2), ["like Colossal-AI 3D"]),
        (axonn(x=2, y=2, z=4), []),
        (axonn(x=2, z=2), []),
        (axonn(x=2, data=2), []),
        (axonn(y=2, z=2, data=2), []),
    ],
    ids=str,
)
def test_a_grid_is_what_its_axes_make_it(strategy, names):
    assert [case.name for case in cases(strategy)] == names


def test_every_case_is_told_in_a_sentence_with_its_sources():
    assert len({case.name for case in KNOWN}) == len(KNOWN) == 9
    for case in KNOWN:
        assert case.what.endswith(".")
        assert len(f"{case.name}: {case.what} ({', '.join(case.source)})") < 175  # a line of a view
        assert set(case.source) <= {"derived", "code", "authors", "measured"}
    assert not {"SUMMA", "2.5D"} & {word for case in KNOWN for word in case.what.split()}


# -- what they send --------------------------------------------------------------------------------
def block(strategy, *axes, **equal):
    """Wire bytes of a rank for one more block, of the axes given or of all."""
    sent = [
        sum(
            r.wire_bytes
            for r in strategy.ledger(w)
            if (not axes or r.axis in axes) and all(getattr(r, k) == v for k, v in equal.items())
        )
        for w in (replace(W, layers=4), W)
    ]
    return sent[0] - sent[1]


def rows(strategy):
    """The ledger without the names of its axes."""
    return [row[1:] for row in strategy.ledger(W)]


def test_x_alone_is_megatron():
    for n in (2, 4, 8):
        assert rows(axonn(x=n)) == rows(tv.Megatron(tp=n))


def test_y_alone_sends_three_times_as_much():
    """Beside two numbers a token for each LayerNorm."""
    statistics = 4 * 2 * 2 * W.batch * W.seq * 4 * 3 / 4
    assert block(axonn(y=4)) - statistics == 3 * block(axonn(x=4))


def test_data_alone_is_ddp_in_one_bucket():
    assert rows(axonn(data=4)) == rows(tv.DataParallel(dp=4, bucket_mb=25.0))


def test_z_alone_gathers_and_scatters_weights_as_fsdp():
    """FSDP's blocks have biases and LayerNorm in them; here those are summed, for 2/3 of it."""
    fsdp, mine = tv.DataParallel(dp=4, zero=3), axonn(z=4, keep=False)
    others = W.num_parameters - replace(W, layers=2).num_parameters - 12 * W.hidden**2
    for collective, passes in (("all_gather", 2), ("reduce_scatter", 1)):
        assert block(mine, collective=collective) + passes * 3 / 4 * others * 4 == block(
            fsdp, collective=collective
        )
    assert block(mine, collective="all_reduce") == 2 * 3 / 4 * others * 4
    again = axonn(z=4, recompute=True)
    assert block(again) == block(mine)


def test_z_alone_with_kept_weights_sends_what_zero_2_does():
    zero = tv.DataParallel(dp=4, zero=2, bucket_mb=25.0)
    assert block(axonn(z=4)) == block(zero)


def test_z_within_data_sums_shards():
    """Within: FSDP of half the batch. Across: what a rank holds, once."""
    hsdp = axonn(z=2, data=2)
    assert block(hsdp, "z", "z_ahead") == block(axonn(z=2))
    whole = W.num_parameters - replace(W, layers=2).num_parameters
    weights = 12 * W.hidden**2
    assert block(hsdp, "data") == (weights / 2 + whole - weights) * 4


def test_without_z_it_is_atp_with_attention_of_the_first_kind():
    names = {"d1": "x", "d2": "y"}
    atp = tv.ATP(mesh=(2, 2), attention="A1").ledger(W)
    mine = axonn(x=2, y=2).ledger(W)
    assert sorted((names[r.axis], *r[1:]) for r in atp) == [tuple(r) for r in mine]


@pytest.mark.parametrize("q", [2, 4])
def test_a_cube_sends_what_the_sentence_says(q):
    """Forward of a layer, elements: (q-1)/q^3 (kn + 2mn); of the four layers of a block."""
    strategy, h, m = axonn(x=q, y=q, z=q), W.hidden, W.batch * W.seq
    statistics = 2 * 2 * 2 * m / q * (q - 1) / q
    expected = (
        (q - 1)
        / q**3
        * sum(k * n + 2 * m * n for k, n in ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)))
    )
    assert block(strategy, phase="forward") / 4 - statistics == pytest.approx(expected, rel=1e-12)
