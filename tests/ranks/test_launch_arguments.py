"""Arguments of `tpviz.launch` that cannot work, and what is said about them."""

import os
import threading
from multiprocessing import util
from multiprocessing.connection import Listener
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import tpviz as tv
from tpviz.ranks import launch as launching
from tpviz.ranks import server

BAD = [
    ({"world_size": 0}, "world_size=0 is too small: the least that works is 1"),
    ({"world_size": 17}, "17 is more than the 16 ranks allowed here.*TPVIZ_MAX_RANKS=17"),
    ({"world_size": 2.0}, r"world_size must be a whole number, not 2\.0"),
    ({"world_size": True}, "world_size must be a whole number, not True"),
    ({"timeout": 0}, "timeout=0; use a number of seconds above 0, or None"),
    ({"timeout": "5"}, "timeout='5'"),
    ({"timeout": float("nan")}, "timeout=nan"),
    ({"device": "tpu"}, "device='tpu' is not possible: use 'cpu', 'cuda' or None"),
    ({"backend": "mpi"}, "backend='mpi' is not possible: use 'tpviz', 'gloo', 'nccl' or None"),
    ({"progress": 3}, "progress=3; use None, False or a function"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        tv.launch(os.getpid, **arguments)


def test_numbers_of_numpy_are_numbers():
    assert len(tv.launch(os.getpid, world_size=np.int64(2), timeout=np.float32(60))) == 2


def test_the_first_argument_must_be_a_function():
    with pytest.raises(ValueError, match="launch needs a function to run on the ranks, not 4"):
        tv.launch(4)


def test_the_most_ranks_are_set_by_the_environment(monkeypatch):
    monkeypatch.setenv("TPVIZ_MAX_RANKS", "3")
    with pytest.raises(ValueError, match="4 is more than the 3 ranks allowed here; use 1 to 3"):
        tv.launch(os.getpid)
    monkeypatch.setenv("TPVIZ_MAX_RANKS", "many")
    with pytest.raises(ValueError, match="TPVIZ_MAX_RANKS='many' is not a number of ranks"):
        tv.launch(os.getpid)
    monkeypatch.delenv("TPVIZ_MAX_RANKS")
    assert launching.max_ranks() == 16


def test_a_folder_in_which_a_socket_has_too_long_a_path(monkeypatch):
    """At the limit multiprocessing's socket opens; one byte more is refused by us and by it."""
    with TemporaryDirectory() as folder:
        longest = os.path.join(folder, "x" * (107 - len(folder) - len("//listener-12345678")))
        for path in (longest, longest + "x"):
            os.mkdir(path)
            monkeypatch.setattr(util, "get_temp_dir", lambda path=path: path)
            if path == longest:
                server._check_socket(path)
                Listener(family="AF_UNIX").close()
        with pytest.raises(
            RuntimeError,
            match=r"xx, whose path would have 108 bytes; at most 107 "
            r"are possible\. Set TMPDIR .* shorter by 1 or",
        ):
            server.ensure()
        with pytest.raises(OSError, match="too long"):
            Listener(family="AF_UNIX")


@pytest.mark.parametrize(("name", "hint"), [("device", "cuda"), ("backend", "nccl")])
def test_a_gpu_that_is_not_there(name, hint):
    import torch

    if torch.cuda.device_count():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match=f"{name}='{hint}'.*use"):
        tv.launch(os.getpid, world_size=2, **{name: hint})
    assert len(tv.launch(os.getpid, world_size=2)) == 2


_lock = threading.Lock()


def uses_a_lock():
    return _lock.locked()


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    cell = {"__name__": "__main__", "lock": lock}
    exec("def helper():\n    lock.acquire()\ndef work():\n    helper()\n", cell)
    cases = [
        (
            (cell["work"],),
            {},
            r"work cannot be sent.*variable 'lock', of type _thread.lock, used "
            r"by helper\(\), cannot be pickled",
        ),
        ((lambda: lock,), {}, "variable 'lock', of type _thread.lock"),
        ((print, 1, lock), {}, "positional argument 1, of type _thread.lock"),
        ((print,), {"end": lock}, "argument 'end', of type _thread.lock"),
        ((lock.acquire,), {}, "the function itself, of type builtin_function_or_method"),
    ]
    for args, kwargs, message in cases:
        with pytest.raises(ValueError, match=message):
            tv.launch(*args, world_size=2, **kwargs)
    assert tv.launch(uses_a_lock, world_size=1) == [False], "importable functions go by name"
