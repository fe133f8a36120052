"""What a job may have changed in its rank, so that the next one finds the rank as new.

Ranks are kept alive, and much of Python and torch is global: a default dtype, autocast left on or a
working directory would change the next job's numbers in silence. `State` remembers what a new rank
looks like, puts back after each job what can be put back, and names what cannot: such ranks are
replaced. A job's modules stay imported, with what it wrote into their variables, as in a notebook.
"""

import builtins
import copyreg
import decimal
import faulthandler
import gc
import locale
import logging
import multiprocessing
import operator
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import _C
from torch._C._dynamo.guards import dict_version
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks  # pyright: ignore[reportAttributeAccessIssue]

from tpviz.core import labels

from . import backend

_SIGNALS = [
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGIO,
]
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_HOOKS = [
    value
    for module in (module_hooks, optimizer_hooks)
    for name, value in vars(module).items()
    if name.startswith("_global_") and isinstance(value, dict)
]
_SWITCHES = {
    "_get_mkldnn_enabled": "_set_mkldnn_enabled",
    "_get_cudnn_enabled": "_set_cudnn_enabled",
    "_get_cudnn_benchmark": "_set_cudnn_benchmark",
    "_get_cudnn_deterministic": "_set_cudnn_deterministic",
    "_get_flash_sdp_enabled": "_set_sdp_use_flash",
    "_get_math_sdp_enabled": "_set_sdp_use_math",
    "_get_mem_efficient_sdp_enabled": "_set_sdp_use_mem_efficient",
}
# Where a job may replace functions, or add attributes of its own.
_PATCHED = [
    builtins,
    os,
    time,
    random,
    warnings,
    torch,
    dist,
    dist.distributed_c10d,
    torch.nn.functional,
    torch.nn.Module,
    torch.nn.Linear,
    torch.Tensor,
    torch.autograd.Function,
    torch.optim.Optimizer,
]


def _entries() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any] | None]]:
    """(what, how to read it, how to put a value back or None), in the order of putting back."""
    yield "recorder", lambda: backend.recorder, lambda _: _close_recorder()
    yield "label", labels.current, lambda value: setattr(labels, "_current", value)
    yield "default device", torch.get_default_device, lambda _: torch.set_default_device(None)
    yield "default dtype", torch.get_default_dtype, torch.set_default_dtype
    yield "grad mode", torch.is_grad_enabled, torch.set_grad_enabled
    for kind in ("cpu", "cuda"):
        on, put_on = torch.is_autocast_enabled, torch.set_autocast_enabled
        yield f"autocast, {kind}", partial(on, kind), partial(put_on, kind)
        dtype, put_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype
        yield f"autocast's dtype, {kind}", partial(dtype, kind), partial(put_dtype, kind)
    yield "autocast's cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled
    yield (
        "deterministic algorithms",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    )
    yield _attribute(torch.utils.deterministic, "fill_uninitialized_memory")
    yield "torch's threads", torch.get_num_threads, torch.set_num_threads
    yield "matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    yield (
        "anomaly mode",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda value: torch.set_anomaly_enabled(*value),
    )
    yield "warning always", torch.is_warn_always_enabled, torch.set_warn_always
    yield "autograd's threads", _C._is_multithreading_enabled, _C._set_multithreading_enabled
    for get, put in _SWITCHES.items():
        yield get, getattr(_C, get), getattr(_C, put)
    yield _contents("torch's print options", vars(torch._tensor_str.PRINT_OPTS))  # pyright: ignore[reportAttributeAccessIssue]
    yield (
        "NumPy's print options",
        numpy.get_printoptions,
        lambda value: numpy.set_printoptions(**value),
    )
    yield "NumPy's errors", numpy.geterr, lambda value: numpy.seterr(**value)
    for number, hooks in enumerate(_HOOKS):
        yield _contents(f"global hooks {number}", hooks)
    yield "dynamo's settings", *_dynamo()
    yield "safe globals", lambda: set(torch.serialization.get_safe_globals()), _safe_globals
    yield "backends", lambda: list(dist.Backend.backend_list), None
    yield "default group", lambda: id(dist.group.WORLD), None
    yield "groups named by their members", _hashed_groups, None
    yield "inference mode", torch.is_inference_mode_enabled, None
    yield "function modes", _C._len_torch_function_stack, None
    yield "dispatch modes", _C._len_torch_dispatch_stack, None
    yield "function transforms", lambda: _C._functorch.peek_interpreter_stack() is None, None  # pyright: ignore[reportAttributeAccessIssue]
    yield (
        "hooks for saved tensors",
        lambda: _C._autograd._top_saved_tensors_default_hooks(True) is None,  # pyright: ignore[reportAttributeAccessIssue]
        None,
    )
    yield "profiler", _C._autograd._profiler_enabled, None  # pyright: ignore[reportAttributeAccessIssue]
    yield (
        "dispatch keys",
        lambda: (
            _C._dispatch_tls_local_include_set().raw_repr(),
            _C._dispatch_tls_local_exclude_set().raw_repr(),
        ),
        None,
    )
    yield "interop threads", torch.get_num_interop_threads, None

    yield "collector", gc.isenabled, lambda value: gc.enable() if value else gc.disable()
    yield "collector's thresholds", gc.get_threshold, lambda value: gc.set_threshold(*value)
    yield _contents("collector's callbacks", gc.callbacks)
    yield "recursion limit", sys.getrecursionlimit, sys.setrecursionlimit
    yield "switch interval", sys.getswitchinterval, sys.setswitchinterval
    yield "longest number", sys.get_int_max_str_digits, sys.set_int_max_str_digits
    yield "trace function", sys.gettrace, sys.settrace
    yield "profile function", sys.getprofile, sys.setprofile
    yield "threads' trace function", threading.gettrace, threading.settrace
    yield "threads' profile function", threading.getprofile, threading.setprofile
    for name in (
        "stdout",
        "stderr",
        "excepthook",
        "displayhook",
        "unraisablehook",
        "breakpointhook",
    ):
        yield _attribute(sys, name)
    yield "closed streams", lambda: (sys.stdout.closed, sys.stderr.closed), None
    yield _attribute(threading, "excepthook")
    for name in ("path", "argv", "meta_path", "path_hooks"):
        yield (
            f"sys.{name}",
            lambda n=name: list(getattr(sys, n)),
            lambda value, n=name: getattr(sys, n).__setitem__(slice(None), value),
        )
    yield _contents("reducers", copyreg.dispatch_table)
    yield "tracemalloc", tracemalloc.is_tracing, lambda _: tracemalloc.stop()
    yield "faulthandler", faulthandler.is_enabled, lambda _: faulthandler.disable()
    yield "warning filters", lambda: list(warnings.filters), _filters
    yield (
        "logging",
        lambda: (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        _logging,
    )
    in_locale = partial(locale.setlocale, locale.LC_ALL)
    yield "locale", in_locale, in_locale
    yield (
        "decimal context",
        lambda: repr(decimal.getcontext()),
        lambda _: decimal.setcontext(decimal.Context()),
    )
    yield "socket time-out", socket.getdefaulttimeout, socket.setdefaulttimeout
    method, put_method = multiprocessing.get_start_method, multiprocessing.set_start_method
    yield "start method", partial(method, allow_none=True), partial(put_method, force=True)
    yield "umask", _umask, os.umask
    yield "affinity", lambda: os.sched_getaffinity(0), lambda value: os.sched_setaffinity(0, value)
    mask = signal.pthread_sigmask
    yield "signal mask", partial(mask, signal.SIG_BLOCK, []), partial(mask, signal.SIG_SETMASK)
    yield "priority", lambda: os.getpriority(os.PRIO_PROCESS, 0), None
    yield "signal handlers", lambda: list(map(signal.getsignal, _SIGNALS)), None
    yield "limits", lambda: list(map(resource.getrlimit, _LIMITS)), None
    yield "output", lambda: [(s.st_dev, s.st_ino) for s in map(os.fstat, (0, 1, 2))], None
    yield "threads", _threads, None
    yield "child processes", _has_children, None


def _threads():
    """All but tqdm's monitor, which torch.export may start and which only redraws bars: new ranks
    would import all that export needs anew."""
    return {thread for thread in threading.enumerate() if type(thread).__name__ != "TMonitor"}


class State:
    """How this rank looks now, as new; `restore` puts it back after a job."""

    def __init__(self):
        self._saved = [get() for _, get, _ in _ENTRIES]
        self._random = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        self.remember_surroundings()

    def remember_surroundings(self) -> None:
        """Record what the caller has set for the next job: environment and working directory."""
        self._environment, self._directory = dict(os.environ._data), os.getcwd()  # pyright: ignore[reportAttributeAccessIssue]

    def restore(self) -> list[str]:
        """Put back what the last job changed; the names of what cannot be put back."""
        left = []
        for (name, get, put), saved in zip(_ENTRIES, self._saved):
            try:
                if get() != saved:
                    put(saved)  # pyright: ignore[reportOptionalCall]
                    if get() != saved:
                        left.append(name)
            except Exception:  # no way to put it back, or the job broke what does so
                left.append(name)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        torch.set_flush_denormal(False)
        torch.clear_autocast_cache()
        self._restore_surroundings()
        for functions in _FUNCTIONS:
            functions.restore()
        random.setstate(self._random[0])
        numpy.random.set_state(self._random[1])
        torch.set_rng_state(self._random[2])
        return left

    def _restore_surroundings(self):
        # the bytes: decoding all takes ten times longer
        if os.environ._data != self._environment:  # pyright: ignore[reportAttributeAccessIssue]
            os.environ.clear()
            os.environb.update(self._environment)
            time.tzset()
        if os.getcwd() != self._directory:
            os.chdir(self._directory)


class _Functions:
    """The functions and classes of a module or class, which a job may replace by its own."""

    def __init__(self, owner):
        own: Any = vars(owner)  # of a class, a proxy of its dictionary
        self.owner, self.now = owner, gc.get_referents(own)[0] if isinstance(owner, type) else own
        self.saved = {name: value for name, value in own.items() if callable(value)}
        # Modules may load submodules lazily, on first use; classes do not.
        self.names = set(own) if isinstance(owner, type) or owner is builtins else None
        self.version = dict_version(self.now)

    def restore(self):
        """Put back what was replaced, and take away what was added to a class."""
        if dict_version(self.now) == self.version:
            return  # looking at each would write to its count of references: 1.7 MB of pages
        if not all(map(operator.is_, map(self.now.get, self.saved), self.saved.values())):
            for name, value in self.saved.items():
                setattr(self.owner, name, value)
        if self.names is not None and len(self.now) != len(self.names):
            for name in self.now.keys() - self.names:
                delattr(self.owner, name)
        self.version = dict_version(self.now)


def _attribute(owner, name):
    get, put = (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))
    return f"{owner.__name__}.{name}", get, put


def _contents(what, kept):
    """A dictionary or a list that is changed in place."""
    if isinstance(kept, list):
        return what, kept.copy, lambda value: operator.setitem(kept, slice(None), value)
    return what, kept.copy, lambda value: (kept.clear(), kept.update(value))


def _hashed_groups():
    """Groups that only their members made (``use_local_synchronization``): made again, they would
    find under the same name what the first ones left in the store."""
    names = dist.distributed_c10d._world.pg_names.values()
    return [name for name in names if not name.isdecimal()]


def _dynamo():
    from torch._dynamo import config

    saved = config.save_config()
    return config.get_hash, lambda _: config.load_config(saved)


def _safe_globals(value):
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(list(value))


def _filters(value):
    warnings.resetwarnings()  # tells the C code that they have changed
    warnings.filters[:] = value  # pyright: ignore[reportIndexIssue]


def _logging(value):
    level, handlers, disabled = value
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers
    logging.disable(disabled)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _has_children():
    try:
        os.waitid(os.P_ALL, 0, os.WNOHANG | os.WNOWAIT | os.WEXITED)
    except ChildProcessError:
        return False
    return True


def _close_recorder():
    backend.recorder.__exit__(RuntimeError, None, None)  # pyright: ignore[reportOptionalMemberAccess]


# Made once in the fork server, for all ranks.
_ENTRIES = list(_entries())
_FUNCTIONS = [_Functions(owner) for owner in _PATCHED]
