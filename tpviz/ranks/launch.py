"""``launch``: run a function on every rank, and get all results back in rank order.

    def work(n):
        x = torch.ones(n)
        torch.distributed.all_reduce(x)
        return x.sum().item()

    tpviz.launch(work, 3, world_size=4)      # [12.0, 12.0, 12.0, 12.0]

Where ranks come from is decided here and nowhere else: from the pool of this machine, from a
cluster's hosts (`use`), or, in a process that is a rank already (see `in_torchrun`), from its
world. Everything above takes an initialised process group and starts nothing.
"""

import atexit
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from numbers import Real
from typing import Any

from tpviz.core.checks import one_of
from tpviz.core.shield import shielded
from tpviz.core.tables import in_notebook

from . import bar, output, server, tabs
from .most import check_world_size, max_ranks
from .pool import Pool
from .rank_errors import Interrupted, RankError, RankTimeoutError, interrupted, named
from .ship import ship

__all__ = ["RankError", "RankTimeoutError", "launch", "progress", "restart", "shutdown", "use"]

DEFAULT_RANKS = 4

_lock = threading.RLock()  # held by the launch that is going on
_changing = threading.Lock()  # held by the thread that starts or ends ranks
_turn: object = None  # of the launch, shutdown or restart that came last, see `_take_turn`
_Key = tuple[int, str, str | None, Any]  # world size, backend, device, `cluster.Hosts` or None
_pools: dict[_Key, Pool] = {}
_hosts: Any = None  # `cluster.Hosts` in use; None: this machine


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int | None = None,
    timeout: float | None = 60.0,
    device: str | None = None,
    backend: str | None = None,
    progress: Callable[[int, int, str], Any] | bool | None = None,
    cluster: Any = None,
    rank_tabs: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """Run ``fn(*args, **kwargs)`` on every rank and return all results in rank order.

    In ``fn`` the default group of torch.distributed is ready, with one torch thread per rank.

    Parameters
    ----------
    fn : any function, also one from a notebook cell; it is sent by value, as are its results.
    world_size : number of ranks; 4 when left out, or all of a torchrun world. At most
        ``TPVIZ_MAX_RANKS`` (environment; 16 when unset).
    timeout : seconds the job may take, None for no limit. In a torchrun world the limit is that
        of each collective, since no process stands outside of the ranks.
    device : "cuda" or "cpu"; None takes cuda where there is a GPU.
    backend : "tpviz" (None), "gloo" or "nccl". Ranks of the plain two are new for each launch.
    progress : None shows the start of ranks and the reports of ``tpviz.progress`` as suits a
        notebook or a terminal, False hides them, a function ``(done, total, text)`` receives them.
    cluster : the client or name of hosts that have the ranks, as `use` sets for all calls.
    rank_tabs : in a notebook, show what each rank prints in a tab of its own, under its host; the
        last 500 lines of each stay. Elsewhere, and without it, lines come as ``[rank 2] ...``.

    Raises
    ------
    ValueError : bad arguments, or a function that cannot be sent to another process.
    RankError : a rank raised or died; has its traceback and what the other ranks were doing.
    RankTimeoutError : a ``TimeoutError`` that names each rank's last collective.
    KeyboardInterrupt : of an interrupt; the ranks are ended, and the next launch starts new ones.
    """
    _refuse_nesting()
    _check(fn, timeout, device, backend)
    if in_torchrun():
        from . import torchrun

        return torchrun.run(fn, args, kwargs, world_size, timeout, device, backend, progress)
    world_size = check_world_size(DEFAULT_RANKS if world_size is None else world_size)
    hosts = _hosts if cluster is None else _hosts_of(cluster)
    key = world_size, backend or "tpviz", device, hosts
    try:
        payload, show = ship(fn, args, kwargs), bar.viewer(progress)
        return _shown(key, payload, timeout, show, rank_tabs and in_notebook())
    except (RankError, RankTimeoutError) as error:
        raise error.with_traceback(None) from None  # the rank's own is in the message
    except KeyboardInterrupt as error:
        raise Interrupted(str(error) or "stopped while no rank was running") from None


def _shown(key: _Key, payload: bytes, timeout: float | None, show: bar.ProgressView, in_tabs: bool):
    if _lock._is_owned():  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError("launch was called while showing the progress of another launch")
    with _lock:
        try:
            with output.in_tabs(tabs.RankTabs() if in_tabs else None):
                results = _run(key, payload, timeout, show)
        finally:
            show.close()
    return [pickle.loads(result) for result in results]


def _take_turn() -> object:
    """From here on work of earlier launches changes nothing, unless it holds `_changing` already.

    A launch that was interrupted leaves its start or end of ranks to a thread. Whoever holds
    `_lock` takes a turn and then looks whether `_changing` is held; that thread holds it and then
    looks at the turn. So one of both sees the other, and no ranks have two owners. All ranks that
    are not idle are those of whoever's turn it is, or left behind: his to end.
    """
    global _turn
    _turn = object()
    return _turn


def _run(key: _Key, payload: bytes, timeout: float | None, show: bar.ProgressView):
    turn = _take_turn()
    pool = _idle_ranks(key)
    if not pool:
        show(0, key[0], f"starting {key[0]} rank{'s' * (key[0] > 1)}")
        pool = shielded(lambda: _new_ranks(key, turn))
    if not pool:
        raise Interrupted("Python is ending")  # the only one who takes a turn without the lock
    try:
        return pool.run(payload, timeout, show)
    except BaseException as error:
        try:
            if isinstance(error, KeyboardInterrupt):
                raise interrupted(pool.states(), pool.hosts) from None
        finally:
            shielded(lambda: _end_ranks(turn))
        raise


def _idle_ranks(key: _Key):
    """The pool with this key, taken, where nothing has to be started, ended or waited for."""
    if _changing.locked() or not all(pool.idle for pool in _pools.values()):
        return None
    pool = _pools.get(key)
    return pool if pool and pool.take() else None


def _new_ranks(key: _Key, turn: object):
    """A pool with this key, taken; others that are left behind, or leave no room, are ended."""
    with _changing:
        if turn is not _turn:
            return None
        old = _pools.get(key)
        taken = old if old and old.take() else None  # of an interrupted launch that started them
        if old and not taken and (dead := old.dead()):
            said = "; ".join(f"{named([rank], old.hosts)} {how}" for rank, how in dead.items())
            print(f"[tpviz] since the last call, {said}: starting new ranks")
        elif old and not taken and old.edited:
            said = ", ".join(old.edited)
            print(f"[tpviz] {said} changed since the ranks loaded it: starting new ranks")
        _end_pools(pool for pool in _pools.values() if not pool.idle and pool is not taken)
        return taken or _started(key)


def _started(key: _Key):
    _make_room(key[0])
    try:
        _pools[key] = Pool(*key)
    except (ConnectionError, EOFError, FileNotFoundError):  # the fork server has just died
        _end_pools()
        server.stop()
        _pools[key] = Pool(*key)
    return _pools[key]


def _make_room(ranks: int):
    """End the pools least recently used until so many more ranks are within `max_ranks`."""
    kept, ended = sorted(_pools.values(), key=lambda pool: pool.used), []
    while kept and ranks + sum(pool.world_size for pool in kept) > max_ranks():
        ended.append(kept.pop(0))
    _end_pools(ended)


def _end_ranks(turn: object):
    """All that are not idle, unless it is another's turn, who does so."""
    with _changing:
        if turn is _turn:
            _end_pools(pool for pool in _pools.values() if not pool.idle)


def _end_pools(pools: Iterable[Pool] | None = None):
    """End these pools, or all; first no launch can take one any more."""
    ended = [*_pools.values()] if pools is None else [*pools]
    for key in [key for key, pool in _pools.items() if pool in ended]:
        del _pools[key]
    for pool in ended:
        pool.kill()


def pool_info() -> dict[str, Any]:
    """Of the last used pool: ``device``, ``inner`` ("gloo" or "nccl"), ``preloaded``; or empty."""
    return dict(max(_pools.values(), key=lambda pool: pool.used).info) if _pools else {}


def start_server() -> None:
    """Start the fork server without waiting for it, unless one is running.

    It takes seconds to load torch; a caller who has to load torch too saves as many. Whatever
    stands in the way is left for `launch` to say.
    """
    if in_torchrun() or not _changing.acquire(blocking=False):
        return
    try:
        with server.blank_main(), suppress(RuntimeError, OSError):
            server.ensure()
    finally:
        _changing.release()


def use(client: Any, interface: str | None = None) -> None:
    """Take ranks from the hosts of a cluster from now on; ``use(None)`` returns to this machine.

    Ranks are numbered host by host, as many on each as possible evenly. They run in the environment
    of their engine, with this process's ``TPVIZ_`` variables; in its working directory and with its
    import path as far as a host has them.

    Parameters
    ----------
    client : an ``ipyparallel.Client``: one engine of each host holds its ranks (tpviz[cluster]); or
        the name of a cluster that ``tpviz cluster start`` has started here.
    interface : name of the network interface between hosts, such as ``"eth0"``; None takes one with
        a route, which is said.

    Raises
    ------
    ImportError : ipyparallel is not installed.
    RuntimeError : no engine answers.
    ValueError : hosts have other versions of tpviz, torch or Python than others or this process,
        or do not reach each other.
    """
    global _hosts
    _refuse_nesting()
    hosts = None if client is None else _hosts_of(client, interface)
    if hosts:
        hosts.refresh()
        atexit.unregister(_at_exit)  # to run before whatever ends the client, which is older
        atexit.register(_at_exit)
    with _lock:
        old, _hosts = _hosts, hosts
        if old not in (None, hosts):
            _take_turn()
            pools = [pool for key, pool in _pools.items() if key[3] is old]
            shielded(lambda: _end_pools(pools))


def _hosts_of(client: Any, interface: str | None = None):
    """The hosts of a client's engines, the same for the same client and interface."""
    try:
        import ipyparallel
    except ImportError:
        raise ImportError(
            "several hosts need ipyparallel: pip install 'tpviz[cluster]' here and on each host"
        ) from None
    if isinstance(client, str):
        from . import cluster_command

        client = cluster_command.connected(client)
    if not isinstance(client, ipyparallel.Client):
        raise ValueError(
            f"a cluster is an ipyparallel.Client or the name of one that `tpviz cluster` started, "
            f"not {client!r}; None: this machine"
        )
    from .cluster import Hosts

    for hosts in (_hosts, *(key[3] for key in _pools)):
        if hosts and hosts.client is client and interface in (None, hosts.interface):
            return hosts
    return Hosts(client, interface)


def shutdown() -> None:
    """End all ranks now; the next ``launch`` starts new ones."""
    with _lock:
        turn = _give_up_ranks()
        shielded(lambda: _end_all(turn))


def restart() -> None:
    """End all ranks and the fork server too, so that everything is loaded again.

    After an edit of your own modules no call is needed: ranks that have loaded them are replaced.
    """
    server.kill()  # before the locks: a start that hangs in the server holds them
    with _lock:
        turn = _give_up_ranks()
        shielded(lambda: _end_all(turn, server.stop))


def _give_up_ranks():
    """A turn in which no ranks are idle: should it be interrupted, the next launch ends them."""
    turn = _take_turn()
    for pool in list(_pools.values()):
        pool.idle = False
    return turn


def _end_all(turn: object, and_then: Callable[[], None] = lambda: None):
    with _changing:
        if turn is _turn:
            _end_pools()
            and_then()


@atexit.register
def _at_exit():
    # A daemon thread may hold the lock for as long as its job runs: do not wait for it.
    _lock.acquire(timeout=1.0)
    _take_turn()
    _changing.acquire(timeout=1.0)
    _end_pools()
    server.remove_home()


def _forget_after_fork():
    # The ranks belong to the parent; a child holding its pipes would keep them alive.
    global _lock, _changing
    for pool in _pools.values():
        pool.let_go()
    _pools.clear()
    _lock, _changing = threading.RLock(), threading.Lock()
    server.forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)


def progress(done: int, total: int, text: str = "") -> None:
    """Report from inside a rank that ``done`` of ``total`` parts are finished.

    Rank 0 speaks for all ranks; outside of a rank nothing happens, so code that reports progress
    also runs on its own.
    """
    for name in ("tpviz.ranks.worker", "tpviz.ranks.torchrun"):
        module = sys.modules.get(name)
        if module and module.rank is not None:
            module.report(done, total, text)


def in_torchrun() -> bool:
    """Whether this process is a rank of a world that others started, of two ranks or more.

    It has joined one (``init_process_group``), as kernels have whose cells run on every rank; or
    torchrun's variables are set, and it is no notebook's kernel, which others start with these
    variables too.
    """
    if _joined():
        return True
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return False
    size = os.environ["WORLD_SIZE"]
    if not size.isdecimal() or int(size) < 2:  # nobody is there to share work with
        return False
    return not in_notebook()


def _joined() -> bool:
    """Whether this process has made the default group of a world with others in it."""
    dist, backend = map(sys.modules.get, ("torch.distributed", f"{__package__}.backend"))
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return False
    if (backend and backend.silent) or dist.get_backend() == "fake":  # nobody else is there
        return False
    return dist.get_world_size() > 1


def _check(fn: Any, timeout: float | None, device: str | None, backend: str | None):
    if not callable(fn):
        raise ValueError(f"launch needs a function to run on the ranks, not {fn!r}")
    good = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if timeout is not None and not (good and math.isfinite(timeout) and timeout > 0):  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"timeout={timeout!r}; use a number of seconds above 0, or None")
    one_of("device", device, ("cpu", "cuda", None))
    one_of("backend", backend, ("tpviz", "gloo", "nccl", None))


def _refuse_nesting():
    worker = sys.modules.get("tpviz.ranks.worker")
    if worker and worker.rank is not None:
        raise RuntimeError(
            f"launch was called inside rank {worker.rank} of another launch; ranks cannot start "
            "ranks: call the function directly, or make groups with torch.distributed.new_group"
        )
