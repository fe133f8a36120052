"""What an engine of a cluster runs: the ranks of its host, for a caller elsewhere.

An engine never waits for ranks: each function here returns within moments, so the engine can always
be asked, and told to end ranks that hang in a collective. Ranks end with their engine (its life
pipes, see `worker_bootstrap`), and where nothing is heard of their caller for `SILENCE` seconds.
Nothing here imports torch, which the fork server and the ranks have.
"""

import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NamedTuple

from . import examine, server
from .host_ranks import Heard, HostRanks, Surroundings
from .places import RankPlace
from .store import StoreServer
from .worker_bootstrap import WorldSpec

SILENCE = 8.0  # seconds after which an end that says nothing is taken for gone
_KNOCK = 2.0  # seconds for a connection between two hosts
_TIDY = 0.1  # seconds to wait for ranks to undo what a job did to them
_LOOK = 0.5  # seconds between two looks at how long a caller has been silent


# -- which way hosts reach each other --------------------------------------------------------------
Door = tuple[str, int, str]
"""Address, port and word of a door, as `examine.open_door` makes it."""


def open_doors(addresses: Sequence[str]) -> list[Door]:
    """Doors at those of the addresses that this host can listen on."""
    made = ((address, *examine.open_door(address)) for address in addresses)
    return [(address, port, word) for address, port, word in made if port]


def reached(doors: Sequence[Door]) -> list[str]:
    """The address of this host from which each door of another opens, "" where none does."""
    opens = (examine.knock(*door, _KNOCK) == "open" for door in doors)
    return [(opened and examine.route(door[0])) or "" for opened, door in zip(opens, doors)]


# -- ranks -----------------------------------------------------------------------------------------
class HostSeen(NamedTuple):
    """What a caller is told of the ranks of one host."""

    heard: Sequence[Heard] = ()
    printed: str = ""
    dead: dict[int, tuple[str, str]] = {}  # rank -> (how it ended, a reason or "")
    boards: dict[int, tuple[str, float]] = {}
    places: dict[int, RankPlace] = {}
    edited: Sequence[str] = ()
    whole: bool = False  # whether the ranks' files are there
    answered: bool = False  # whether all ranks have answered what they were asked last


Job = tuple[int, bytes, Surroundings, bool]
"""Number, payload, surroundings of the caller, whether ranks compare their clocks before it."""


class _Held:
    """Ranks of one world on this host: a thread starts them, and they end in time."""

    def __init__(self, world: WorldSpec, surroundings: Surroundings, store: StoreServer | None):
        self.store = store  # in which the world meets, if rank 0 is here
        self.world, self.lock = world, threading.Lock()
        self.spoken = monotonic()  # when the caller last spoke
        self.ranks: HostRanks | None = None
        self.over: str = ""  # why there are no ranks any more
        self.due = {"answer": set(world.local), "tidy": set()}  # which ranks have yet to send it
        what = world, _here(surroundings)
        self._starting = threading.Thread(target=self._start, args=what, daemon=True)
        self._starting.start()

    def _start(self, *what):
        try:
            ranks = HostRanks(*what)
        except BaseException as error:
            self.over = self.over or f"could not start: {type(error).__name__}: {error}"
            return
        with self.lock:
            self.ranks = ranks
            if self.over:  # given up meanwhile
                ranks.kill()

    def exchange(self, seconds: float, job: Job | None) -> HostSeen:
        self.spoken = monotonic()
        if self.ranks is None and not self.over:
            self._starting.join(seconds)
        with self.lock:
            if self.over or self.ranks is None:
                gone = self.world.local if self.over else ()
                return HostSeen(dead={r: (self.over, "") for r in gone}, whole=not self.over)
            if job:
                number, payload, surroundings, compare = job
                self.ranks.begin(number, payload, _here(surroundings), compare)
                self.due = {what: set(self.world.local) for what in self.due}
            heard = self._news(seconds, "answer" if self.due["answer"] else "tidy")
            dead = {rank: self.ranks.ending(rank) for rank in self.ranks.dead()}
            dead |= {rank: self.ranks.ending(rank) for rank, m in heard if m is None}
            answered = {rank for rank, message in heard if message and message[0] != "progress"}
            return HostSeen(
                [(rank, message) for rank, message in heard if message],
                self.ranks.printed(answered),
                dead,
                self.ranks.boards(),
                self.ranks.places(),
                self.ranks.edited(),
                self.ranks.look(),
                not self.due["answer"],
            )

    def _news(self, seconds: float, what: str) -> list[Heard]:
        """What ranks have sent: waited for until all that is due of ``what`` is there, one rank
        has failed, or so many seconds have passed."""
        heard, until = [], monotonic() + seconds
        while self.ranks:
            new = self.ranks.listen(max(0.0, until - monotonic()) if self.due[what] else 0.0)
            heard += new
            kinds = {rank: message and message[0] for rank, message in new}
            for rank, kind in kinds.items():
                if kind != "progress":
                    self.due["tidy" if kind == "tidy" else "answer"].discard(rank)
            if not new or {None, "error", "refused"} & {*kinds.values()}:
                break
        return heard

    def finish(self) -> HostSeen:
        """Let ranks leave the job's groups; with what they say of the state they are left in, so
        that the next job need not ask for it."""
        with self.lock:
            if self.over or self.ranks is None:
                return HostSeen(whole=True)
            said = self.ranks.finish()
            heard = self._news(_TIDY, "tidy")
            return HostSeen([(r, m) for r, m in heard if m], said, whole=True)

    def end(self, why: str) -> str:
        with self.lock:
            self.over = self.over or why
            if self.store:
                self.store.close()
            return self.ranks.kill() if self.ranks else ""


_held: dict[str, _Held] = {}
_guards: list[threading.Thread] = []


def _here(surroundings: Surroundings) -> Surroundings:
    """Where ranks run for a caller elsewhere: in this engine's environment, with the caller's
    variables of tpviz; in the caller's directory, and with its import path, as far as the host has
    them, as with a network file system."""
    env, path, cwd = surroundings
    own_env, own_path, own_cwd = server.surroundings()
    own_env |= env
    own_path += [p for p in path if p not in own_path and os.path.isdir(p)]
    return own_env, own_path, cwd if cwd and os.path.isdir(cwd) else own_cwd


def start(key: str, world: WorldSpec, surroundings: Surroundings) -> tuple[str, int] | None:
    """Begin to start ranks, known as ``key`` from now on; the address at which the world meets.

    With rank 0 here, its port is chosen now, where ``world`` has 0 for it.
    """
    store = None
    if world.address and 0 in world.local:
        store = StoreServer(world.address[0], world.key, world.peers)
        world = world._replace(address=store.socket.getsockname())
    _held[key] = _Held(world, surroundings, store)
    if not any(guard.is_alive() for guard in _guards):
        _guards[:] = [threading.Thread(target=_guard, daemon=True)]
        _guards[0].start()
    return world.address


def exchange(key: str, seconds: float, job: Job | None = None) -> HostSeen:
    """Begin a job, if there is one; then what is new of the ranks: as soon as all have answered, or
    after so many seconds at most."""
    return _held[key].exchange(seconds, job)


def answer(key: str, rank: int, answer: Any) -> HostSeen:
    """Answer a question of a rank."""
    held = _held[key]
    if held.ranks and not held.over:
        held.ranks.answer(rank, answer)
    return HostSeen(whole=True)


def finish(key: str) -> HostSeen:
    """All ranks of the world have answered: those here leave the job's groups."""
    return _held[key].finish()


def lines(key: str, ranks: Sequence[int]) -> dict[int, str]:
    """Where ranks are in the user's code, as ``HostRanks.lines`` says it."""
    held = _held[key]
    return held.ranks.lines(ranks) if held.ranks and not held.over else {}


def beat(keys: Sequence[str]) -> None:
    """The caller of these ranks is there."""
    for held in map(_held.get, keys):
        if held:
            held.spoken = monotonic()


def end(key: str) -> str:
    """End ranks; what they had still printed."""
    held = _held.pop(key, None)
    return held.end("was ended by its caller") if held else ""


def leave() -> None:
    """This engine of a `cluster_command` is about to end: its ranks end, its folder goes."""
    for key in list(_held):
        end(key)
    remove(os.path.abspath(os.environ["IPP_PROFILE_DIR"]))


def remove(folder: str) -> None:
    """Remove the folder of a cluster, and the two above it where there are no others."""
    shutil.rmtree(folder, ignore_errors=True)
    above = os.path.dirname(folder)
    with suppress(OSError):
        os.rmdir(above)
        os.rmdir(os.path.dirname(above))


def _guard():
    """End the ranks of callers that are silent; runs as long as there are any ranks."""
    while _held:
        sleep(_LOOK)
        for key, held in list(_held.items()):
            if not held.over and monotonic() - held.spoken > SILENCE:
                held.end(f"was ended: nothing was heard of its caller for {SILENCE:g} s")
            if held.over and monotonic() - held.spoken > 100 * SILENCE:
                _held.pop(key, None)
