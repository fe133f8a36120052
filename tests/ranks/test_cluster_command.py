"""``tpviz cluster``: on this machine for real, and what is refused; by SSH and MPI: tests/hosts."""

import os
import stat
import sys
import time
from pathlib import Path

import pytest

import tpviz as tv
from tpviz.__main__ import main
from tpviz.ranks import cluster_command, examine

ipyparallel = pytest.importorskip("ipyparallel")
pytestmark = pytest.mark.filterwarnings("ignore")  # of what ipyparallel imports


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    """An empty folder for clusters; the umask is as it was."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def mine(place):
    """Processes that were started for a cluster whose files are there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(place).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in found if line]


@pytest.mark.slow
def test_a_cluster_of_this_machine_starts_serves_and_leaves_nothing(state, capsys):
    assert main(["cluster", "start", "--local", "2", "--name", "here"]) == 0
    said = capsys.readouterr().out
    try:
        node = os.uname().nodename
        assert f"{node}-0" in said and f"{node}-1" in said and "tv.use('here')" in said
        for file in state.rglob("security/*.json"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert main(["cluster", "start", "--local", "1", "--name", "here"]) == 2
        assert "was started already" in capsys.readouterr().err
        tv.use("here")
        where = tv.launch(lambda: os.environ["TPVIZ_HOST"], world_size=2)
        assert where == [f"{node}-0", f"{node}-1"]
        tv.use("here")  # the same client
        tv.use(None)
        assert main(["cluster", "status"]) == 0
        assert f"{node}-1" in capsys.readouterr().out
    finally:
        assert main(["cluster", "stop", "--name", "here"]) == 0
    until = time.monotonic() + 10
    while (left := mine(state)) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == []
    assert [*state.rglob("*")] == []


def test_engines_that_do_not_start_are_said_and_leave_nothing(state, capsys):
    words = ["start", "--slurm", "2", "--ip", "127.0.0.1", "--options=--partition=none"]
    os.environ["PATH"], before = "/nowhere", os.environ["PATH"]
    try:
        assert main(["cluster", *words]) == 2
    finally:
        os.environ["PATH"] = before
    assert "engines did not start: FileNotFoundError" in capsys.readouterr().err
    assert [*state.rglob("*")] == [] and mine(state) == []


@pytest.mark.parametrize(
    "words, said",
    [
        (["start", "--local", "0"], "0 engines: use 1 or more"),
        (["start", "--hosts", "nowhere.invalid"], "no way to nowhere.invalid"),
        (["start", "--local", "1", "--name", "../x"], "'../x' is no name for a cluster"),
        (["stop"], "no cluster tpviz was started here; there are: none"),
    ],
)
def test_what_cannot_be_is_refused(words, said, capsys):
    assert main(["cluster", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_clusters_status_says_how_to_start_one(capsys):
    assert main(["cluster", "status"]) == 1
    assert "tpviz cluster start" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no cluster lost was started here; there are: none"):
        tv.use("lost")


def test_without_the_extra_it_is_said_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    assert main(["cluster", "start", "--local", "1"]) == 2
    assert "pip install 'tpviz[cluster]'" in capsys.readouterr().err


def test_of_several_addresses_one_must_be_chosen(monkeypatch):
    several = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "eth1": "10.1.0.1"}
    monkeypatch.setattr(examine, "interfaces", lambda: several)
    with pytest.raises(ValueError, match=r"--ip: 10\.0\.0\.1, 10\.1\.0\.1"):
        cluster_command.start("tpviz", "mpi", 2)
