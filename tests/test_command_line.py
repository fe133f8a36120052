"""The command line: each command, what it prints, and what it says of bad input."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tpviz as tv
from tpviz.__main__ import main

GPT = ["--gpt", "layers=1, hidden=16, heads=4, seq=8, batch=4, vocab=32"]


def test_run_prints_the_ledger_and_writes_files(tmp_path, capsys):
    files = tmp_path / "t.json", tmp_path / "t.html"
    code = main(["run", "Megatron(tp=2) * DataParallel(dp=2)", *GPT, "--steps", "1",
                 "--chrome", str(files[0]), "--html", str(files[1])])  # fmt: skip
    trace, said = tv.load_trace(files[0]), capsys.readouterr().out
    assert code == 0
    assert str(trace.ledger()) in said
    assert trace.ranks == [0, 1, 2, 3]
    assert "<svg" in files[1].read_text()


@pytest.mark.parametrize("command", ["predict", "simulate"])
def test_predict_and_simulate_say_how_long_a_step_takes(command, capsys):
    assert main([command, "ATP(mesh=(2, 2))", *GPT, "--cluster", "nvlink_pairs(pairs=2)"]) == 0
    said = capsys.readouterr().out
    assert "ms" in said or "µs" in said


def test_search_names_the_best(capsys):
    assert main(["search", "Megatron", "DataParallel", *GPT, "--cluster", "nvswitch(4)"]) == 0
    assert "(dp=4" in capsys.readouterr().out


def test_lab_copies_the_notebooks_and_keeps_those_worked_on(tmp_path, capsys):
    folder = tmp_path / "course"
    assert main(["lab", str(folder), "--no-open"]) == 0
    (folder / "00_start.ipynb").write_text("mine")
    assert main(["lab", str(folder), "--no-open"]) == 0
    assert (folder / "00_start.ipynb").read_text() == "mine"
    ours = (Path(__file__).parents[1] / "notebooks").glob("*.ipynb")
    assert {file.name for file in folder.glob("*.ipynb")} == {file.name for file in ours}
    assert "kept" in capsys.readouterr().out
    glossary = (folder / "glossary.md").read_text()
    links = re.findall(r"^\[\w+\]: (.+)$", glossary, re.M)
    assert links and all((folder / link).is_file() for link in links)
    for file in folder.glob("*.ipynb"):
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)", file.read_text())
        assert [link for link in links if not (folder / link).is_file()] == [], file.name


def test_lab_names_a_page_that_is_not_installed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tpviz.course.lab.PAGES", ("glossary.md", "gone.md"))
    assert main(["lab", str(tmp_path / "course"), "--no-open"]) == 2
    said = capsys.readouterr().err
    assert "gone.md is neither in" in said and "glossary" not in said
    assert not (tmp_path / "course").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "Megatrom(tp=2)"], "'Megatrom' is no strategy; there are ATP, AxoNN, Context"),
        (["run", "Megatron(tq=2)"], "Megatron has no knob 'tq'"),
        (["run", "Megatron(tp=3)"], "heads=4 does not split evenly over tp=3"),
        (["run", "Megatron(tp=2"], "is not written as in Python"),
        (["run", "Megatron(tp=__import__('os').getpid())"], "use plain values"),
        (["run", "Megatron(tp=2)", "--steps", "0"], "--steps 0: use 1 or more"),
        (["predict", "T3(tp=2)", "--cluster", "moon(2)"], "'moon' is no cluster; there are"),
        (["predict", "T3(tp=2)", "--gpt", "hidden=6"], "hidden=6"),
        (["search", "Megatrom"], "Megatrom"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_it_starts_as_a_module():
    done = subprocess.run([sys.executable, "-m", "tpviz", "--help"], capture_output=True, text=True)
    for command in ("run", "predict", "simulate", "search", "lab", "demo", "doctor"):
        assert f"\n    {command} " in done.stdout
