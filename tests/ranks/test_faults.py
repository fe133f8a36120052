"""What goes wrong with ranks: each fault is named, its ranks are gone, and new ones work."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tpviz as tv
from tpviz.ranks import server
from tpviz.ranks.launch import RankError, RankTimeoutError
from tpviz.ranks.rank_errors import clash, with_source

EVERYONE = "ranks 0,1,2,3"


@pytest.fixture
def gone():
    """After the test: the ranks it began with have gone with their files, and new ones work."""
    tv.shutdown()
    pids = tv.launch(os.getpid)
    (folder,) = Path(server.home()).glob("ranks-*")
    yield pids
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert not folder.exists()
    assert len(tv.launch(os.getpid)) == 4


def test_a_rank_that_raises(gone, capsys):
    def work():
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2))
        print("before")
        if dist.get_rank() == 2:
            raise KeyError("no such weight")
        dist.all_reduce(torch.ones(8))

    with pytest.raises(RankError, match="rank 2 raised KeyError: 'no such weight'") as caught:
        tv.launch(work)
    error = caught.value
    assert error.rank == 2
    assert "in work\n    raise KeyError(" in error.traceback
    assert error.traceback in str(error)
    assert sorted(error.others) == [0, 1, 3]
    for state in error.others.values():
        assert state.startswith("waiting ")
        assert f"s in all_reduce #1 on axis world ({EVERYONE}), 32 bytes, at test_faults" in state
    assert capsys.readouterr().out.count("] before\n") == 4


def test_all_ranks_raise_alike(gone):
    with pytest.raises(RankError, match="rank 0 raised ZeroDivisionError") as caught:
        tv.launch(lambda: 1 / 0)
    expected = "The other ranks:\n  ranks 1, 2, 3: raised ZeroDivisionError: division by zero"
    assert str(caught.value).endswith(expected)


def test_a_rank_that_exits(gone):
    def work():
        import torch.distributed as dist

        if dist.get_rank() == 1:
            os._exit(3)
        dist.barrier()

    with pytest.raises(RankError, match="rank 1 ended by itself with exit code 3") as caught:
        tv.launch(work)
    assert all("in barrier #0" in state for state in caught.value.others.values())


def test_sys_exit_is_an_error_not_a_lost_rank(gone):
    import sys

    with pytest.raises(RankError, match="rank 0 raised SystemExit: 3"):
        tv.launch(sys.exit, 3)


def test_a_collective_that_one_rank_never_joins(gone):
    def work():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            time.sleep(1000)
        if dist.get_rank() == 2:
            while True:  # never lets go of the interpreter for long
                pass
        dist.all_reduce(torch.ones(1024))

    begun = time.monotonic()
    with pytest.raises(RankTimeoutError, match=r"within the time-out of 0\.5 s") as caught:
        tv.launch(work, timeout=0.5)
    assert time.monotonic() - begun < 20, "the parent's clock governs, not the group's"
    assert isinstance(caught.value, TimeoutError)
    states = caught.value.states
    for rank in (0, 3):
        assert f"in all_reduce #0 on axis world ({EVERYONE}), 4096 bytes" in states[rank]
        assert "at test_faults.py:" in states[rank]
    for rank in (1, 2):
        assert states[rank].startswith("no collective, running user code for ")
        assert "in work" in states[rank]
        assert states[rank] in str(caught.value)


def test_a_killed_rank(gone):
    def work():
        import torch.distributed as dist

        if dist.get_rank() == 3:
            if os.fork() == 0:
                time.sleep(1000)  # holds on to the rank's pipes
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    begun = time.monotonic()
    with pytest.raises(RankError, match=r"rank 3 was killed by SIGKILL \(signal 9;") as caught:
        tv.launch(work, timeout=100)
    assert time.monotonic() - begun < 50, "seen at once, long before the time-out"
    assert caught.value.rank == 3
    assert all("in barrier #0" in state for state in caught.value.others.values())


def of_other_sizes(kind):
    """In a rank: a collective or a message that is twice as large on rank 1, or on its sender."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    if kind == "all_reduce":
        dist.all_reduce(torch.ones(100 * (1 + rank)))
    elif rank:
        dist.recv(torch.ones(100), 0)
    else:
        dist.send(torch.ones(200), 1)


@pytest.mark.parametrize(
    "kind, sizes",
    [
        ("all_reduce", "400 bytes on rank 0 and 800 bytes on rank 1"),
        ("message", "800 bytes on rank 0 and 400 bytes on rank 1"),
    ],
)
def test_sizes_that_clash_are_named_first_when_gloo_aborts(kind, sizes):
    head = rf"^{kind} #0 on axis world \(ranks 0,1\) has {sizes}: rank \d was killed by SIGABRT"
    with pytest.raises(RankError, match=head):
        tv.launch(of_other_sizes, kind, world_size=2)


def test_sizes_that_may_differ_are_no_cause():
    text = "left {} #0 on axis world (ranks 0,1), {} bytes"
    assert clash({rank: text.format("all_to_all", rank) for rank in (0, 1)}) == ""
    same = {0: text.format("all_reduce", 8), 1: "running user code", 2: text.format("broadcast", 4)}
    assert clash(same) == ""
    assert clash(same | {3: text.format("broadcast", 8)}).endswith(
        "broadcast #0 on axis world (ranks 0,1) has 4 bytes on rank 2 and 8 bytes on rank 3"
    )


def test_a_rank_whose_connections_were_closed_is_not_the_cause():
    """The others fail at once, and may be heard of before the one that closed its groups."""

    def work():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            try:
                raise KeyError("no such weight")
            finally:
                dist.destroy_process_group()
                time.sleep(0.1)
        dist.all_reduce(torch.ones(2))

    with pytest.raises(RankError, match=r"^rank 1 raised KeyError: 'no such weight'") as caught:
        tv.launch(work, world_size=2)
    assert "raised RuntimeError" in caught.value.others[0]


def test_ranks_that_died_between_calls_are_replaced_with_a_note(gone, capsys):
    os.kill(gone[1], signal.SIGTERM)
    while Path(f"/proc/{gone[1]}").exists():
        time.sleep(0.01)
    assert not set(tv.launch(os.getpid)) & set(gone)
    assert "rank 1 was killed by SIGTERM (signal 15): starting new" in capsys.readouterr().out


def test_an_interrupt_sent_to_a_rank_is_ignored():
    pids = tv.launch(os.getpid)
    os.kill(pids[2], signal.SIGINT)
    assert tv.launch(os.getpid) == pids


def test_an_exception_that_cannot_be_printed():
    with pytest.raises(RankError, match="__str__ raises"):
        tv.launch(raise_unprintable, world_size=1)
    assert tv.launch(lambda: 1, world_size=1) == [1]


def raise_unprintable():
    class UnprintableError(Exception):
        def __str__(self):
            raise ValueError("no")

    raise UnprintableError


def test_a_function_that_closes_its_output(capsys):
    assert tv.launch(lambda: sys.stdout.close(), world_size=1) == [None]
    tv.launch(lambda: print("still here"), world_size=1)
    assert "still here" in capsys.readouterr().out


def test_output_is_cut_with_a_word_after_a_megabyte(capsys):
    def printing(lines):
        for _ in range(lines):
            print("x" * 999)

    tv.launch(printing, 4000, world_size=1)
    said = capsys.readouterr().out
    assert len(said) < 1.1 * 2**20 and said.count("cut after 1 MB of output") == 1
    tv.launch(printing, 1, world_size=1)
    assert capsys.readouterr().out == f"[rank 0] {'x' * 999}\n", "the next job counts anew"


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_a_script_whose_standard_streams_are_closed(closed):
    code = (
        "import os, tpviz as tv; found = tv.launch(lambda: print('said') or 1, world_size=2); "
        "os.write(2, str(found).encode())"
    )
    command = f"{sys.executable} -c {shlex.quote(code)} {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == "[1, 1]"


@pytest.mark.parametrize("own_session", [False, True])
def test_what_a_rank_started_ends_with_it(gone, own_session):
    def work():
        child = subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
        raise RuntimeError(child.pid)

    with pytest.raises(RankError) as caught:
        tv.launch(work)
    pids = [int(line.split()[-1]) for line in str(caught.value).splitlines() if "raised" in line]
    assert len(pids) == 4
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or " Z " in stat.read_text()


def test_a_result_that_cannot_be_sent_back(gone):
    message = "the result, of type generator, cannot be sent back: cannot pickle 'generator'"
    with pytest.raises(RankError, match=f"rank 0 raised TypeError: {message}"):
        tv.launch(lambda: (_ for _ in ()))


def test_launch_inside_a_rank(gone):
    message = "launch was called inside rank 0 of another launch; ranks cannot start ranks"
    with pytest.raises(RankError, match=message):
        tv.launch(lambda: tv.launch(os.getpid))


def test_a_module_that_ranks_cannot_import(gone, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        (tmp_path / "gone_by_then.py").write_text("def work():\n    pass\n")
        import gone_by_then
    (tmp_path / "gone_by_then.py").unlink()
    with pytest.raises(RankError, match=r"No module named 'gone_by_then'(.|\n)*tpviz.restart\(\)"):
        tv.launch(gone_by_then.work)


def test_an_error_while_showing_progress(gone):
    with pytest.raises(ZeroDivisionError):
        tv.launch(lambda: tv.progress(1, 2), progress=lambda done, total, text: done / 0)


def test_an_interrupt_in_the_caller(gone):
    def work():
        import torch.distributed as dist

        if dist.get_rank() != 1:
            dist.barrier()
        time.sleep(1000)

    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as caught:
        tv.launch(work)
    said = str(caught.value)
    assert said.startswith("the ranks were stopped; ranks 0, 2, 3: waiting ")
    assert "in barrier #0 on axis world" in said
    assert "; rank 1: no collective, running user code" in said
    assert caught.value._render_traceback_() == [f"KeyboardInterrupt: {said}"], "IPython shows this"
    assert "\n" not in said and caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_fork_server_that_died_is_replaced():
    tv.shutdown()
    (parent,) = set(tv.launch(os.getppid))
    os.kill(parent, signal.SIGKILL)
    (other,) = set(tv.launch(os.getppid, world_size=2))
    assert other != parent


def test_source_lines_of_a_cell_are_added_to_a_ranks_traceback():
    import linecache

    linecache.cache["<cell>"] = (8, None, ["x = 1\n", "y = x / 0\n"], "<cell>")
    text = '  File "<cell>", line 2, in f\n  File "/a/b.py", line 1, in g\n    known()\nE: e'
    expected = text.replace("in f\n", "in f\n    y = x / 0\n")
    assert with_source(text) == expected
