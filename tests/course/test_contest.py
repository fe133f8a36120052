"""The public leaderboard: right and wrong entries, scores that are equal anywhere, its page."""

import re
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
    assert str(graded) == f"{path}: 2.42 ms"


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


def test_what_takes_too_long_has_no_score(tmp_path):
    tasks = copied(tmp_path, "all-reduce", seconds=0.2)
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


def test_the_page_is_of_the_files(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from draw_leaderboard import page

    assert (DOCS / "leaderboard.md").read_text() == page(TASKS)
