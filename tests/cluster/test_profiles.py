"""Coefficients: each has a source or rows it was fitted on, and they make clusters slower."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.cluster.profiles import as_run_by, coefficients, fitted, frameworks
from tpviz.evidence.published.fit import FITTED_ON
from tpviz.evidence.published.rows import table

BOX = tv.clusters.dgx("H100-SXM-80GB", 16)
COMMON = {"sustained", "memory_efficiency"}
"""Fitted numbers that every profile has, unless it has its own of the first."""


def entries(data, path=()):
    """(path, entry) of every number or word in the file."""
    for name, value in data.items():
        if isinstance(value, dict) and {"value", "fitted"} & set(value):
            yield (*path, name), value
        elif isinstance(value, dict):
            yield from entries(value, (*path, name))


def test_every_number_has_a_source_or_was_fitted():
    known = coefficients()
    assert known["fitted_on"] == FITTED_ON  # what `tpviz.evidence.published.fit` does
    used = set()
    for path, entry in entries(known):
        if "fitted" in entry:
            assert entry["fitted"] in known["fitted"], path
            used.add(entry["fitted"])
        elif path[0] == "fitted":
            assert entry["what"] and entry["value"] > 0, path
        else:
            assert len(entry["source"]) > 6, path
    assert set(fitted()) - used == COMMON


def test_at_most_eight_numbers_together():
    """Of a GPU, a fabric and a framework; where a profile has its own, not the common one."""
    known = coefficients()
    for profile in known["frameworks"].values():
        for fabric in known["fabrics"].values():
            for gpu in known["gemm_efficiency"]:
                own = {**profile, "sustained": profile.get("sustained", {}).get(gpu) or {}}
                used = {e["fitted"] for _, e in entries({**own, **fabric}) if "fitted" in e}
                assert len(COMMON | used) <= 8


@pytest.mark.parametrize("framework", frameworks())
def test_every_framework_is_slower_than_the_nominal_cluster(framework):
    w = tv.GPT(layers=4, hidden=1024, heads=16, seq=1024, batch=32, vocab=32000, dtype="bfloat16")
    real = as_run_by(BOX, framework)
    assert tv.Cluster.from_json(real.to_json()) == real and framework in real.source
    for strategy in (
        tv.Merak(pp=2, tp=8, microbatches=4),
        tv.Megatron(tp=8) * tv.DataParallel(dp=2),
    ):
        nominal, there = (tv.predict(strategy, w, c).step_time for c in (BOX, real))
        assert there > 1.1 * nominal


def test_fitted_numbers_can_be_given():
    numbers = {**fitted(), "memory_efficiency": 0.123, "aws_share": 0.5}
    made = as_run_by(BOX, "nanotron", "Ultra-Scale", numbers)
    assert made.device.memory_efficiency == 0.123
    assert made.levels[1].p2p == 0.5 * BOX.levels[1].p2p


@pytest.mark.parametrize(
    "args, message",
    [
        ((BOX, "JAX"), "framework='JAX' is not possible: use 'Megatron-LM'"),
        ((BOX, "FSDP", "carrier pigeon"), "fabric='carrier pigeon' is not possible"),
        ((tv.clusters.torus(),), "nothing is known of what the device 'TPU v3 chip' reaches"),
    ],
)
def test_what_is_not_known_is_refused(args, message):
    with pytest.raises(ValueError, match=message):
        as_run_by(*args)


def test_rings_of_eight_gpus_are_as_measured():
    """Large collectives by the published rows: rings over 8 GPUs of a node."""
    rows = [r for r in table("collective") if r["notes"].startswith("ring, nccl-tests")]
    assert len(rows) == 3
    real = as_run_by(tv.clusters.dgx("H200-SXM-141GB", 8))
    link = real.link(range(8), 8)
    for row in rows:
        size, ranks = float(row["bytes_or_shape"]), 8
        sent = (1 + (row["what"] == "all_reduce")) * (ranks - 1) / ranks * size
        bus = sent / real.collective_time(row["what"], size, ranks, link)
        assert bus == pytest.approx(1e9 * float(row["value"]), rel=0.05)


def test_gemms_are_as_measured():
    """The published peaks of bfloat16 GEMMs by shape, of the GPUs that `clusters` has, as the best
    that a device reaches: nothing else sustained."""
    spec = {"A100 SXM": "A100-SXM-80GB", "H100 SXM": "H100-SXM-80GB", "B200 SXM": "B200-SXM-180GB"}
    numbers = {n: 1.0 if n.startswith("sustained") else v for n, v in fitted().items()}
    found = 0
    for row in table("collective"):
        if "bf16" not in row["what"] or row["gpu"] not in spec:
            continue
        m, n, k = map(int, row["bytes_or_shape"].split("x"))
        device = as_run_by(tv.clusters.dgx(spec[row["gpu"]], 8), numbers=numbers).device
        device = replace(device, pointwise="free", launch=0.0)
        flops, traffic = 2 * m * n * k, 2 * (m * k + k * n + m * n)
        reached = flops / device.time(flops, traffic, "bfloat16") / 1e12
        assert reached == pytest.approx(float(row["value"]), rel=0.06)
        found += 1
    assert found == 3
