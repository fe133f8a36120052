"""Predictions beside what GPUs measured (docs/gpu)."""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

import tpviz as tv

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def drawing():
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("draw_gpu")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module", params=["H200-SXM-141GB", "H100-SXM-80GB"])
def tables(drawing, request):
    return drawing.load(request.param)


def test_the_page_is_of_this_code(drawing):
    assert (DOCS / "gpu/README.md").read_text() == drawing.page()
    assert (DOCS / "gpu" / drawing.PICTURE).read_text() == drawing.picture()


def test_a_calibrated_gpu_foresees_the_steps_it_was_not_fitted_to(drawing, tables):
    assert sum(map(drawing.is_fitted, tables["steps"])) == 5 < len(tables["steps"]) / 2
    errors = drawing.summary(tables)
    on_h200 = tables["gpu"].startswith("H200")
    assert errors["calibrated"][0] < 5 and errors["calibrated"][1] < (15 if on_h200 else 20)
    assert errors["profile FSDP"][2] < 10 or not on_h200  # frozen before
    for baseline in ("constant share", "ideal device"):
        assert errors[baseline][2] > 25


def test_hosts_that_bound_every_step_leave_the_rates_as_measured(drawing, tables):
    from tpviz.cluster.clusters import GPUS
    from tpviz.verbs.calibrate import device_of_steps

    steps = {drawing.workload(r): r["seconds"] for r in tables["steps"][:4]}
    gpu = GPUS[tables["gpu"]]
    device = device_of_steps(gpu, steps, ahead=True)
    assert device.flops == gpu.flops and device.gemm_efficiency == 1
    launch = 53e-6 if tables["gpu"].startswith("H200") else 50e-6
    assert device.launch == pytest.approx(launch, rel=0.05)


def test_ranks_that_share_a_gpu_are_foreseen_and_equal_one_process(drawing):
    content = json.loads((DOCS / "gpu" / drawing.RANKS).read_text())
    for n in (2, 4):
        for hidden in (512, 1024):
            errors = drawing.rank_errors(content, n, hidden)
            assert max(errors["predicted"], errors["simulated"]) < 20 < errors["ideal"]
    assert all(r["exact"] and r["error"] < 1e-10 for r in content["verified"])


def test_a_gpus_kineto_files_say_what_the_ledger_says(drawing):
    trace = tv.load_trace(DOCS / "gpu" / drawing.KINETO)
    assert trace.meta["device"] == "NVIDIA H200" and trace.meta["badge"] == "imported"
    workload = tv.GPT(2, 1024, 16, 512, batch=4, vocab=8192, dtype="bfloat16")
    expected = without_phases(tv.Megatron(tp=2).ledger(workload))
    for rank in (0, 1):
        assert without_phases(trace.ledger(rank=rank)) == expected
        kernels = trace.select(kind="compute", rank=rank)
        assert 1e-3 < float((kernels["end"] - kernels["start"]).sum()) < 2e-3


def without_phases(ledger: tv.Ledger) -> Counter[tuple[str, str, int]]:
    """Sums over phases: Kineto names no forward one."""
    sums = Counter()
    for axis, collective, _, *numbers in ledger:
        sums.update({(axis, collective, place): n for place, n in enumerate(numbers)})
    return sums
