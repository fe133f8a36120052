"""What a job changes in its ranks is undone before the next one, or its ranks are replaced."""

import builtins
import contextlib
import copyreg
import datetime
import decimal
import faulthandler
import gc
import io
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
import tqdm
from torch.optim import optimizer

import tpviz as tv

ones = torch.ones(2, 2)


def forked():
    """A child of the rank that outlives the job."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)


def uneven_collectives():
    """Rank 0 begins an all-reduce that nobody else joins."""
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True)


def late():
    """Rank 1 does not come; rank 0 gives up, and its job ends well."""
    if dist.get_rank() == 0:
        with contextlib.suppress(RuntimeError):
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=0.1))


def unmatched_ring():
    """As many messages of each rank, none received."""
    dist.isend(torch.ones(1), 1 - dist.get_rank())


def uneven_groups():
    """Only rank 0 makes a group; torch's names of later groups would no longer agree."""
    if dist.get_rank() == 0:
        dist.distributed_c10d._world.group_count += 1


class Mode(torch.overrides.TorchFunctionMode):
    """A mode that is entered and never left."""


class Dispatch(torch.utils._python_dispatch.TorchDispatchMode):
    """The same, below autograd."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


# (what the job leaves behind, what shows it): the second gives in the next job what it gives in a
# new rank. Both run in ranks.
LEAKS = {
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.ones(1).dtype),
    "default device": (lambda: torch.set_default_device("meta"), lambda: torch.ones(1).device),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "inference mode": (
        lambda: torch.inference_mode().__enter__(),
        lambda: torch.ones(1).is_inference(),
    ),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: (ones @ ones).dtype),
    "autocast entered": (lambda: torch.autocast("cpu").__enter__(), lambda: (ones @ ones).dtype),
    "autocast's dtype": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
    ),
    "autocast's cache": (
        lambda: torch.set_autocast_cache_enabled(False),
        torch.is_autocast_cache_enabled,
    ),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "torch's threads": (lambda: torch.set_num_threads(7), torch.get_num_threads),
    "torch's seed": (lambda: torch.manual_seed(1), lambda: torch.initial_seed() == 1),
    "torch's random state": (
        lambda: torch.rand(5),
        lambda: (
            torch.rand(1)
            == torch.rand(1, generator=torch.Generator().manual_seed(torch.initial_seed()))
        ),
    ),
    "Python's seed": (lambda: random.seed(1), lambda: random.random() == random.Random(1).random()),
    "NumPy's seed": (
        lambda: np.random.seed(1),
        lambda: np.random.rand() == np.random.RandomState(1).rand(),
    ),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "anomaly mode": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "anomaly mode entered": (
        lambda: torch.autograd.detect_anomaly().__enter__(),
        torch.is_anomaly_enabled,
    ),
    "warning always": (lambda: torch.set_warn_always(True), torch.is_warn_always_enabled),
    "oneDNN off": (lambda: torch._C._set_mkldnn_enabled(False), torch._C._get_mkldnn_enabled),
    "flash attention off": (
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        torch.backends.cuda.flash_sdp_enabled,
    ),
    "denormals": (
        lambda: torch.set_flush_denormal(True),
        lambda: (torch.tensor([1e-323], dtype=torch.float64) / 1).item() > 0,
    ),
    "print options": (
        lambda: torch.set_printoptions(precision=1),
        lambda: str(torch.tensor(1 / 3)),
    ),
    "NumPy's print options": (
        lambda: np.set_printoptions(precision=1),
        lambda: str(np.array([1 / 3])),
    ),
    "NumPy's errors": (lambda: np.seterr(all="raise"), np.geterr),
    "module hooks": (
        lambda: torch.nn.modules.module.register_module_forward_hook(
            lambda module, args, out: out * 0
        ),
        lambda: torch.nn.Identity()(ones).sum().item(),
    ),
    "optimizer hooks": (
        lambda: optimizer.register_optimizer_step_post_hook(print),
        lambda: len(optimizer._global_optimizer_post_hooks),
    ),
    "saved tensors": (
        lambda: torch.autograd.graph.save_on_cpu().__enter__(),
        lambda: torch._C._autograd._top_saved_tensors_default_hooks(True) is None,
    ),
    "function mode": (lambda: Mode().__enter__(), torch._C._len_torch_function_stack),
    "dispatch mode": (lambda: Dispatch().__enter__(), torch._C._len_torch_dispatch_stack),
    "profiler": (
        lambda: torch.profiler.profile().__enter__(),
        torch._C._autograd._profiler_enabled,
    ),
    "recorder": (lambda: tv.record().__enter__(), lambda: tv.record().__enter__() and 1),
    "label": (
        lambda: tv.label(layer="x").__enter__(),
        lambda: sys.modules["tpviz.core.labels"].current().layer,
    ),
    "group destroyed": (dist.destroy_process_group, dist.get_world_size),
    "uneven collectives": (uneven_collectives, lambda: dist.group.WORLD.counts),
    "uneven groups": (uneven_groups, lambda: dist.distributed_c10d._world.group_count),
    "group that its members made": (
        lambda: dist.new_group([0, 1], use_local_synchronization=True) and 0,
        lambda: dist.new_group([0, 1], use_local_synchronization=True).size(),
    ),
    "message never received": (
        lambda: dist.get_rank() == 0 and dist.isend(torch.ones(1), 1),
        lambda: dist.group.WORLD.counts,
    ),
    "barrier that a rank did not come to": (late, lambda: dist.group.WORLD.counts),
    "dist patched": (lambda: setattr(dist, "all_reduce", None), lambda: callable(dist.all_reduce)),
    "torch patched": (lambda: setattr(torch, "matmul", None), lambda: callable(torch.matmul)),
    "Module patched": (
        lambda: setattr(torch.nn.Module, "__call__", None),
        lambda: torch.nn.Identity()(1),
    ),
    "Module extended": (
        lambda: setattr(torch.nn.Module, "mine", 1),
        lambda: hasattr(torch.nn.Module, "mine"),
    ),
    "builtins extended": (lambda: setattr(builtins, "mine", 1), lambda: hasattr(builtins, "mine")),
    "builtins patched": (lambda: setattr(builtins, "sorted", None), lambda: callable(sorted)),
    "time patched": (lambda: setattr(time, "sleep", None), lambda: time.sleep(0)),
    "directory": (lambda: os.chdir("/"), os.getcwd),
    "environment": (
        lambda: os.environ.update(OMP_NUM_THREADS="7"),
        lambda: os.environ["OMP_NUM_THREADS"],
    ),
    "environment emptied": (os.environ.clear, lambda: os.environ.get("RANK") is None),
    "time zone": (
        lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()) and 0,
        lambda: time.timezone,
    ),
    "import path": (lambda: sys.path.insert(0, "/nowhere"), lambda: sys.path[0]),
    "arguments": (lambda: sys.argv.append("--x"), lambda: len(sys.argv)),
    "closed output": (lambda: sys.stdout.close(), lambda: sys.stdout.closed),
    "standard output": (lambda: setattr(sys, "stdout", None), lambda: sys.stdout is None),
    "output redirected": (
        lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 1) and 0,
        lambda: os.path.samefile("/proc/self/fd/1", os.devnull),
    ),
    "collector": (gc.disable, gc.isenabled),
    "recursion limit": (lambda: sys.setrecursionlimit(50_000), sys.getrecursionlimit),
    "trace function": (lambda: sys.settrace(lambda *_: None), lambda: sys.gettrace() is None),
    "exception hook": (lambda: setattr(sys, "excepthook", print), lambda: sys.excepthook is print),
    "warning filters": (
        lambda: warnings.simplefilter("error"),
        lambda: warnings.warn("x", stacklevel=1),
    ),
    "logging": (lambda: logging.disable(), lambda: logging.root.manager.disable),
    "root logger": (
        lambda: logging.basicConfig(level=1, force=True),
        lambda: (logging.root.level, len(logging.root.handlers)),
    ),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
        lambda: locale.setlocale(locale.LC_ALL),
    ),
    "decimal context": (
        lambda: setattr(decimal.getcontext(), "prec", 3),
        lambda: str(decimal.Decimal(1) / 3),
    ),
    "reducers": (lambda: copyreg.pickle(int, str), lambda: int in copyreg.dispatch_table),
    "faulthandler": (faulthandler.enable, faulthandler.is_enabled),
    "tracemalloc": (tracemalloc.start, tracemalloc.is_tracing),
    "socket time-out": (lambda: socket.setdefaulttimeout(0.01), socket.getdefaulttimeout),
    "start method": (
        lambda: multiprocessing.set_start_method("spawn", force=True),
        lambda: multiprocessing.get_start_method(allow_none=True),
    ),
    "umask": (lambda: os.umask(0o777), lambda: (mask := os.umask(0), os.umask(mask))[0]),
    "signal handler": (
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN) and 0,
        lambda: signal.getsignal(signal.SIGUSR1),
    ),
    "signal mask": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]) and 0,
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
    ),
    "alarm": (
        lambda: signal.setitimer(signal.ITIMER_REAL, 60),
        lambda: signal.getitimer(signal.ITIMER_REAL),
    ),
    "limit": (
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)),
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    ),
    "priority": (lambda: os.nice(5), lambda: os.nice(0)),
    "thread": (
        lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(),
        lambda: len(threading.enumerate()),
    ),
    "child": (
        lambda: subprocess.Popen(["sleep", "60"]).pid and 0,
        lambda: os.path.exists("/proc/self/task") and len(children()),
    ),
    "forked child": (forked, lambda: len(children())),
}


def children():
    """Processes that this rank has started and that live."""
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return file.read().split()


def leave(name):
    """What leaves it behind must be no result: many of these return what cannot travel."""
    LEAKS[name][0]()


def look(*names):
    """What shows it, as text."""
    return [str(LEAKS[name][1]()) for name in names]


@pytest.fixture(scope="module")
def new():
    """What all the second functions give in new ranks."""
    names = [name for name in LEAKS if name != "recorder"]  # it would record all others
    found = {}
    for some in (names, ["recorder"]):
        tv.restart()
        found |= dict(zip(some, tv.launch(look, *some, world_size=2)[0]))
    return found


@pytest.mark.parametrize("name", LEAKS)
def test_nothing_leaks_into_the_next_job(name, new):
    tv.launch(leave, name, world_size=2, timeout=30)
    assert tv.launch(look, name, world_size=2, timeout=30)[0] == [new[name]]
    total = tv.launch(all_reduced, world_size=2, timeout=30)
    assert total == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("leave", [uneven_collectives, late, unmatched_ring])
def test_nothing_leaks_in_plain_groups(leave):
    tv.launch(leave, world_size=2, backend="gloo", timeout=30)

    def exchanged():
        received = torch.zeros(1)
        work = dist.isend(torch.full((1,), 2.0), 1 - dist.get_rank())
        dist.recv(received)
        work.wait()
        dist.all_reduce(received)
        return received.item()

    assert tv.launch(exchanged, world_size=2, backend="gloo", timeout=30) == [4.0, 4.0]


def all_reduced():
    x = torch.ones(2)
    dist.all_reduce(x, group=dist.new_group())
    return x.tolist()


def test_a_job_that_leaves_nothing_keeps_its_ranks():
    """Also one that exports a model: torch may then start tqdm's monitor, a thread that stays."""

    def train():
        model = torch.nn.Linear(4, 4)
        torch.manual_seed(3)
        with torch.autocast("cpu"):
            model(torch.rand(2, 4)).sum().backward()
        torch.optim.AdamW(model.parameters()).step()
        dist.all_reduce(model.weight.grad)
        list(tqdm.tqdm(range(2), file=io.StringIO()))
        assert "TMonitor" in {type(thread).__name__ for thread in threading.enumerate()}
        return os.getpid()

    pids = tv.launch(train, world_size=2)
    assert tv.launch(train, world_size=2) == pids


def test_a_forked_child_that_comes_back_is_not_heard():
    def fork():
        return "child" if os.fork() == 0 else "parent"

    for _ in range(3):
        assert tv.launch(fork, world_size=2) == ["parent"] * 2
        assert tv.launch(lambda: "next", world_size=2) == ["next"] * 2


def test_a_run_after_autocast_has_the_same_losses_and_ledger():
    workload, strategy = tv.GPT(layers=1, hidden=16, heads=2, seq=8, batch=4), tv.Megatron(tp=2)
    losses = tv.run(strategy, workload, steps=2).meta["losses"]
    tv.launch(leave, "autocast", world_size=2)
    trace = tv.run(strategy, workload, steps=2)
    assert trace.meta["losses"] == losses
    assert trace.ledger() == strategy.ledger(workload)


def test_ranks_that_finish_in_another_order_stay():
    def message():
        import time

        import torch
        import torch.distributed as dist

        rank, x = dist.get_rank(), torch.ones(1)
        if rank == 0:
            dist.send(x, 2)
            time.sleep(0.3)  # the last to say what it used, though the first of ranks
        elif rank == 2:
            dist.recv(x, 0)

    pids = tv.launch(os.getpid, world_size=3)
    tv.launch(message, world_size=3)
    assert tv.launch(os.getpid, world_size=3) == pids
