"""Work of a launch that was interrupted, left to a thread, touches no ranks of the next one.

Each test makes the moment certain that random interrupts meet once in hundreds.
"""

import os
import signal
import sys
import threading
import time

import pytest

import tpviz as tv
from tpviz.ranks.pool import Pool


@pytest.fixture
def module():
    """`tpviz.ranks.launch`, with two idle ranks; the name in the package is the function's."""
    tv.launch(os.getpid, world_size=2)
    yield sys.modules["tpviz.ranks.launch"]
    tv.shutdown()


def test_a_start_interrupted_while_it_waits_ends_no_ranks_of_the_next_launch(module):
    """Two interrupts within a moment: the first one's start goes on and has just made the ranks
    that the third launch takes, when the second one's start gets its turn."""
    pool = module._pools[2, "tpviz", None, None]
    module._changing.acquire()  # by the first start
    pool.idle = False  # it has not yet put them there
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        tv.launch(os.getpid, world_size=2)
    pool.idle = True
    threading.Timer(0.1, module._changing.release).start()
    assert tv.launch(time.sleep, 0.5, world_size=2) == [None, None]
    assert module._pools[2, "tpviz", None, None] is pool, (
        "they are kept: nothing was wrong with them"
    )


def test_an_end_left_behind_by_a_job_that_was_done_ends_no_ranks_of_the_next_launch(
    module, monkeypatch
):
    """An interrupt just after the ranks' answers, and one more before their end has begun."""
    run, left = Pool.run, []

    def interrupted(*args):
        run(*args)
        raise KeyboardInterrupt

    def leave(work):
        left.append(work)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "run", interrupted)
        patch.setattr(module, "shielded", leave)
        with pytest.raises(KeyboardInterrupt):
            tv.launch(os.getpid, world_size=2)
    assert len(tv.launch(os.getpid, world_size=2)) == 2
    monkeypatch.setattr(Pool, "run", lambda *args: (left.pop()(), run(*args))[1])
    assert tv.launch(os.getpid, world_size=2)[1:] and not left


def test_ranks_left_running_are_ended_by_the_next_launch_of_any_size(module, monkeypatch):
    """An interrupt of a running job, and one more before a thread ends its ranks."""

    def leave(work):
        raise KeyboardInterrupt

    pids = tv.launch(os.getpid, world_size=2)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with monkeypatch.context() as patch:
        patch.setattr(module, "shielded", leave)
        with pytest.raises(KeyboardInterrupt):
            tv.launch(time.sleep, 1000, world_size=2)
    tv.launch(os.getpid, world_size=1)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize("end", [tv.shutdown, tv.restart])
def test_an_interrupted_end_of_all_ranks_is_not_forgotten(module, monkeypatch, end):
    """The next launch has new ranks, and the end, come late, does not touch them."""
    left, old = [], tv.launch(os.getpid, world_size=2)

    def leave(work):
        left.append(work)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "shielded", leave)
        with pytest.raises(KeyboardInterrupt):
            end()
    new = tv.launch(os.getpid, world_size=2)
    assert not set(new) & set(old)
    left.pop()()
    assert tv.launch(os.getpid, world_size=2) == new


def test_ranks_ended_late_are_not_those_of_the_next_launch(module, monkeypatch):
    """An interrupt while failed ranks are being ended: a thread does that, maybe after the next
    launch has started new ones."""
    left = []

    def leave(work):
        left.append(work)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "shielded", leave)
        with pytest.raises(KeyboardInterrupt):
            tv.launch(lambda: 1 / 0, world_size=2)
    new = tv.launch(os.getpid, world_size=2)
    left.pop()()
    assert tv.launch(os.getpid, world_size=2) == new and not left


def test_ranks_that_are_about_to_end_take_no_launch(module, monkeypatch):
    """An interrupted `shutdown` goes on in a thread; a launch meanwhile must start new ranks."""
    kill, left = Pool.kill, []
    for ranks in (1, 2):
        tv.launch(os.getpid, world_size=ranks)
    monkeypatch.setattr(Pool, "kill", lambda pool: (left.append([*module._pools]), kill(pool)))
    tv.shutdown()
    assert len(left) >= 2 and not any(left)
