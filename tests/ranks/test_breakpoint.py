"""``tv.breakpoint``: a rank at a debugger's prompt, and what ranks had in their variables when they
raised."""

import builtins
import time

import pytest
import torch
import torch.distributed as dist

import tpviz as tv


@pytest.fixture
def typed(monkeypatch):
    """Lines that are typed at prompts, one after another; prompts and all that is said there come
    back. A number is waited for, in seconds, before the next line; an error is raised."""

    class Typing:
        lines, prompts = [], []

    def read(prompt=""):
        Typing.prompts.append(prompt)
        while isinstance(line := Typing.lines.pop(0), float):
            time.sleep(line)
        if isinstance(line, type):
            raise line
        return line

    Typing.lines, Typing.prompts = [], []
    monkeypatch.setattr(builtins, "input", read)
    return Typing


def _stops(rank):
    secret = dist.get_rank() * 10
    tv.breakpoint(rank=rank)
    x = torch.ones(2) * secret
    dist.all_reduce(x)
    return x.tolist()


@pytest.mark.slow
def test_one_rank_stops_others_wait_longer_than_the_time_out_and_all_go_on(typed, capsys):
    typed.lines += ["p secret", 6.0, "secret = 7", "n", "p x", "c"]
    assert tv.launch(_stops, 1, world_size=3, timeout=5) == [[27.0, 27.0]] * 3
    assert typed.prompts == ["(rank 1) "] * 5
    said = capsys.readouterr().out.splitlines()
    assert "10" in said and "tensor([7., 7.])" in said
    assert "-> x = torch.ones(2) * secret" in said


def test_ranks_that_stop_together_take_turns(typed):
    typed.lines += ["n", "c"] * 3
    assert tv.launch(_stops, None, world_size=3) == [[30.0, 30.0]] * 3
    of = [prompt for prompt in typed.prompts]
    assert sorted(of) == sorted(f"(rank {rank}) " for rank in range(3) for _ in range(2))
    assert all(of[i] == of[i + 1] for i in (0, 2, 4)), "a rank keeps the prompt that it has"


@pytest.mark.parametrize("how", ["q", KeyboardInterrupt])
def test_quit_and_an_interrupt_end_the_job_and_the_next_one_is_as_ever(typed, how):
    typed.lines += ["p 1", how]
    with pytest.raises(KeyboardInterrupt, match="the ranks were stopped"):
        tv.launch(_stops, 1, world_size=2)
    typed.lines += ["c"]
    assert tv.launch(_stops, 0, world_size=2) == [[10.0, 10.0]] * 2


@pytest.mark.parametrize("why", [EOFError, OSError])
def test_with_nobody_to_type_it_is_said(typed, why):
    typed.lines += [why]
    with pytest.raises(RuntimeError, match=r"rank 1 has come to tpviz\.breakpoint, and there is"):
        tv.launch(_stops, 1, world_size=2)
    assert tv.launch(int, world_size=2) == [0, 0]


def test_the_debugger_shows_cells_whose_text_only_the_caller_has(typed, capsys):
    import linecache

    text = "def cell(tv):\n    mine = 3\n    tv.breakpoint()\n    return mine  # of a cell\n"
    linecache.cache["<ipython-input-9>"] = len(text), None, text.splitlines(True), ""
    names = {}
    exec(compile(text, "<ipython-input-9>", "exec"), names)
    typed.lines += ["l 1, 2", "c"]
    assert tv.launch(names["cell"], tv, world_size=1) == [3]
    said = capsys.readouterr().out
    assert "-> return mine  # of a cell" in said and "mine = 3" in said


def test_a_deadlock_after_a_breakpoint_is_still_told(typed):
    def work():
        tv.breakpoint(rank=0)
        if dist.get_rank():
            dist.barrier()

    typed.lines += ["c"]
    with pytest.raises(tv.RankTimeoutError, match="rank 0 finished and never joins barrier"):
        tv.launch(work, world_size=2)


# -- variables -------------------------------------------------------------------------------------
class _Bad:
    def __repr__(self):
        raise ValueError("none")


def _fails():
    big, few = torch.zeros(1000, 1000), torch.arange(3)
    bad, long = _Bad(), {"of many": list(range(10_000)), "text": "x" * 10_000}

    def inner(y):
        z = y + dist.get_rank()
        if z > y:
            raise KeyError("wrong")
        dist.barrier()
        return big, few, bad, long

    inner(5)


def check_variables(error, ranks):
    """What `_fails` has on ranks other than 0."""
    assert sorted(error.ranks) == ranks
    for rank in ranks:
        failure = error.ranks[rank]
        names = failure.variables
        assert names["y"] == "5" and names["z"] == str(5 + rank)
        assert names["big"] == "Tensor (1000, 1000) float32"
        assert names["few"] == "Tensor (3,) int64 [0, 1, 2]"
        assert names["bad"] == "<_Bad, whose repr raises ValueError>"
        assert names["long"].startswith("{'of many': [0, 1, ") and len(names["long"]) < 310
        assert [frame.function for frame in failure.frames] == ["_fails", "inner"]
        assert failure.frames[0].variables["bad"] == names["bad"]
        assert f"    z = {5 + rank}\n" in str(failure) and str(failure).endswith(
            "KeyError: 'wrong'"
        )
    assert "1000, 1000" not in str(error), "on request, not in the message"


def test_variables_of_each_rank_that_raised():
    with pytest.raises(tv.RankError) as caught:
        tv.launch(_fails, world_size=3)
    check_variables(caught.value, [1, 2])


def test_of_a_rank_that_died_there_are_none():
    with pytest.raises(tv.RankError) as caught:
        tv.launch(lambda: __import__("os")._exit(3), world_size=1)
    assert caught.value.ranks == {}


def test_many_frames_and_variables_are_cut():
    def deep(n):
        if n:
            return deep(n - 1)
        return exec("\n".join([*(f"v{i} = {i}" for i in range(60)), "1 / 0"]), {})

    with pytest.raises(tv.RankError) as caught:
        tv.launch(deep, 40, world_size=1)
    frames = caught.value.ranks[0].frames
    assert len(frames) == 12
    assert len(frames[-1].variables) == 41 and frames[-1].variables["..."] == "20 more"
