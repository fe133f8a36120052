import pytest

from tpviz.__main__ import main
from tpviz.ranks import doctor as doctors
from tpviz.ranks.doctor import doctor, notes, report

FACTS = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "backends": ["gloo", "nccl"],
    "gpus": ["A", "A"],
    "cores": 64,
    "core_limit": 2.5,
    "memory": 64 << 30,
    "memory_limit": 2 << 30,
    "shm": 1 << 30,
    "max_ranks": 16,
    "browser": "/usr/bin/chromium",
    "launch": {
        "world_size": 4,
        "error": None,
        "cold_start": 2.0,
        "warm_start": 0.1,
        "device": "cuda",
        "inner": "gloo",
        "preloaded": True,
    },
}


def test_the_doctor_really_starts_ranks(capsys):
    facts = doctor()
    printed = capsys.readouterr().out
    tried = facts["launch"]
    assert tried["error"] is None
    assert tried["preloaded"], "tpviz is installed, so the fork server can load it"
    assert 0 < tried["warm_start"]
    assert 0 < tried["cold_start"]
    assert f"4 ranks on {tried['device']}, bytes moved by {tried['inner']}: started" in printed
    for note in facts["notes"]:
        assert f"* {note}\n" in printed


def test_the_exit_code_says_whether_ranks_run(capsys, monkeypatch):
    monkeypatch.setattr(doctors, "try_ranks", lambda n: {"world_size": n, "error": "no luck"})
    assert main(["doctor"]) == 1
    assert "4 ranks FAILED: no luck" in capsys.readouterr().out
    monkeypatch.setattr(doctors, "try_ranks", lambda n: FACTS["launch"])
    assert main(["doctor"]) == 0


def test_a_wrong_all_reduce_is_an_error(monkeypatch):
    monkeypatch.setattr(doctors, "_all_reduce", lambda: 3)
    assert "all-reduce of ones gave [3, 3]" in doctors.try_ranks(2)["error"]


def test_a_start_that_fails_is_reported(monkeypatch):
    def fail():
        raise OSError("no room")

    monkeypatch.setattr(doctors, "_all_reduce", fail)
    assert "rank 0 raised OSError: no room" in doctors.try_ranks(2)["error"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": []}, "NCCL is not possible here"),
        ({}, "NCCL for up to 2 ranks, a GPU each; beyond that ranks share GPUs"),
        ({"gpus": ["A"] * 16}, "NCCL, with a GPU for each of up to 16 ranks"),
        ({"backends": ["gloo"]}, "this torch has no NCCL"),
        ({}, "Fewer cores (2.5) than ranks"),
        ({}, "Little memory (2.0 GiB)"),
        ({"shm": 1 << 20}, "/dev/shm is small (1 MiB)"),
        ({"browser": None}, "No Chromium"),
        ({"launch": FACTS["launch"] | {"preloaded": False}}, "could not load torch in advance"),
    ],
)
def test_notes(change, words):
    assert words in " ".join(notes(FACTS | change))


def test_nothing_is_said_without_need():
    roomy = FACTS | {"core_limit": None, "memory_limit": None}
    said = notes(roomy)
    assert len(said) == 2
    assert said[0].startswith("NCCL")
    assert said[1].startswith("Several machines")


def test_limits_are_shown_beside_the_machine():
    text = "\n".join(report(FACTS | {"notes": []}))
    assert "64, of which 2.5 may be used" in text
    assert "64.0 GiB, of which 2.0 GiB may be used" in text
