"""Every value that an error offers works when it is taken."""

import random
import re
from dataclasses import fields, replace

import pytest

import tpviz as tv
from tpviz.core.checks import divides
from tpviz.schemes.advice import changed

CASES = 150


def some_strategy(pick):
    kind = pick("MATBX")
    if kind == "X":
        return tv.AxoNN(
            x=pick((1, 2, 3)),
            y=pick((1, 2)),
            z=pick((1, 2, 5)),
            data=pick((1, 3)),
            accumulation=pick((1, 2)),
        )
    if kind == "B":
        return tv.Merak(
            pp=pick((1, 2)), tp=pick((1, 3)), dp=pick((1, 2)), microbatches=pick((2, 3, 4))
        )
    inner = {
        "M": lambda: tv.Megatron(tp=pick((1, 2, 3)), chunks=pick((1, 2, 3))),
        "A": lambda: tv.ATP(
            mesh=(pick((1, 2, 3)), pick((1, 2))),
            chunks=pick((1, 3, 4)),
            chunking=pick(("batch", "tokens")),
            attention=pick(("A1", "A3")),
        ),
        "T": lambda: tv.T3(tp=pick((1, 2, 4, 6)), gather=pick(("after", "consumer"))),
    }[kind]()
    return pick((inner, inner * tv.DataParallel(dp=pick((2, 3, 4)), zero=pick((0, 3)))))


def some_workload(pick):
    heads = pick((2, 4, 5, 6, 12))
    return tv.GPT(
        layers=pick((2, 4)),
        heads=heads,
        hidden=heads * pick((2, 4, 5)),
        seq=pick((8, 9, 31)),
        batch=pick((1, 3, 4, 6, 8, 12, 30)),
        vocab=pick((32, 36, 250)),
    )


def offered(said):
    """[(name, value)] of "use tp=3 or 6, or heads=4 or 8"."""
    advice = said.partition(": use ")[2].partition(";")[0]
    return [
        (name.strip(), int(value))
        for name, values in re.findall(r"([a-z]\w*(?: ?\* ?\w+)*)=(\d+(?: or \d+)*)", advice)
        for value in values.split(" or ")
    ]


def taken(strategy, workload, name, value):
    """Every (strategy, workload) that one may take the advice for."""
    first = name.split("*")[0].strip()
    if first in {field.name for field in fields(workload)}:
        return [(strategy, make()) for make in changed(workload, name, value)]
    return [(make(), workload) for make in strategy.variants(name, value)]


def refusal(strategy, workload):
    try:
        strategy.check(workload)
    except ValueError as error:
        return str(error)
    return ""


def test_what_errors_offer_is_accepted():
    """Alone at fault, a size that clashes is put right by every value offered; where something else
    is wrong too, the next error is about that."""
    pick, tried, accepted = random.Random(5).choice, 0, 0
    for _ in range(CASES):
        strategy, workload = some_strategy(pick), some_workload(pick)
        said = refusal(strategy, workload)
        for name, value in offered(said):
            left = []
            for s, w in taken(strategy, workload, name, value):
                left.append(refusal(s, w))
            assert left, (strategy, workload, said, name, value)
            tried, accepted = tried + 1, accepted + ("" in left)
            assert "" in left or said.split("=")[0] not in {x.split("=")[0] for x in left}, (
                strategy,
                workload,
                said,
                left,
            )
    assert tried > CASES / 2 and accepted > tried / 2


def test_products_speak_of_the_whole_batch():
    pick = random.Random(7).choice
    for _ in range(100):
        dp, chunks, batch = pick((2, 3, 4)), pick((2, 3, 4)), pick(range(1, 40))
        inner = pick((tv.Megatron(tp=1, chunks=chunks), tv.ATP(mesh=(1, 2), chunks=chunks)))
        said = refusal(inner * tv.DataParallel(dp=dp), tv.GPT(batch=batch))
        assert bool(said) == bool(batch % (dp * chunks))
        sizes = [value for name, value in offered(said) if name == "batch"]
        assert all(size % (dp * chunks) == 0 for size in sizes) and (sizes or not said)
        assert said.startswith(f"batch={batch} ") or not said


def test_the_batch_of_a_product_in_words():
    strategy = tv.Megatron(tp=1, chunks=3) * tv.DataParallel(dp=2)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "batch=8 over dp=2 leaves 4, which does not split evenly over chunks=3: "
            "use chunks=2 or 4, or batch=6 or 12"
        ),
    ):
        strategy.check(tv.GPT(batch=8))


def test_knobs_beyond_their_bounds_are_not_offered():
    said = refusal(tv.Megatron(tp=60), tv.GPT(heads=130, hidden=130, vocab=130))
    assert "tp=65" not in said and "use tp=26" in said


def test_huge_sizes_are_answered_at_once():
    with pytest.raises(ValueError, match="does not split evenly over dp=3: use dp=2 or 4"):
        divides("batch", 10**40, "dp", 3)
    with pytest.raises(ValueError, match=f"use b=64, or a={10**40}"):
        divides("a", 64, "b", 10**40)
    with pytest.raises(ValueError, match="the most that works is 1000000000"):
        replace(tv.GPT(), batch=10**40)
    w = replace(tv.GPT(), batch=10**9)
    assert f"batch={10**9} over dp=2" in refusal(
        tv.Megatron(tp=2, chunks=3) * tv.DataParallel(dp=2), w
    )
