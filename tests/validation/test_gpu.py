"""Predictions beside what one H200 measured (docs/gpu)."""

import importlib
import json
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def drawing():
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("draw_gpu")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def tables(drawing):
    return json.loads(drawing.FILE.read_text())


def test_the_page_is_of_this_code(drawing, tables):
    assert (DOCS / "gpu/README.md").read_text() == drawing.page(tables)


def test_a_calibrated_gpu_foresees_the_steps_it_was_not_fitted_to(drawing, tables):
    assert sum(map(drawing.is_fitted, tables["steps"])) == 5 < len(tables["steps"]) / 2
    errors = drawing.summary(tables)
    assert errors["calibrated"][0] < 5 and errors["calibrated"][1] < 15
    assert errors["profile FSDP"][2] < 10  # frozen before; where launches do not decide
    for baseline in ("constant share", "ideal device"):
        assert errors[baseline][2] > 25


def test_hosts_that_bound_every_step_leave_the_rates_as_measured(drawing, tables):
    from tpviz.clusters import GPUS
    from tpviz.verbs.calibrate import device_of_steps

    steps = {drawing.workload(r): r["seconds"] for r in tables["steps"][:4]}
    gpu = GPUS[drawing.GPU]
    device = device_of_steps(gpu, steps, ahead=True)
    assert device.flops == gpu.flops and device.gemm_efficiency == 1
    assert device.launch == pytest.approx(53e-6, rel=0.05)
