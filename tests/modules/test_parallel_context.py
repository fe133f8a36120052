"""Sequences over ranks in models that tpviz did not write: equal to one process, with the ledger of
`tv.Context`, and what cannot be cut is said with what can."""

from dataclasses import replace
from functools import partial

import foreign
import pytest
import torch
import torch.nn.functional as F
from test_parallel_suggest import causal
from torch import nn
from torch.utils.checkpoint import checkpoint

import tpviz as tv

SEQ = 8


def tokens(batch=4, seq=SEQ, labels=False):
    ids = torch.arange(batch * seq).view(batch, seq) * 7 % 20
    found = {"input_ids": ids, "use_cache": False}
    if labels:  # unequally many on each rank
        first = torch.tensor([[1], [7], [0], [5]])
        found["labels"] = ids.masked_fill(torch.arange(seq) < first, -100)
    return found


GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 4}


def mistral():
    return causal("Mistral", **GROUPED)


def qwen():
    return causal("Qwen3", head_dim=4, **GROUPED)


class Decoder(nn.Module):
    """Of nobody: learned positions that are an input, an attention of its own."""

    def __init__(self, again=None):
        super().__init__()
        self.token, self.place = nn.Embedding(20, 16), nn.Embedding(SEQ, 16)
        self.qkv, self.out, self.again = nn.Linear(16, 32), nn.Linear(16, 16), again
        self.head = nn.Linear(16, 20)

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (8, 4)).transpose(1, 2).split((4, 2, 2), 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, tokens, positions):
        x = self.token(tokens) + self.place(positions)
        if self.again is not None and torch.is_grad_enabled():
            return self.head(x + checkpoint(Attend(self), x, use_reentrant=self.again))
        return self.head(x + self.attend(x))


class Attend(nn.Module):
    """A module within, as gradient checkpointing of a layer calls it."""

    def __init__(self, decoder):
        super().__init__()
        self.attend = decoder.attend

    def forward(self, x):
        return self.attend(x)


def own(batch=4):
    return tokens(batch)["input_ids"], torch.arange(SEQ)[None]


KINDS = "zigzag", "ring", "all_gather", "ulysses"
ALONE = [tv.Context(cp=4, kind=kind) for kind in KINDS]
PRODUCTS = [
    tv.Megatron(tp=2) * tv.Context(cp=2),
    tv.Context(cp=2, kind="ulysses") * tv.DataParallel(dp=2),
    tv.ATP(mesh=(1, 2)) * tv.Context(cp=2, kind="all_gather"),
    tv.Context(cp=2, ulysses=2),
]


def verdicts(make, inputs, strategies):
    """[(the verdict, its error, whether it is equal, the layers that are split)] of a rank."""
    found = []
    for strategy in strategies:
        v = tv.verify_parallel(make, strategy, inputs, 1)
        found.append((repr(v), v.max_error, v.ok, len(v.report.pairs)))
    return found


def check(make, inputs, *strategies, world=4):
    job = verdicts, make, inputs, strategies
    for found in tv.launch(*job, world_size=world, progress=False, timeout=150):
        for said, error, ok, _ in found:
            assert ok and error < 1e-10, said


@pytest.mark.parametrize("make", [foreign.llama, foreign.gpt2], ids=["llama", "gpt2"])
def test_every_kind_equals_one_process(make):
    check(make, tokens(), *ALONE)


@pytest.mark.parametrize("make", [foreign.llama, mistral, qwen], ids=["llama", "mistral", "qwen3"])
def test_products_equal_one_process(make):
    check(make, tokens(labels=True), *PRODUCTS)


def test_a_decoder_of_ones_own():
    check(Decoder, own(), *ALONE[:3], PRODUCTS[1])


# -- what is sent ----------------------------------------------------------------------------------
LLAMA = tv.GPT(
    layers=2, hidden=16, heads=8, kv_heads=4, seq=SEQ, batch=4, norm="rms", rotary=True, bias=False
)


@pytest.mark.parametrize("strategy", [*ALONE, *PRODUCTS], ids=lambda s: s.short)
def test_attention_sends_what_it_sends_in_our_own_model(strategy):
    """`verify_parallel` has compared the report's ledger with the ranks'."""
    found = tv.parallelize(foreign.llama(), strategy, tokens()).report.ledger(
        4 * SEQ // strategy.world_size * strategy.axes.get("tp", strategy.axes.get("d2", 1)), 8
    )
    ours = strategy.ledger(replace(LLAMA, dtype="float64"))
    of_cp = lambda ledger: [
        row for row in ledger.rows if row.axis in ("cp", "ulysses") and row.phase != "sync"
    ]
    assert of_cp(found) == of_cp(ours) != []
    size = sum(p.numel() + 1 for p in foreign.llama().parameters()) * 8
    [summed] = [row for row in found.rows if row.phase == "sync"]
    dp = strategy.axes.get("dp", 1)
    context = strategy.inner if dp > 1 else strategy
    assert (summed.axis, summed.count) == (
        "*".join(["dp"] * (dp > 1) + [*context.sequence.axes]),
        1,
    )
    assert summed.payload_bytes == size or "tp" in strategy.axes or "d2" in strategy.axes


def build(workload, mesh, strategy):
    """A rank's program for `tv.Custom`."""
    ids = torch.zeros(workload.batch, workload.seq, dtype=torch.int64)
    make = lambda ids: {"input_ids": ids, "labels": ids, "use_cache": False}
    model = tv.parallelize(foreign.llama(), strategy, make(ids), mesh=mesh)

    def step(batch):
        loss = model(**model.rows(make(batch[0]))).loss
        loss.backward()
        return loss

    return model, step


def test_it_is_captured_as_it_runs():
    small, strategy = replace(LLAMA, vocab=20), PRODUCTS[0]
    own = tv.Custom(strategy.axes, partial(build, strategy=strategy))
    captured, trace = tv.capture(own, small), tv.run(own, small, steps=1, progress=False)
    assert captured.ledger() == trace.ledger()
    assert {row.axis for row in captured.ledger().rows} == {"cp", "tp"}
    assert tv.simulate(own, small, tv.clusters.nvswitch(4), capture=captured).step_time > 0


# -- training --------------------------------------------------------------------------------------
def trained(strategy, make, inputs, loss, prepare=lambda model: None):
    """(largest error of gradients, norms) after two microbatches, on one rank."""
    torch.manual_seed(0)
    whole = make().double().eval()
    model = make().double().eval()
    model.load_state_dict(whole.state_dict())
    split = tv.parallelize(model, strategy, inputs)
    prepare(model)
    halves = [{n: v for n, v in inputs.items()} if isinstance(inputs, dict) else inputs] * 2
    with split.no_sync():
        loss(call(split, split.rows(halves[0]))).backward()
    loss(call(split, split.rows(halves[1]))).backward()
    for half in halves:
        loss(call(whole, half)).backward()
    expected = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    found = split.full_gradients()
    off = max(float((found[n] - g).abs().max() / g.abs().max()) for n, g in expected.items())
    norms = split.clip_grad_norm_(1.0), nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
    logits = [
        getattr(out, "logits", out)
        for out in (call(split, split.rows(inputs)), call(whole, inputs))
    ]
    together = split.joined(logits[0].detach())
    return off, *map(float, norms), float((together - logits[1]).abs().max())


def call(model, inputs):
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def its_own(output):
    return output.loss


def square(logits):
    return logits.square().mean()


def remade(model):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()


TRAINED = [
    (PRODUCTS[0], foreign.llama, tokens(labels=True), its_own),
    (PRODUCTS[1], foreign.gpt2, tokens(labels=True), its_own),
    (ALONE[0], foreign.llama, tokens(labels=True), its_own, remade),
    (ALONE[0], partial(Decoder, True), own(), square),
    (PRODUCTS[1], partial(Decoder, False), own(), square),
]


def test_gradients_of_microbatches_recomputed_and_not():
    for case in TRAINED:
        for off, norm, whole, apart in tv.launch(trained, *case, world_size=4, progress=False):
            assert off < 1e-6 and norm == pytest.approx(whole, rel=1e-6) and apart < 1e-5, case


# -- what cannot be --------------------------------------------------------------------------------
def windowed(size):
    return causal("Mistral", sliding_window=size, **GROUPED)


class Both(Decoder):
    """All tokens see all, or half of them are asked for."""

    def __init__(self, half=False):
        super().__init__()
        self.half = half

    def attend(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (8, 4)).transpose(1, 2).split((4, 2, 2), 1)
        q = q[:, :, ::2] if self.half else q
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2)).mean(1, keepdim=True)


ZIGZAG, EXCHANGED = tv.Context(cp=2), tv.Context(cp=8, kind="ulysses")
CANNOT = [
    (foreign.llama, ZIGZAG, None, "without example_inputs: give a batch"),
    (foreign.llama, tv.Context(cp=3), tokens(), r"seq=8 .* 2\*cp=6: .* seq=6 or 12"),
    (foreign.llama, tv.Context(cp=3, kind="ring"), tokens(), "cp=3: use cp=2 or 4, or seq=6 or 9"),
    (
        foreign.llama,
        ZIGZAG * tv.DataParallel(dp=3),
        tokens(),
        "batch=4 does not split evenly over dp=3: use dp=2 or 4, or batch=3 or 6",
    ),
    (
        partial(foreign.llama, 2),
        tv.Context(cp=4, kind="ulysses"),
        tokens(),
        "heads of keys=2 does not split evenly over cp=4: use cp=2, or heads of keys=4",
    ),
    (
        partial(foreign.llama, 4),
        tv.Megatron(tp=4) * tv.Context(cp=2, kind="ulysses"),
        tokens(),
        r"heads of keys=4 does not split evenly over cp\*tp=8: .* heads of keys=8",
    ),
    (
        partial(windowed, 4),
        ZIGZAG,
        tokens(),
        r"its attention has a mask \(4, 1, 8, 8\): .* sliding_window of None or above 8",
    ),
    (
        foreign.llama,
        ZIGZAG,
        tokens() | {"attention_mask": torch.ones(4, SEQ).tril(4)},
        "has a mask .*: use whole sequences without padding",
    ),
    (
        foreign.llama,
        ZIGZAG,
        tokens() | {"position_ids": torch.arange(SEQ).expand(4, -1) % 4},
        "has a mask .* padding, documents",
    ),
    (
        partial(foreign.gpt2, attn_implementation="eager"),
        ZIGZAG,
        tokens(),
        r"never calls .*model.set_attn_implementation\('sdpa'\) does",
    ),
    (
        partial(foreign.gpt2, add_cross_attention=True),
        ZIGZAG,
        tokens() | {"encoder_hidden_states": foreign.vectors(foreign.WIDTH).float()},
        "crossattention: its attention is of 8 queries to 6 keys: cross attention",
    ),
    (foreign.bert, ZIGZAG, {"input_ids": tokens()["input_ids"]}, "sees all tokens: only causal"),
    (Both, ZIGZAG, own(), "the model: its attention sees all tokens"),
    (partial(Both, True), ZIGZAG, own(), "is of 4 queries to 8 keys"),
    (
        foreign.llama,
        tv.Context(cp=2, recompute="full"),
        tokens(),
        "recompute='full' is not possible here: recompute with the model's own means",
    ),
    (
        foreign.llama,
        ZIGZAG * tv.DataParallel(dp=2, zero=1),
        tokens(),
        "zero=1 is not possible here: optimizer states",
    ),
    (
        foreign.llama,
        tv.AxoNN(x=2) * ZIGZAG,
        tokens(),
        r"use Megatron\(...\) or ATP\(...\) in a Con",
    ),
    (foreign.llama, tv.T3(tp=2) * ZIGZAG, tokens(), "parallelize works with .* not T3"),
    (foreign.llama, ZIGZAG * tv.Pipeline(pp=2), tokens(), "use Context without Pipeline, or Merak"),
]


@pytest.mark.parametrize("make, strategy, inputs, message", CANNOT)
def test_what_cannot_be_cut_says_what_can(make, strategy, inputs, message):
    with pytest.raises(ValueError, match=message):
        tv.parallelize(make(), strategy, inputs)


def test_one_rank_of_cp_is_the_factor_inside():
    alone = tv.parallelize(foreign.llama(), tv.Megatron(tp=2)).report
    around = tv.parallelize(foreign.llama(), tv.Megatron(tp=2) * tv.Context(cp=1)).report
    assert alone.to_table() == around.to_table() and around.attention_table == []


def test_where_no_layer_can_be_split_sequences_are_named():
    with pytest.raises(ValueError, match=r"nothing in Llama.* can be cut, .*: tv.Context\(cp=4\)$"):
        tv.parallelize(foreign.llama(), tv.Megatron(tp=5), tokens())
    with pytest.raises(ValueError, match="tp=5") as error:
        tv.parallelize(foreign.bert(), tv.Megatron(tp=5), {"input_ids": tokens()["input_ids"]})
    assert "Context" not in str(error.value)


def said_by(make_call):
    try:
        make_call()
    except ValueError as error:
        return str(error)


def mistakes():
    """What a rank is told of batches that are not as the example was."""
    model = tv.parallelize(mistral(), ZIGZAG, tokens())
    narrow = tv.parallelize(windowed(SEQ + 1), ZIGZAG, tokens())
    ids = tokens()["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    rows = lambda **more: lambda: model.rows({"input_ids": ids, **more})
    whole = {"input_ids": ids, "position_ids": torch.arange(SEQ)[None]}
    own = model.rows(tokens())
    found = [
        said_by(rows(attention_mask=mask)),
        said_by(rows(attention_mask=mask.bool() | True)),
        said_by(rows(position_ids=torch.arange(SEQ)[None] % 4)),
        said_by(lambda: model.rows(ids)),
        said_by(lambda: model(**whole)),
        said_by(lambda: model(input_ids=own["input_ids"])),
        said_by(lambda: model(**own, attention_mask=torch.ones(4, SEQ // 2))),
        said_by(lambda: narrow(**narrow.rows(tokens(seq=2 * SEQ)))),
        said_by(lambda: model.joined(torch.ones(4, 3))),
        said_by(lambda: model.rows({"input_ids": torch.ones(4, 6).long()})),
    ]
    model.module.config.attention_dropout = 0.1
    for layer in model.module.model.layers:
        layer.self_attn.attention_dropout = 0.1
    return [*found, said_by(lambda: model.train()(**model.rows(tokens())))]


def test_mistakes_on_a_rank_are_told():
    for found in tv.launch(mistakes, world_size=2, progress=False):
        expected = [
            "attention_mask leaves out 3 of 32 tokens: padding is not cut",
            None,
            "position_ids do not go up by 1: several documents",
            "MistralForCausalLM takes position_ids, which are added to inputs by name",
            "attention has 8 tokens of each sequence, and this rank's part is 4: give each rank",
            "position_ids are missing: give model.rows(batch)",
            "attention_mask is not cut: give model.rows(batch)",
            "sequences of 16 tokens are longer than sliding_window=9: use at most 8 tokens",
            "an output of shape (4, 3) has no dim 1 of 4 tokens",
            "seq=6 does not split evenly over 2*cp=4: use 2*cp=2 or 6, or seq=4 or 8",
            "model.layers.0.self_attn: its attention drops 0.1 of its weights",
        ]
        for text, start in zip(found, expected, strict=True):
            assert text is None if start is None else text.startswith(start), (text, start)


def test_positions_that_are_not_given_are_noticed():
    """A module that counts its tokens begins at 0 on every rank."""

    class Counts(Decoder):
        def forward(self, tokens):
            return super().forward(tokens, torch.arange(tokens.shape[1]))

    def said():
        return said_by(lambda: tv.parallelize(Counts(), ZIGZAG, own()[0]))

    for text in tv.launch(said, world_size=2, progress=False):
        assert text.startswith("output 0 changed by ") and "positions" in text


def rotary(kind):
    factors = {"short_factor": [1.0], "long_factor": [2.0]} if kind == "longrope" else {}
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4, **factors}
    if kind == "longrope":
        rope["original_max_position_embeddings"] = SEQ
    return causal("Llama", max_position_embeddings=SEQ, rope_parameters=rope, **GROUPED)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_positions_that_depend_on_length_are_refused(kind):
    tv.parallelize(rotary(kind), ZIGZAG, tokens())
    with pytest.raises(ValueError, match=f"rope_type='{kind}' .* 16 tokens .* at most 8 tokens"):
        tv.parallelize(rotary(kind), ZIGZAG, tokens(seq=16))


def test_a_compiled_model_is_refused():
    with pytest.raises(ValueError, match="compile what parallelize returns"):
        tv.parallelize(torch.compile(Decoder(), backend="eager"), ZIGZAG, own())


def backwards():
    """(is the function back after two models' backward; a plain attention after a failed one is
    off by; of a longer batch under dynamic positions; a part of one token is off by)"""
    before, q = F.scaled_dot_product_attention, torch.randn(1, 2, SEQ // 2, 4)
    expected = before(q, q, q)
    one, two = (tv.parallelize(Decoder(), ZIGZAG, own()) for _ in range(2))
    (square(call(one, one.rows(own()))) + square(call(two, two.rows(own())))).backward()
    back = F.scaled_dot_product_attention is before

    def fail(_):
        raise RuntimeError

    out = call(one, one.rows(own()))
    out.register_hook(fail)
    with pytest.raises(RuntimeError):
        out.sum().backward()
    off = float((F.scaled_dot_product_attention(q, q, q) - expected).abs().max())
    back = back and F.scaled_dot_product_attention is before
    model = tv.parallelize(rotary("dynamic"), ZIGZAG, tokens())
    said = said_by(lambda: model.rows(tokens(seq=16)))
    whole = foreign.llama().eval()
    logits = call(whole, tokens(seq=2)).logits
    split = tv.parallelize(whole, tv.Context(cp=2, kind="ring"), tokens(seq=2))
    single = split.joined(call(split, split.rows(tokens(seq=2))).logits)
    return back, off, said, float((single - logits).abs().max())


def test_attention_is_given_back_and_lengths_are_checked():
    for back, off, said, single in tv.launch(backwards, world_size=2, progress=False):
        assert back and not off and single < 1e-4
        assert said.startswith("rope_type='dynamic' turns sequences of 16 tokens")
