"""The public leaderboard: right and wrong entries, scores that are equal anywhere, its page."""

import ast
import re
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

import tpviz as tv
from tpviz.__main__ import main
from tpviz.core.checks import divisors
from tpviz.course.contest import entry, grade, messages, scored, task, verified
from tpviz.course.contest.grading import recent
from tpviz.verbs import written

DOCS = Path(__file__).parents[2] / "docs"
TASKS = DOCS / "leaderboard"
FOLDERS = sorted(path.parent for path in TASKS.glob("*/task.toml"))
SUM = task(TASKS / "all-reduce")
HEAD = 'author = "Ada"\ndate = 2026-11-30\nhow = "By hand."\n'
TWO = ["0>1:1+ 1>0:0+", "0>1:0 1>0:1"]  # an all-reduce of two ranks in two chunks


def put(folder, text, name="mine"):
    """An entry's file in a folder of tasks; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def sum_of(steps, chunks=8, head=HEAD):
    return f"{head}chunks = {chunks}\nsteps = {steps!r}\n"


def copied(tmp_path, name, **changes):
    """A folder of tasks with one, some of its lines changed, and none of its entries."""
    text = (TASKS / name / "task.toml").read_text()
    for key, value in changes.items():
        text = "\n".join(
            f"{key} = {value!r}" if line.startswith(f"{key} =") else line
            for line in text.splitlines()
        )
    put(tmp_path / name, text, "task")
    return tmp_path


@pytest.mark.slow
def test_a_score_is_the_same_in_another_process_on_real_ranks():
    path = TASKS / "all-reduce/two-levels.toml"
    graded = grade(path, TASKS)
    assert graded.why == ""
    assert graded.score == scored(entry(path, SUM), SUM) < 0.0025
    assert str(graded) == f"{path}: 2.42 ms (0.00241819 s)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (sum_of(["0>1:0"]), "at the end chunk 0 of rank 0 lacks the part of rank 1, 2, 3, 4, 5, 6"),
        (sum_of(["0>8:0"]), "step 1: 0>8:0 names rank 8, and there are 8: 0 to 7"),
        (sum_of(["0>1:0", "0>1:8+"]), "step 2: 0>1:8+ names chunk 8, and there are 8: 0 to 7"),
        (sum_of(["2>2:0"]), "step 1: 2>2:0 goes from rank 2 to itself"),
        (sum_of(["0->1"]), "step 1: '0->1' is no message: write sender>receiver:chunk"),
        (sum_of([5]), "a step must be a text, not 5"),
        (sum_of([]), "steps must be a list of 1 to 256 texts"),
        (sum_of(["0>1:0"], 10**6), "chunks=1000000 is too large: the most that works is 256"),
        (sum_of(["0>1:0 " * 50_000]), "mine.toml has 300074 bytes: at most 262144 work"),
        (sum_of(["0>1:0 " * 20_000]), "20000 messages up to step 1: at most 16384 work"),
        (HEAD + "steps = []\n", "lacks chunks"),
        (sum_of(TWO) + "score = 0.0\n", "'score' is no key here; there are author, baseline, chu"),
        (sum_of(TWO, head=HEAD.replace("Ada", "<b>")), "author='<b>': use up to 64 letters"),
        (sum_of(TWO, head=HEAD.replace("By", "`")), "how must be one line of 1 to 200 characters"),
        (sum_of(TWO, head=HEAD.replace("2026-11-30", "'now'")), "write a date without quotes"),
        ("steps = [", "mine.toml is no TOML: "),
    ],
)
def test_a_wrong_entry_is_told_what_is_wrong(text, message, tmp_path):
    path = put(tmp_path, text)
    with pytest.raises(ValueError, match=re.escape(message)):
        scored(entry(path, SUM), SUM)


@pytest.mark.parametrize(
    ("name", "plan", "message"),
    [
        (
            "fastest-step",
            "Megatron(tp=4) * DataParallel(dp=4)",
            "ranks of the plan=16 is too lar",
        ),
        ("fastest-step", "DataParallel(dp=8, zero=3)", "needs 146 GB on every rank and the device"),
        (
            "fastest-step",
            "Megatron(tp=3)",
            "kv_heads=8 does not split evenly over tp=3: use tp=2 or 4",
        ),
        ("fastest-step", "GPT(layers=1)", "'GPT' is no strategy; there are ATP"),
        ("fastest-step", "Custom({'dp': 8}, print)", "'Custom' is no strategy; there are ATP"),
        ("fastest-step", "__import__('os')", "'__import__' is no strategy; there are ATP"),
        ("fastest-step", "DiLoCo(workers=2) * Megatron(tp=4)", "is another training"),
        ("fastest-step", "Megatron(tp=4).__class__", "'Megatron(tp=4).__class__' is no strategy"),
        ("least-memory", "Megatron(tp=8, sp=True, recompute='full')", "its step takes"),
    ],
)
def test_a_plan_that_does_not_count_is_told_why(name, plan, message, tmp_path):
    of = task(TASKS / name)
    path = put(tmp_path, f"{HEAD}plan = {plan!r}\n")
    with pytest.raises(ValueError, match=re.escape(message)):
        scored(entry(path, of), of)


def test_numbers_in_few_bits_are_not_verified(tmp_path):
    of = replace(task(TASKS / "fastest-step"), small="layers=1, hidden=32, heads=4, seq=8, batch=4")
    one = entry(put(tmp_path, f"{HEAD}plan = \"DataParallel(dp=2, gradients='int8')\"\n"), of)
    assert "NOT EQUAL" in verified(one, of)


@pytest.mark.slow
def test_a_grade_that_ends_early_leaves_no_ranks(tmp_path):
    """Where real ranks have started: the time-out is tried at several times."""
    path = TASKS / "fastest-step/search.toml"
    before = {*processes()}
    for seconds in (6.0, 9.0):
        tasks = copied(tmp_path, "fastest-step", seconds=seconds)
        assert grade(path, tasks).why == f"it was not graded within {seconds:g} s"
        until = time.monotonic() + 20
        while (left := {*processes()} - before) and time.monotonic() < until:
            time.sleep(0.2)
        assert not left


def processes():
    """Numbers of the processes whose command line names the leaderboard's grader or a rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if b"contest" in words or b"tpviz.ranks" in words:
                yield folder.name


def test_a_pull_request_cannot_change_how_it_is_graded(tmp_path):
    """Entries are taken from its commit, and nothing else."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(DOCS.parent / ".ci/leaderboard", tmp_path / ".ci/leaderboard")
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    shutil.copytree(TASKS / "all-reduce", tmp_path / "docs/leaderboard/all-reduce")
    (tmp_path / ".gitignore").write_text(".venv\n")

    def git(*words):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "base")
    base = git("rev-parse", "HEAD")
    today = HEAD.replace("2026-11-30", f"{date.today()}")
    folder = tmp_path / "docs/leaderboard/all-reduce"
    put(folder, sum_of(TWO, 2, today))
    put(folder, (folder / "task.toml").read_text().replace("ranks = 8", "ranks = 2"), "task")
    put(folder, sum_of(TWO, 2, today), "two\n::error::lines")
    put(tmp_path / "tpviz", "raise SystemExit('mine')", "grader")
    git("add", "-A")
    git("commit", "-qm", "an entry, and another task")
    head = git("rev-parse", "HEAD")
    git("checkout", "-q", base)
    done = subprocess.run(
        [tmp_path / ".ci/leaderboard", base, head], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    first, odd, second = done.stdout.splitlines()
    assert odd.startswith(
        "no score: name $'docs/leaderboard/all-reduce/two\\n::error::lines.toml' with"
    )
    assert first.endswith("all-reduce/task.toml is a task: it is reviewed, not graded")
    assert "mine.toml: no score: at the end chunk 0 of rank 0 lacks the part of rank 2" in second


def test_a_part_that_is_added_twice_is_named():
    steps = messages.read([TWO[0], "0>1:1+", TWO[1]], 2, 2)
    assert messages.wrong(steps, 2, 2) == (
        "at the end chunk 1 of rank 0 has that of rank 0 more than once (2 of 4 chunks are wrong)"
    )


def test_ranks_find_what_messages_do_wrong(tmp_path):
    """Beside the symbolic check: gradients, and bytes by rank."""
    of = task(copied(tmp_path, "all-reduce", ranks=2) / "all-reduce")
    right = entry(put(tmp_path / "all-reduce", sum_of(TWO, 2)), of)
    assert verified(right, of) == ""
    half = messages.ByMessages(messages.read(TWO[:1], 2, 2), 2, 2)
    assert not (found := tv.verify(half, written.workload(of.small))).ok
    assert found.errors["gradient embed.position.weight"] > 1e-3
    assert found.ledger_diff == ()


def test_no_messages_are_faster_than_their_ports():
    """What the simulation could be cheated by: many at once over one NIC."""
    rng, cluster = np.random.default_rng(5), SUM.place[1]
    model = written.workload("layers=1, hidden=512, heads=8, seq=8, batch=8, vocab=64")
    nic = cluster.levels[-1].group
    for _ in range(6):
        chunks = int(rng.choice(divisors(24)))
        steps = tuple(
            tuple(
                messages.Parcel(int(a), int(b), int(rng.integers(chunks)), bool(rng.integers(2)))
                for a, b in rng.integers(8, size=(int(rng.integers(1, 30)), 2))
                if a != b
            )
            for _ in range(int(rng.integers(1, 5)))
        )
        sent = tv.simulate(messages.ByMessages(steps, 8, chunks), model, cluster)
        times = [(e.start, e.end) for e in sent.select(kind="comm")]
        if not times:
            continue
        size = -(-model.num_parameters // chunks) * 4
        out = [sum(p.sender // 4 == n != p.receiver // 4 for s in steps for p in s) for n in (0, 1)]
        taken = max(end for _, end in times) - min(start for start, _ in times)
        assert taken >= max(out) * size / nic


def test_what_takes_too_long_has_no_score(tmp_path, monkeypatch):
    tasks, endless = copied(tmp_path, "all-reduce", seconds=0.2), tmp_path / "endless"
    endless.write_text("#!/bin/sh\nexec sleep 60\n")
    endless.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(endless))
    path = put(tasks / "all-reduce", sum_of(TWO, 2))
    assert grade(path, tasks).why == "it was not graded within 0.2 s"


def test_the_same_entry_counts_once(tmp_path, capsys):
    text = (TASKS / "all-reduce/ring.toml").read_text()
    path = put(tmp_path / "all-reduce", text, "my-own")
    assert main(["leaderboard", str(path), "--tasks", str(TASKS)]) == 1
    assert capsys.readouterr().out == (
        f"{path}: no score: it is the same as ring of 2026-11-30, by tpviz\n"
    )


def test_a_date_is_that_of_the_pull_request(tmp_path):
    one = entry(put(tmp_path, sum_of(TWO)), SUM)
    assert recent(one, date(2026, 12, 2)) == ""
    assert "not between 2027-02-01 and 2027-03-04" in recent(one, date(2027, 3, 3))


def test_a_folder_without_a_task_is_named(tmp_path):
    graded = grade(put(tmp_path / "fastest", sum_of(TWO)), TASKS)
    assert graded.why.startswith("'fastest' is no task; there are all-reduce")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_page_is_of_the_files(folder, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from draw_leaderboard import HEAD, part

    text = (DOCS / "leaderboard.md").read_text()
    assert part(folder) in text
    assert text.startswith(HEAD)
    assert text.count("\n## ") == len(FOLDERS)


def test_the_guide_shows_entries_that_work(capsys, tmp_path):
    text = (DOCS / "how-to/enter-the-leaderboard.md").read_text()
    two, plan = re.findall(r"```toml\n(.*?)```", text, re.S)
    one = entry(put(tmp_path, two), replace(SUM, ranks=2))
    assert messages.wrong(one.strategy.steps, 2, 2) == ""
    of = task(TASKS / "least-memory")
    assert scored(entry(put(tmp_path, plan), of), of) < 30e9
    [ring] = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(ring, {})
    printed = f"[{capsys.readouterr().out}]"
    written_out = (TASKS / "all-reduce/ring.toml").read_text()
    assert ast.literal_eval(printed) == tomllib.loads(written_out)["steps"]
