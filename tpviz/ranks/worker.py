"""What runs inside a rank: join the group, then run the functions that the caller sends.

The fork server imports this module once, so everything a rank needs is imported here and shared
by all ranks. Importing it must not start threads nor touch a GPU: both are lost in a fork.
"""

import faulthandler
import gc
import multiprocessing.popen_forkserver  # noqa: F401
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle
import numpy  # noqa: F401
import torch
import torch.distributed as dist
from torch._dynamo import trace_rules

import tpviz.ranks.recorder  # noqa: F401

from . import (
    adapters,
    backend,
    board,
    forkserver_hooks,
    offsets,
    output,
    places,
    sources,
    state,
    store,
)
from .devices import choose_device
from .frames import frames_of
from .processes import set_environment

if TYPE_CHECKING:
    from .worker_bootstrap import RankSpec

# The caller's time-out ends a job; the group's own must never come first.
_NEVER = timedelta(days=7)
_PROGRESS_EVERY = 0.05

rank = None
_pipe = None
_store: Any = None
_owner = 0  # the process that may speak: not what a job forks off
_job = 0  # number of the current job; every message bears it
_pipe_lock = threading.Lock()
_last_progress = 0.0

# What ranks do first, done here once: each would write to, and so copy, pages that all share.
trace_rules.clear_lru_cache()
state.State()
gc.collect()
forkserver_hooks.give_back_memory()
gc.freeze()  # a collection in a rank would otherwise write to, and so copy, every shared page
forkserver_hooks.loaded()


def main(spec: "RankSpec", pipe: Connection, preloaded: bool) -> NoReturn:
    """Serve one rank until the caller hangs up; ``spec`` is a `worker_bootstrap.RankSpec`."""
    global rank, _pipe, _owner, _job
    rank, _pipe, _owner = spec.rank, pipe, os.getpid()
    board.attach(os.path.join(spec.folder, "board"), rank)
    places.attach(os.path.join(spec.folder, "places"), rank, spec.world.world_size)
    _show_stack_on_signal(os.path.join(spec.folder, f"stack-{rank}"))
    try:
        info = _join(spec)
    except BaseException as error:
        refused = isinstance(error, ValueError)
        _send("refused", str(error)) if refused else _send("error", _failure(error))
        _await_the_end()  # an exit now could be seen before the message
    _leave_groups()
    clean, loaded = state.State(), sources.Loaded()
    _send("ready", {**info, "preloaded": preloaded})
    while True:
        try:
            if head := pipe.recv_bytes():
                (_job, compare, *context), payload = pickle.loads(head), pipe.recv_bytes()
        except (EOFError, OSError):
            _await_the_end()
        if not head:  # all ranks have finished
            _leave_groups()
            continue
        _apply(context)
        clean.remember_surroundings()
        begun = time()
        _send(*_run(payload, compare if spec.world.address else None))
        # after the answer: nobody waits for this one
        _send("tidy", (clean.restore(), _used(), loaded.since(begun)))


def _join(spec):
    global _store
    torch.set_num_threads(1)
    world = spec.world
    local = spec.rank - world.local.start, len(world.local)
    device, inner = choose_device(world.device, *local)
    if world.backend == "nccl" and inner != "nccl":
        where = f" of {world.host}" if world.host else ""
        raise ValueError(
            f"backend='nccl' needs a GPU per rank: {torch.cuda.device_count()} GPUs{where}, "
            f"{len(world.local)} ranks; use backend='gloo' or leave it out"
        )
    # update() with names, as `_pipe.send`, looks at many classes, and so copies their pages.
    os.environ |= {"TPVIZ_INNER": inner, "TPVIZ_DEVICE": device}
    _store = _meeting(spec)
    _store.set_timeout(_NEVER)
    dist.init_process_group(
        world.backend, store=_store, rank=spec.rank, world_size=world.world_size, timeout=_NEVER
    )
    if world.address:
        offsets.meet()
    return {"device": device, "inner": inner}


def _meeting(spec):
    """Where ranks meet: a file of their host, or a store for those who have the world's key."""
    world = spec.world
    if world.address is None:
        return dist.FileStore(os.path.join(spec.folder, "rendezvous"), world.world_size)  # pyright: ignore[reportPrivateImportUsage]
    return store.joined(world.address, world.key, world.peers)


def _run(payload, compare):
    board.write("importing the function's modules")
    try:
        function, args, kwargs = cloudpickle.loads(payload)
        if compare is not None:  # several hosts
            offsets.begin(0.0 if compare else None)
        board.write("running user code")
        result = function(*args, **kwargs)
        try:
            answer = "done", cloudpickle.dumps(result)
        except Exception as error:
            kind = type(result).__name__
            raise TypeError(f"the result, of type {kind}, cannot be sent back: {error}") from None
    except BaseException as error:
        answer = "error", _failure(error)
    if answer[0] == "done":  # else the board goes on showing what it was that failed
        board.finish()
        if not places.alone():
            places.unseen()
    output.flush_output()
    return answer


def _leave_groups():
    # Not at the end of their job: only when all ranks have finished with them. Each holds several
    # threads, which look for messages 100 times a second, and sockets.
    adapters.forget_axes()
    places.forget()
    world = dist.group.WORLD
    groups = [group for group in dist.distributed_c10d._world.pg_map if group is not world]
    while groups:
        dist.destroy_process_group(groups.pop())
    adapters.forget_meshes()
    gc.collect()  # a program that has ended may hold its groups in a circle
    gc.freeze()  # memory is found through the collector: what C++ still holds is not the next job's


def _apply(context):
    env, path, cwd = context
    set_environment(env)
    with suppress(RuntimeError, ValueError):  # not of a word that torch does not know
        dist.set_debug_level_from_env()  # pyright: ignore[reportPrivateImportUsage]
    backend.heed_debug_level()
    if path is not None:
        sys.path[:] = path
    if cwd is not None:
        os.chdir(cwd)


def _failure(error):
    # The first frame is our own call of the function.
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception:  # a faulty __str__ must not hide the failure itself
        message = "<its __str__ raises>"
    kind = type(error).__name__
    return {"type": kind, "message": message, "traceback": text, "frames": frames_of(error)}


def _used():
    """How many groups this rank has made, and its collectives of the world, as `Pool` compares;
    None for the latter where the group does not count them."""
    return dist.distributed_c10d._world.group_count, getattr(dist.group.WORLD, "counts", None)


def _send(kind, content):
    if os.getpid() != _owner:  # a child that the job forked has come to its end
        os._exit(0)
    with _pipe_lock:
        try:
            _pipe.send_bytes(pickle.dumps((kind, _job, content)))  # pyright: ignore[reportOptionalMemberAccess]
        except OSError:
            _await_the_end()


def ask(what: Any) -> Any:
    """What the caller answers to a question of this rank, as `debugger.answer` does."""
    output.flush_output()
    _send("ask", what)
    try:
        return pickle.loads(_pipe.recv_bytes())  # pyright: ignore[reportOptionalMemberAccess]
    except (EOFError, OSError):
        _await_the_end()


def _await_the_end() -> NoReturn:
    """Wait to be ended: by the caller or, if it is gone, by the thread that cleans up."""
    while True:
        signal.pause()


def report(done: int, total: int, text: str) -> None:
    """Pass progress to the caller; rank 0 speaks for all, at most 20 times a second."""
    global _last_progress
    now = monotonic()
    if rank == 0 and (done >= total or now - _last_progress >= _PROGRESS_EVERY):
        _last_progress = now
        _send("progress", (done, total, text))


def _show_stack_on_signal(path):
    # Works while the interpreter is stuck inside a C++ wait: the signal handler itself writes.
    global _stack_file
    _stack_file = open(path, "w")
    faulthandler.register(signal.SIGUSR1, file=_stack_file, all_threads=False)
