"""Documents packed in a sequence: attention stays inside each, positions begin anew, and FLOPs,
balance and times are those of what is left of the square."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import tpviz as tv
from tpviz.core.step import Kernel
from tpviz.schemes.apart import uncut
from tpviz.schemes.context.paper import imbalance
from tpviz.schemes.context.sequence import KINDS, SequenceCut
from tpviz.schemes.gpt.heads import Heads
from tpviz.schemes.gpt.kernels import attending
from tpviz.schemes.gpt.model import ReferenceGPT
from tpviz.schemes.gpt.program import batch_of, reference_program

DOCUMENTS = (5, 3, 8)
W = tv.GPT(layers=2, hidden=32, heads=8, seq=16, batch=4, vocab=32, documents=DOCUMENTS)
LLAMA = replace(W, kv_heads=4, gated=True, norm="rms", rotary=True, bias=False, tied=False)
LONG = tv.GPT(layers=2, hidden=1024, heads=16, seq=4096, batch=8, vocab=1024)
PACKED = (1000, 96, 3000)
BOX = tv.clusters.nvswitch(8)
FORMS = [{"cp": 2, "kind": kind} for kind in KINDS]
FORMS += [{"cp": 2, "kind": kind, "ulysses": 2} for kind in KINDS[:3]]


def mask(lengths):
    """(S, S), True where a query, down, attends to a key."""
    of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return (of[:, None] == of[None]).tril()


@pytest.mark.parametrize("w", [W, LLAMA], ids=["gpt2", "llama"])
def test_attention_is_that_of_the_mask(w):
    """PyTorch's own, with the mask written out."""
    torch.manual_seed(0)
    heads = Heads(w, torch.float64)
    keys = w.num_kv_heads
    q, k, v = (torch.randn(2, n, 16, 4, dtype=torch.float64) for n in (w.heads, keys, keys))
    k, v = (x.requires_grad_() for x in (k, v))
    expected = F.scaled_dot_product_attention(q, k, v, mask(DOCUMENTS), enable_gqa=True)
    found = heads.mixed(q, k, v)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(y, (k, v), grad) for y in (found, expected))):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("w", [W, LLAMA], ids=["gpt2", "llama"])
def test_a_document_knows_nothing_of_its_neighbours(w):
    """Its logits are those of a sequence of its own."""
    packed = reference_program(w, torch.float64)
    packed.watch()
    tokens, targets = batch_of(w, 0)
    packed.step((tokens, targets))
    start = 0
    for length in DOCUMENTS:
        alone = ReferenceGPT(replace(w, documents=(), seq=length), dtype=torch.float64)
        values = {name: p.detach() for name, p in packed.named.items()}
        if not w.rotary:
            values["embed.position.weight"] = values["embed.position.weight"][:length]
        alone.load_state_dict(values, strict=not w.tied)
        own = slice(start, start + length)
        x = alone.embed(tokens[:, own])
        for block in alone.blocks:
            x = block(x)
        logits = alone.head(alone.norm(x))
        torch.testing.assert_close(packed.outputs()[:, own], logits, rtol=1e-11, atol=1e-11)
        start += length


@pytest.mark.parametrize("lengths", [(16,), DOCUMENTS, (1, 15), (4, 4, 8), (1,) * 16, (9, 7)])
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("kind", KINDS[:3])
def test_rectangles_are_the_mask(kind, cp, lengths):
    """Each entry in one, of one rank; the triangle of each row is its first."""
    cut, painted = SequenceCut(cp, kind), torch.zeros(16, 16, dtype=torch.long)
    size = 16 // (cp * cut.each)
    places = [
        torch.cat([torch.arange(size) + size * chunk for chunk in cut.chunks(rank)])
        for rank in range(cp)
    ]
    work = [0.0] * cp
    for rank in range(cp):
        seen = set[int]()
        for other in cut.passing(rank):
            for rows, columns, causal in cut.rectangles(lengths, rank, other):
                block = torch.ones(rows.stop - rows.start, columns.stop - columns.start)
                block = (block.tril() if causal else block).long()
                painted[places[rank][rows][:, None], places[other][columns]] += block
                work[rank] += block.numel() / (1 + causal)
                mine = set(range(rows.start, rows.stop))
                assert (mine.isdisjoint(seen)) == causal
                seen |= mine
        assert seen == set(range(16 // cp))
    assert torch.equal(painted, mask(lengths).long())
    assert cut.work(lengths) == work and work[cut.busiest(lengths)] == max(work)
    assert imbalance(kind, cp, lengths) == max(work) * cp / sum(work)


@pytest.mark.parametrize("w", [W, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_equals_one_process(form, w):
    found = tv.verify(tv.Context(**form), w, steps=2)
    assert found.ok and found.max_error < 1e-10, str(found)


@pytest.mark.parametrize(
    "make",
    [
        lambda c: tv.Megatron(tp=2, sp=True) * c,
        lambda c: tv.AxoNN(x=2) * c * tv.Pipeline(pp=2, microbatches=2),
        lambda c: tv.ATP(mesh=(1, 2), attention="A1") * c * tv.DataParallel(dp=2, zero=3),
        lambda c: c * tv.DataParallel(dp=2, accumulation=2, recompute="selective"),
        lambda c: tv.T3(tp=2) * tv.DataParallel(dp=2, recompute="full"),
        lambda c: tv.Merak(pp=2, tp=2, microbatches=4),
    ],
)
def test_in_products(make):
    found = tv.verify(make(tv.Context(cp=2)), LLAMA, steps=1)
    assert found.ok and found.max_error < 1e-10, str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_of_every_rank_are_those_it_runs(kind):
    """Of all ranks those of the squares."""
    strategy = tv.Context(cp=4, kind=kind)
    program, part = tv.capture(strategy, LLAMA), strategy.part(LLAMA)
    heads, found = (LLAMA.heads, LLAMA.num_kv_heads), []
    for rank in range(4):
        trace = program.trace(rank)
        fused = [i for i, n in enumerate(trace["name"]) if "scaled_dot_product" in str(n)]
        mine = [o for way in part.context.operations(part, *heads, rank) for o in way]
        kernels = [(o.flops, o.bytes) for o in mine if isinstance(o, Kernel)]
        ran = zip(trace["flops"][fused].tolist(), trace["bytes"][fused].tolist())
        assert sorted(ran) == sorted(kernels * LLAMA.layers)
        found.append(sum(flops for flops, _ in kernels))
    whole = sum(o.flops for way in attending(LLAMA, *heads) for o in way if isinstance(o, Kernel))
    assert sum(found) == whole and (len(set(found)) == 1) == (kind == "ulysses")
    assert ("cp" in strategy.uneven(LLAMA)) == (kind != "ulysses")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_balance_is_in_the_prediction(form):
    """Of ranks of a ring the busiest is predicted; what others have more in a position is not."""
    w, strategy = replace(LONG, documents=PACKED), tv.Context(**form)
    predicted, simulated = tv.predict(strategy, w, BOX), tv.simulate(strategy, w, BOX)
    near = 1e-9 if strategy.cp == 2 else 5e-2
    assert simulated.step_time == pytest.approx(predicted.step_time, rel=near)
    shorter = predicted.step_time < tv.predict(strategy, LONG, BOX).step_time
    assert shorter


@pytest.mark.parametrize("kind", KINDS)
def test_of_pipelines_too(kind):
    w, strategy = replace(LONG, documents=PACKED), tv.Context(cp=2, kind=kind) * tv.Pipeline(pp=2)
    predicted, simulated = tv.predict(strategy, w, BOX), tv.simulate(strategy, w, BOX)
    assert simulated.step_time == pytest.approx(predicted.step_time, rel=2e-2)


def test_without_its_cut_a_plan_has_sequences_of_one_document():
    _, w = uncut(tv.Context(cp=2), W)
    assert (w.seq, w.batch, w.documents) == (8, 8, ())


def test_zigzag_is_out_of_balance():
    """A long document behind short ones is its last rank's and its middle's."""
    assert (
        imbalance("zigzag", 4) == 1 < imbalance("zigzag", 4, PACKED) < imbalance("ring", 4, PACKED)
    )
    assert imbalance("ulysses", 4, PACKED) == 1


def test_flops_of_the_model_are_those_of_the_squares():
    whole, packed = replace(W, documents=()), W
    less = 16**2 - sum(n * n for n in DOCUMENTS)
    assert whole.step_flops - packed.step_flops == 3 * W.layers * 4 * W.batch * less * W.hidden
    assert packed.pairs == 98 and whole.pairs == 256
    part = tv.Context(cp=2).part(W)
    assert (part.lengths, part.pairs) == (DOCUMENTS, 49)


@pytest.mark.parametrize("strategy", [tv.Context(cp=2), tv.Context(cp=2, kind="ulysses")])
def test_bfloat16_runs(strategy):
    half = replace(LLAMA, dtype="bfloat16")
    losses = [
        tv.run(s, half, steps=2, warmup=0).meta["losses"] for s in (strategy, tv.Megatron(tp=1))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)


@pytest.mark.parametrize(
    "documents, message",
    [
        (7, r"documents must be lengths such as \(5, 3, 8\), not 7"),
        ((5, 3), "documents of 8 tokens for seq=16: use seq=8, or another document of 8"),
        ((16, 3), "documents of 19 tokens for seq=16: use seq=19$"),
        ((16, 0), "documents=0 is too small"),
        ((8.5, 7.5), r"documents must be lengths such as \(5, 3, 8\), not \(8.5, 7.5\)"),
    ],
)
def test_lengths_that_do_not_fill_the_sequence(documents, message):
    with pytest.raises(ValueError, match=message):
        replace(W, documents=documents)


def test_one_document_is_none():
    assert replace(W, documents=[16]) == replace(W, documents=())
    assert replace(W, documents=[5, 3, 8]) == W and "documents=(5, 3, 8)" in W.short
