"""Products of factors, drawn at random: a tensor parallelism, perhaps sequences over ranks around
it, a pipeline, data parallelism, with knobs of each, the axes in some order of ranks."""

import random
import re
from dataclasses import fields, replace
from itertools import permutations
from math import prod

import tpviz as tv
from tpviz.core.schedules import SCHEDULES
from tpviz.schemes.advice import fits
from tpviz.schemes.context.sequence import KINDS
from tpviz.schemes.knobs import RECOMPUTE

LLAMA = {"gated": True, "norm": "rms", "rotary": True, "bias": False, "tied": False, "kv_heads": 4}
FORMS = (2, 1), (2, 1), (4, 1), (8, 1), (2, 2), (2, 2), (2, 4), (4, 2), (1, 2)
"""(cp, ulysses) of sequences over ranks."""


def workload(rnd, context=False):
    """A small model; heads divide by 4, so that most products fit. Some have documents packed."""
    heads = rnd.choice((4, 8))
    seq = rnd.choice((8, 12, 16) if context else (8, 12))
    ends = sorted(rnd.sample(range(1, seq), rnd.choice((0, 0, 1, 2, 4))))
    return tv.GPT(
        documents=[end - start for start, end in zip((0, *ends), (*ends, seq))],
        layers=rnd.choice((4, 6)),
        heads=heads,
        hidden=heads * rnd.choice((4, 6)),
        seq=seq,
        batch=16,
        vocab=32,
        **(LLAMA if rnd.random() < 0.3 else {}),
    )


def tensor(rnd, ranks):
    """A factor that cuts blocks over so many ranks, None for whole blocks."""
    if ranks == 1:
        return None
    meshes = [(d, ranks // d) for d in range(1, ranks + 1) if ranks % d == 0]
    grids = [(x, y, ranks // (x * y)) for x, y in meshes_of(ranks)]
    x, y, z = rnd.choice(grids)
    kept = {"keep": rnd.random() < 0.5, "gather": rnd.choice(("weight", "block"))}
    overlap = tuple(o for o in ("oar", "ors", "oag") if rnd.random() < 0.6)
    return rnd.choice(
        (
            tv.Megatron(tp=ranks, sp=rnd.random() < 0.5),
            tv.Megatron(tp=ranks, chunks=rnd.choice((1, 2))),
            tv.ATP(
                mesh=rnd.choice(meshes),
                order=rnd.choice(("column", "row")),
                attention="A1",
                norm=rnd.choice(("L1", "L2")),
                sp=rnd.random() < 0.5,
            ),
            tv.ATP(mesh=rnd.choice(meshes), chunks=2, chunking=rnd.choice(("batch", "tokens"))),
            tv.AxoNN(x=x, y=y, z=z, overlap=overlap, **kept),
            tv.T3(tp=ranks, gather=rnd.choice(("after", "consumer"))),
        )
    )


def meshes_of(ranks):
    """(x, y) that leave a whole number of ranks for z."""
    sizes = [n for n in (1, 2, 4, 8) if ranks % n == 0]
    return [(x, y) for x in sizes for y in sizes if ranks % (x * y) == 0]


def pipeline(rnd, pp):
    """A pipeline of so many ranks."""
    return tv.Pipeline(
        pp=pp,
        microbatches=rnd.choice((4, 8)),
        schedule=rnd.choice(tuple(SCHEDULES)),
        recompute=rnd.choice((*RECOMPUTE, "stage_aware")),
        layout=rnd.choice(("even", "balanced")),
    )


def latents(rnd):
    """Latent attention, with queries of the stream or from a latent."""
    sizes = {"kv_lora": 12, "rope_dim": 4, "rotary": True, "kv_heads": None, "head_dim": 6}
    return sizes | {"q_lora": rnd.choice((None, 10)), "v_dim": rnd.choice((None, 5, 10))}


def mixture(rnd, w, cp):
    """The workload with experts, whose router chooses, or not."""
    return replace(
        w,
        batch=32,
        experts=rnd.choice((4, 8)),
        top_k=rnd.choice((1, 2)),
        moe_ffn=rnd.choice((None, 24)),
        shared_experts=rnd.choice((0, 0, 1)),
        router=rnd.choice(("softmax", "sigmoid")),
        capacity=rnd.choice((None, None, 0.75, 1.5)) if cp == 1 else None,
        aux_loss=rnd.choice((0.0, 0.1)),
        routing=rnd.choice((None, None, tv.Routing(rnd.choice((0.0, 1.5)), rnd.randrange(9)))),
        bias_balance=rnd.choice((0.0, 0.0, 0.02)),
        **rnd.choice(({}, {}, {"groups": 2, "top_groups": 1, "routed_scale": 2.5})),
        **(latents(rnd) if rnd.random() < 0.3 else {}),
        first_dense=rnd.choice((0, 0, 1)),
        moe_every=rnd.choice((1, 1, 2)),
    )


def draw(rnd, context=False, experts=False):
    """(product, workload) that fit, on 2 to 8 ranks. context : with sequences over ranks. experts :
    with a mixture of experts, and sequences over ranks in one of three."""
    while True:
        context = rnd.random() < 0.3 if experts else context
        w, sizes = workload(rnd, context), [rnd.choice((1, 2, 4)) for _ in range(3)]
        ranks, pp, dp = sizes
        cp, ulysses = rnd.choice(FORMS) if context else (1, 1)
        ep = rnd.choice((1, 2, 2, 4, 8)) if experts else 1
        if not 2 <= cp * ulysses * ep * prod(sizes) <= 8:
            continue
        if experts:
            w = mixture(rnd, w, cp * ulysses)
            inner = tv.Megatron(tp=ranks, sp=rnd.random() < 0.5) if ranks > 1 else None
        else:
            inner = tensor(rnd, ranks)
        factors = [inner] if inner else []
        kinds = [kind for kind in KINDS if ulysses == 1 or kind != "ulysses"]
        factors += [tv.Context(cp, rnd.choice(kinds), ulysses)] if context else []
        overlap = rnd.choice(("halves", "shared" if w.shared_experts else "none"))
        etp, dispatch = rnd.choice((1, ranks)), rnd.choice(("all_to_all", "all_gather"))
        plan = {"etp": etp, "dispatch": dispatch, "overlap": overlap}
        factors += [tv.Experts(ep=ep, **plan)] if ep > 1 else []
        zero = rnd.choice((0, 1, 2, 3))
        states = {"zero": zero, "shard": 2 * (dp == 4 and zero > 0 and rnd.random() < 0.5)}
        if pp > 1:
            factors += [pipeline(rnd, pp)]
            factors += [tv.DataParallel(dp=dp, **states)] if dp > 1 else []
        else:
            knobs = {"accumulation": rnd.choice((1, 2)), "recompute": rnd.choice(RECOMPUTE)}
            if zero == 3 and dp == 4 and not states["shard"]:
                knobs["reshard_after_forward"] = rnd.choice((True, False, 2))
            factors += [tv.DataParallel(dp=dp, bucket_mb=0.002, **states, **knobs)]
        rnd.shuffle(factors)
        try:
            made = prod(factors[1:], start=factors[0])
            if rnd.random() < 0.5 and len(made.axes) > 1:
                made = made.with_order("-".join(rnd.choice([*permutations(made.axes)])))
        except ValueError:  # what excludes each other: a test of its own
            continue
        if fits(made, w):
            return made, w


def drawn(count, **kinds):
    """So many draws in two lists, few ranks first: those that have a knob's value, or a trait of
    the model, that none before has, and the others, which have them in other company."""
    draws = [draw(random.Random(seed), **kinds) for seed in range(count)]
    seen, first, others = set(), [], []
    for strategy, w in sorted(draws, key=lambda case: case[0].world_size):
        has = {*re.findall(r"\w+\(|\w+=(?:'\w*'|[\w.]+)", repr(strategy))}
        has |= {field.name for field in fields(w) if getattr(w, field.name) != field.default}
        (others if has <= seen else first).append((strategy, w))
        seen |= has
    return first, others
