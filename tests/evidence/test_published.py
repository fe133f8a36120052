"""Published rows: typed, with their source, filtered; and what is read of rows from elsewhere."""

import csv
import gzip

import pandas
import pytest

import tpviz as tv
from tpviz.evidence.published.rows import FILES, PublishedRow, read, row_of, table

CELLS = {
    "source": "mine", "model": "gpt-x", "layers": "4", "hidden": "64", "heads": "4", "seq": "32",
    "vocab": "128", "global_batch": "16", "micro_batch": "2", "dtype": "bf16", "n_gpus": "8",
    "gpu": "A100-SXM-80GB", "tp": "2", "pp": "2", "measured": "", "unit": "", "notes": "",
}  # fmt: skip


def test_every_row_is_typed_and_names_its_source():
    for kind in FILES[:3]:
        rows = tv.published(kind=kind)
        assert len(rows) == len(table(kind)) > 200
        assert all(isinstance(r, PublishedRow) and r.kind == kind for r in rows)
        assert all(r.source and r.url and r.part in ("fit", "test") for r in rows)
    assert all(row["source"] and row["url"] for row in table("collective"))


def test_a_row_as_in_its_source():
    """Table 1 of SC21: 39.1 billion parameters, 138 TFLOP/s on 512 GPUs, batch 1536."""
    (row,) = tv.published(model="gpt-39B")
    sizes = row.layers, row.hidden, row.heads, row.global_batch, row.tp, row.pp, row.n_gpus
    assert sizes == (48, 8192, 64, 1536, 8, 2, 512)
    assert (row.dp, row.microbatches, row.recompute) == (32, 12, "full")
    flops = 96 * 1536 * 2048 * 48 * 8192**2 * (1 + 2048 / (6 * 8192) + 51200 / (16 * 48 * 8192))
    assert row.step == pytest.approx(flops / (138e12 * 512), rel=0.005)


def test_rows_are_found_by_names_of_models():
    """Those of the planner and of tv.models: rows of such sizes, whatever the source calls them."""
    for name in ("llama3 8B", "llama3-8b", "Llama3 8B"):
        found = tv.published(model=name)
        assert {r.model for r in found} == {"llama3-8B", "llama3.1-8B"}
        assert {(r.layers, r.hidden, r.ffn) for r in found} == {(32, 4096, 14336)}
    (bloom,) = tv.published(model="bloom 176B")
    assert (bloom.model, bloom.heads) == ("gpt-176B", 112)
    with pytest.raises(ValueError, match="model='llama2 70B': near ones are llama2-70B"):
        tv.published(
            model="llama2 70B"
        )  # rows of that name state no sizes; llama3's have another vocabulary


@pytest.mark.parametrize(
    "notes, model, number",
    [
        ("kv_heads=8 (8b, 70b)", "llama3-8b", 8),
        ("x; kv_heads=8 (8b, 70b) or 16 (405b); y", "llama3-405B", 16),
        ("kv_heads=8 (8b, 70b) or 16 (405b)", "llama3-70b-12layers", 8),
        ("kv_heads=8 (8b, 70b)", "llama3-405b", None),
        ("kv_heads=8 (8b)", "llama-18b", None),
        ("kv_heads=8, fused", "any", 8),
        ("kv_heads=as published", "any", None),
    ],
)
def test_key_heads_are_read_from_the_notes(notes, model, number):
    assert row_of(CELLS | {"notes": notes, "model": model, "kv_heads": ""}).kv_heads == number


def test_rows_are_found_by_name_and_number():
    found = tv.published(model="llama-1B", gpus=64, source="ultrascale_playbook_h100")
    assert {(r.model, r.n_gpus) for r in found} == {("llama-1B", 64)}
    assert {r.gpu for r in tv.published(gpus="B200")} == {"B200-SXM-180GB", "GB200"}
    assert "14.5 s" in repr(tv.published(model="gpt-39B"))
    assert "<td>gpt-39B</td>" in tv.published(model="gpt-39B")._repr_html_()


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"model": "gpt-5"}, "model='gpt-5': near ones are gpt3-5B, .*; there are .*gpt-39B"),
        ({"gpus": 7}, "no measured row has n_gpus=7: there are 1, 2, 4, 8"),
        ({"gpus": "T4"}, "no measured row has gpu='T4': there are A100-SXM-40GB"),
        ({"kind": "guessed"}, "kind='guessed' is not possible: use 'measured', 'failed' or"),
    ],
)
def test_unknown_names_get_those_that_exist(asked, message):
    with pytest.raises(ValueError, match=message):
        tv.published(**asked)


@pytest.mark.parametrize(
    "cells, seconds",
    [
        ({"measured": "2.5", "unit": "s/step"}, 2.5),
        ({"measured": "2.5", "unit": "ms/step"}, 0.0025),
        ({"measured": "16", "unit": "tokens/s/gpu"}, 16 * 32 / (16 * 8)),
        ({"measured": "16", "unit": "tokens/s/gpu", "notes": "step_s=3.0; rounded"}, 3.0),
        ({"measured": "40", "unit": "MFU %"}, None),
        ({}, None),
    ],
)
def test_seconds_of_a_step(cells, seconds):
    assert row_of(CELLS | cells).step == seconds


def test_cells_that_are_not_stated():
    row = row_of(CELLS | {"zero": "", "sp": None, "vpp": float("nan"), "cp": ""})
    assert (row.zero, row.sp, row.vpp, row.cp, row.dp) == (None, None, 1, 1, 2)
    assert row_of(CELLS | {"notes": "kv_heads=8, gated MLP"}).kv_heads == 8
    both = "kv_heads=8 (70b) or 16 (405b), gated MLP"
    assert [row_of(CELLS | {"notes": both, "model": m}).kv_heads for m in ("a-405b", "b-7")] == [
        16, None,
    ]  # fmt: skip
    assert row_of(CELLS | {"notes": "mem_gb=50.2; x"}).peak == 50.2e9
    assert row_of(CELLS | {"notes": "real_alloc_gib=2"}).peak == 2 << 31 >> 1 << 1 >> 1


@pytest.mark.parametrize(
    "cells, message",
    [
        ({"layers": "many"}, "layers='many' is no number of 0 or more"),
        ({"tp": "-2"}, "tp='-2' is no number"),
        ({"seq": "inf"}, "seq='inf' is no number"),
        ({"n_gpus": "8.5"}, "n_gpus='8.5' is no whole number"),
        ({"notes": "step_s=fast"}, "step_s='fast' is no number"),
        ({"unit": "s/step", "measured": "nan"}, "measured='nan' is no number"),
    ],
)
def test_nonsense_is_named(cells, message):
    with pytest.raises(ValueError, match=message):
        row_of(CELLS | cells)


def test_a_memory_row():
    cells = {k: v for k, v in CELLS.items() if k != "model"}
    more = {"case": "gpt/x", "platform": "dev_dgx_h100", "vpp_layers_per_chunk": "1"}
    row = row_of(cells | more | {"dist_opt": "1", "mem_max_allocated_bytes": "12345"})
    assert (row.kind, row.model, row.gpu) == ("memory", "gpt/x", "dev_dgx_h100")
    assert (row.peak, row.zero, row.vpp) == (12345, 1, 2)


def test_files_plain_packed_and_data_frames(tmp_path):
    plain, packed = tmp_path / "rows.csv", tmp_path / "rows.csv.gz"
    with plain.open("w", newline="") as file:
        out = csv.DictWriter(file, CELLS)
        out.writeheader()
        out.writerow(CELLS)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    expected = row_of(CELLS)
    for given in (plain, str(packed), [CELLS], pandas.DataFrame([CELLS]), pandas.read_csv(plain)):
        assert [row_of(cells) for cells in read(given)] == [expected]


def test_files_that_are_none(tmp_path):
    path = tmp_path / "rows.csv"
    for data in (b"\xff\xfe\x00", gzip.compress(b"a,b")[:-9], b"\x1f\x8b none"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"rows.csv is no CSV file, plain or gzip'd"):
            read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "no rows"),
        (3, "rows=3: give the path of a CSV file, or rows in a list"),
        (CELLS, "give the path of a CSV file, or rows in a list"),
        ([1], "row 1 is 1: give mappings"),
        ([CELLS, {"source": "x"}], "row 2 has no column layers, .*pp, model: it has source"),
    ],
)
def test_rows_that_are_none(rows, message):
    with pytest.raises(ValueError, match=message):
        read(rows)
