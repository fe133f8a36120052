"""Ranks on several hosts: an engine of ``ipyparallel`` on each holds the ranks of its host.

    client = ipyparallel.Client()
    tv.use(client)
    tv.launch(work, world_size=8)       # 4 ranks on each of two hosts

Engines run nothing but `engine`, whose calls return at once, so no rank that hangs can keep one:
this process asks them again and again, and decides. What a `Pool` asks of ranks is asked here of
all hosts together (`ClusterRanks`). ``docs/adr/0071`` has the reasons.
"""

import os
import re
import secrets
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from math import inf
from time import monotonic, sleep
from typing import Any

import tpviz
from tpviz.core.shield import shielded

from . import engine as remote
from . import examine
from .engine import SILENCE, HostSeen
from .host_ranks import Heard, Surroundings
from .places import RankPlace
from .worker_bootstrap import WorldSpec

_FIRST_LIMIT = 30.0  # seconds for the first word of an engine, which has to import tpviz
_POLL = 0.1  # seconds that an engine may wait for news
_CLOCKS = 1.0  # seconds for which clocks that were compared serve the next jobs
_FRESH = 0.5  # seconds for which places of ranks may be compared with those of other hosts
_END_LIMIT = 5.0  # seconds for an engine to end its ranks
_AGAIN = 1.0  # seconds for one that was silent when it was last asked
_STACK_LIMIT = 2.0  # seconds for an engine to ask its ranks for their stacks
_NO_CURVE = (
    "[tpviz] whoever reaches the ports of ipyparallel's controller can stop this cluster, or read "
    "what it sends: start it with --IPController.enable_curve=True"
)
_BEAT = 2.0  # seconds between two signs of life


class ClusterEngine:
    """One engine of a client, and what its host has said of itself."""

    def __init__(self, client: Any, number: int):
        self.number, self._view = number, client[number]
        self.facts: dict[str, Any] = {}  # `examine.facts`, once it has answered
        self.interface: str | None = None  # that carries its messages to other hosts
        self._owed: set[Any] = set()  # questions without an answer
        self._since = 0.0  # when it was first asked after its last answer

    @property
    def name(self) -> str:
        return self.facts["name"] if self.facts else f"the host of engine {self.number}"

    def addresses(self, interface: str | None) -> dict[str, str]:
        """{interface: address} of one, or of all, loopback last."""
        chosen = interface or self.facts["settings"].get("GLOO_SOCKET_IFNAME")
        found = sorted(self.facts["interfaces"].items(), key=lambda i: i[1].startswith("127."))
        return {name: address for name, address in found if chosen in (None, "", name)}

    def ask(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Let the engine call a function of `engine`; its answer is to come."""
        if not self._owed:
            self._since = monotonic()
        try:
            asked = self._view.apply_async(function, *args)
            self._owed.add(asked)
            asked.add_done_callback(self._answered)
            return asked
        except Exception as error:  # the client was closed, or knows the engine no more
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _answered(self, asked):
        self._owed.discard(asked)
        self._since = monotonic()

    def silence(self) -> float:
        """Seconds for which it has owed an answer, to signs of life too."""
        return monotonic() - self._since if self._owed else 0.0

    def quiet(self) -> bool:
        """Whether the next answer is hardly worth a wait."""
        return self.silence() > SILENCE / 2


def answers(asked: Sequence["Future[Any]"], limit: float) -> list[Any]:
    """Results, or exceptions, of all; ``TimeoutError`` of those that are not there in time (s)."""
    wait(asked, limit)
    late = TimeoutError(f"no answer within {limit or SILENCE:g} s")
    return [(f.exception() or f.result()) if f.done() else late for f in asked]


# -- hosts -----------------------------------------------------------------------------------------
class Hosts:
    """The hosts of a client's engines, as far as they answer.

    client : an ``ipyparallel.Client``. interface : of each host, that carries messages between
    hosts, such as ``"eth0"``; None takes the one with a route to the others.
    """

    def __init__(self, client: Any, interface: str | None = None):
        self.client, self.interface = client, interface
        self.engines: list[ClusterEngine] = []  # one a host
        self._address: str | None = None  # of the first host
        self._said = ""
        self._worlds: set[ClusterRanks] = set()
        self._beating: threading.Thread | None = None

    def refresh(self) -> None:
        """Ask who is there, compare hosts and find how they reach each other, where that is new.

        Raises ``RuntimeError`` where no engine answers, ``ValueError`` for hosts that do not go
        together.
        """
        before = {engine.number: engine for engine in self.engines}
        found = [
            before.get(number) or ClusterEngine(self.client, number) for number in self.client.ids
        ]
        limit = SILENCE if before else _FIRST_LIMIT
        quiet = [engine.quiet() for engine in found]
        asked = [engine.ask(examine.facts) for engine in found]
        if any(quiet):  # they were waited for already
            wait(asked, _AGAIN)
        wait([of for of, gone in zip(asked, quiet) if not gone], limit)
        said = answers(asked, 0.0)
        there, missing = [], []
        for engine, word in zip(found, said):
            if isinstance(word, dict):
                engine.facts = word
                there.append(engine)
            elif getattr(word, "ename", "") in ("ModuleNotFoundError", "ImportError"):
                raise ValueError(_lacks(engine, word))
            else:
                missing.append(f"{engine.name} (engine {engine.number}: {_short(word)})")
        missing += [
            f"{gone.name} (engine {number} is gone)"
            for number, gone in before.items()
            if number not in self.client.ids
        ]
        if not there:
            raise RuntimeError(
                f"no engine of the cluster answers: {', '.join(missing) or 'it has none'}; start "
                "engines, or take this machine with tpviz.use(None)"
            )
        engines, doubles = _by_host(there)
        _compare(engines)
        if [e.number for e in engines] != [e.number for e in self.engines]:
            self._address = self._meet(engines)
        self.engines = engines
        self._say(missing, doubles)

    def _say(self, missing, doubles):
        hosts = [
            f"{e.name} (engine {e.number}{f', {e.interface}' if e.interface else ''})"
            for e in self.engines
        ]
        at = f"; they meet at {self._address}" if self._address else ""
        parts = [f"ranks run on {', '.join(hosts)}{at}", *doubles]
        parts += [f"without {', '.join(missing)}"] if missing else []
        said = "; ".join(parts)
        if said != self._said:
            if self._address and not self.client.curve_serverkey:
                print(_NO_CURVE)
            print(f"[tpviz] {said}")
        self._said = said

    def _meet(self, engines):
        """The address of the first host that all others reach; each engine's interface is set."""
        first, *others = engines
        for engine in engines:
            engine.interface = None
        if not others:
            return None
        addresses = [*first.addresses(self.interface).values()]
        (doors,) = _must(answers([first.ask(remote.open_doors, addresses)], SILENCE), [first])
        limit = SILENCE * (1 + len(doors))
        ways = _must(answers([e.ask(remote.reached, doors) for e in others], limit), others)
        _must(answers([first.ask(examine.close_doors)], SILENCE), [first])
        for number, (address, *_) in enumerate(doors):
            if all(way[number] for way in ways):
                first.interface = _interface(first, address)
                for engine, way in zip(others, ways):
                    engine.interface = _interface(engine, way[number])
                return address
        best = [
            f"{e.name} reaches {[door[0] for door, at in zip(doors, way) if at] or 'none'}"
            for e, way in zip(others, ways)
        ]
        asked_for = f" on {self.interface}" if self.interface else ""
        raise ValueError(
            f"no address of {first.name}{asked_for} ({', '.join(addresses) or 'it has none'}) is "
            f"reached by all other hosts: {'; '.join(best)}. Open the way between hosts for all "
            "TCP ports, or name the interface: tpviz.use(client, interface='eth0')"
        )

    def start(self, world: WorldSpec) -> "ClusterRanks":
        """Start ranks on the hosts that are left. Raises as `refresh` does."""
        self.refresh()
        counts = spread(world.world_size, len(self.engines))
        ranks = ClusterRanks(self, world, self.engines[: len(counts)], counts)
        self._worlds.add(ranks)
        if not (self._beating and self._beating.is_alive()):
            self._beating = threading.Thread(target=self._beat, daemon=True)
            self._beating.start()
        ranks.begin_to_start(self._address)
        return ranks

    def forget(self, ranks: "ClusterRanks") -> None:
        self._worlds.discard(ranks)

    def _beat(self):
        """Signs of life to all engines while they hold ranks: the caller may compute for hours."""
        asked: dict[int, Future[Any]] = {}
        while worlds := list(self._worlds):
            for engine in {part.engine for world in worlds for part in world.parts}:
                last = asked.get(engine.number)
                if last is None or last.done():
                    keys = [world.key for world in worlds]
                    asked[engine.number] = engine.ask(remote.beat, keys)
            sleep(_BEAT)


def spread(world_size: int, hosts: int) -> list[int]:
    """How many ranks each host has: as even as possible, the first ones more; no host has none.

    >>> spread(8, 2), spread(5, 2), spread(2, 3)
    ([4, 4], [3, 2], [1, 1])
    """
    each, more = divmod(world_size, hosts)
    return [count for host in range(hosts) if (count := each + (host < more))]


def _by_host(engines):
    """One engine of each host, and what to say of the others."""
    hosts: dict[str, list[ClusterEngine]] = {}
    for engine in engines:
        hosts.setdefault(engine.name, []).append(engine)
    said = []
    for name, mine in hosts.items():
        clocks = {engine.facts["clock"]: engine.number for engine in mine}
        if len(clocks) > 1:
            (a, first), (b, second) = list(clocks.items())[:2]
            raise ValueError(
                f"engines {first} and {second} both call their host {name}, but its clock is {a} "
                f"for one and {b} for the other: two hosts of one name. Set TPVIZ_HOST to a name "
                "in the environment of one"
            )
        if len(mine) > 1:
            rest = ", ".join(str(engine.number) for engine in mine[1:])
            said.append(f"{name} has more engines, which stay unused: {rest}")
    return [hosts[name][0] for name in sorted(hosts, key=_natural)], said


def _natural(name):
    """By name, as engines register in another order at each start: host2 before host10."""
    return [int(word) if word.isdecimal() else word for word in re.split(r"(\d+)", name)]


def _compare(engines):
    """Refuse versions that differ from one another or from this process's."""
    for what, version in _versions(examine.facts()).items():
        for engine in engines:
            if (there := _versions(engine.facts)[what]) != version:
                has = {
                    e.name: v for e in engines if (v := _versions(e.facts)[what]) != there
                } | {"this process": version}  # fmt: skip
                others = ", ".join(f"{name} {v}" for name, v in has.items())
                raise ValueError(
                    f"{what} {there} is on {engine.name}, but on {others}: ranks of one world need "
                    f"the same {what} everywhere"
                )


def _versions(facts):
    """What must be the same wherever ranks of one world run."""
    python = ".".join(facts["python"].split(".")[:2])  # functions travel as bytecode
    return {"tpviz": facts["tpviz"], "torch": facts["torch"], "Python": python}


def _lacks(engine, error):
    (name,) = answers([engine.ask(os.uname)], SILENCE)
    host = getattr(name, "nodename", engine.name)
    return (
        f"{host} (engine {engine.number}) cannot load tpviz: {_short(error)}. Install it in the "
        f"engine's Python: pip install tpviz=={tpviz.__version__}"
    )


def _must(said, engines):
    for word, engine in zip(said, engines):
        if isinstance(word, BaseException):
            raise RuntimeError(f"{engine.name} (engine {engine.number}): {_short(word)}")
    return said


def _interface(engine, address):
    return next((name for name, own in engine.facts["interfaces"].items() if own == address), None)


def _short(error):
    """One line about an engine's failure."""
    name = getattr(error, "ename", type(error).__name__)
    return f"{name}: {getattr(error, 'evalue', error)}".splitlines()[0]


# -- ranks -----------------------------------------------------------------------------------------
class _Part:
    """The ranks of one host, as this process last saw them."""

    def __init__(self, engine: ClusterEngine, ranks: range):
        self.engine, self.ranks = engine, ranks
        self.asked: deque[tuple[Future[Any], float]] = deque()  # with when each was asked
        self.seen, self.at = HostSeen(whole=True), 0.0
        self.lost = ""  # why nothing more is heard of it

    def ask(self, function: Callable[..., Any], *args: Any) -> None:
        self.asked.append((self.engine.ask(function, *args), monotonic()))

    def receive(self) -> list[HostSeen]:
        """What the engine has answered; it is lost where that is a failure, or takes too long."""
        new: list[HostSeen] = []
        while self.asked and self.asked[0][0].done() and not self.lost:
            asked, _ = self.asked.popleft()
            if error := asked.exception():
                self.lost = f"is lost: engine {self.engine.number} says {_short(error)}"
            else:
                new.append(asked.result())
        for seen in new:
            if seen.boards or seen.dead or not seen.whole:
                self.seen, self.at = seen, monotonic()
        silence = max((monotonic() - at for _, at in self.asked), default=0.0)
        if silence and not self.lost and max(silence, self.engine.silence()) > SILENCE:
            self.lost = (
                f"is out of reach: engine {self.engine.number} has not answered for {SILENCE:g} s "
                "(its host or the way to it is down, or other work keeps the engine)"
            )
        return new

    def due(self) -> bool:
        """Whether to ask for news: not while a question is open, and seldom where all ranks have
        answered, so that the engine is free for the next job."""
        idle = self.seen.answered and monotonic() - self.at < _POLL
        return not (self.asked or self.lost or idle)

    def quiet(self) -> bool:
        """Whether it is lost, or about to be."""
        return bool(self.lost) or self.engine.quiet()

    def dead(self) -> dict[int, tuple[str, str]]:
        return dict.fromkeys(self.ranks, (self.lost, "")) if self.lost else self.seen.dead


class ClusterRanks:
    """The ranks of one world on several hosts: what `HostRanks` is for those of one."""

    def __init__(
        self, hosts: Hosts, world: WorldSpec, engines: Sequence[ClusterEngine], counts: list[int]
    ):
        self._hosts, self._world, self.key = hosts, world, uuid.uuid4().hex
        starts = [sum(counts[:i]) for i in range(len(counts))]
        self.parts = [_Part(e, range(s, s + n)) for e, s, n in zip(engines, starts, counts)]
        self.hosts = tuple(part.engine.name for part in self.parts for _ in part.ranks)
        self._printed, self._heard = "", []
        self._compared = -inf  # when ranks last compared their clocks

    def begin_to_start(self, address: str | None) -> None:
        """Let engines start their ranks; those of the first host before others know its port."""
        meeting = (address, 0) if address and len(self.parts) > 1 else None
        peers = {at for part in self.parts for at in part.engine.facts["addresses"]}
        key = secrets.token_bytes(32)
        for part in self.parts:
            alone = len(self.parts) == 1
            world = self._world._replace(
                local=part.ranks,
                address=meeting,
                key=key,
                peers=sorted(peers),
                interface=None if alone else part.engine.interface,
                host=part.engine.name,
            )
            asked = part.engine.ask(remote.start, self.key, world, _surroundings())
            if part is self.parts[0]:
                (met,) = _must(answers([asked], SILENCE), [part.engine])
                meeting = met and (met[0], met[1])

    def _each(self, ask: Callable[[_Part], Any], but: Callable[[_Part], Any] = lambda p: p.lost):
        """Ask every host but those that are lost; an interrupt cuts no question in half."""
        parts = [part for part in self.parts if not but(part)]
        return shielded(lambda: [ask(part) for part in parts]) if parts else []

    # -- a job -------------------------------------------------------------------------------------
    def begin(self, job: int, payload: bytes, surroundings: Surroundings) -> None:
        compare = monotonic() - self._compared > _CLOCKS
        self._compared = monotonic() if compare else self._compared
        what = job, payload, _surroundings(surroundings), compare
        self._each(lambda part: part.ask(remote.exchange, self.key, _POLL, what))

    def answer(self, rank: int, answer: Any) -> None:
        self._each(
            lambda part: rank in part.ranks and part.ask(remote.answer, self.key, rank, answer)
        )

    def finish(self) -> str:
        self._each(lambda part: part.ask(remote.finish, self.key))
        return self.printed()

    def listen(self, seconds: float) -> list[Heard]:
        if any(part.due() for part in self.parts):
            self._each(lambda part: part.due() and part.ask(remote.exchange, self.key, _POLL))
        if not self._heard:
            asked = [part.asked[0][0] for part in self.parts if part.asked and not part.lost]
            seconds = min(seconds, _POLL)
            wait(asked, seconds, FIRST_COMPLETED) if asked else sleep(seconds)
            self._receive()
        heard, self._heard = self._heard, []
        return heard + [(rank, None) for rank in self.dead()]

    def _receive(self):
        for part in self.parts:
            for seen in part.receive():
                self._heard += seen.heard
                self._printed += seen.printed

    # -- what is seen of them ----------------------------------------------------------------------
    def look(self) -> bool:
        self._each(lambda part: part.ask(remote.exchange, self.key, 0))
        while asked := [f for part in self.parts if not part.lost for f, _ in part.asked]:
            wait(asked, _POLL)
            self._receive()
        return all(part.seen.whole and not part.lost for part in self.parts)

    def printed(self) -> str:
        said, self._printed = self._printed, ""
        return said

    def boards(self) -> dict[int, tuple[str, float]]:
        found = {rank: ("", float("inf")) for part in self.parts for rank in part.ranks}
        for part in self.parts:
            for rank, (text, age) in part.seen.boards.items():
                found[rank] = text, age + monotonic() - part.at
        return found

    def places(self) -> dict[int, RankPlace]:
        """rank -> where it stands; nothing where what is known of a host is old."""
        if any(part.lost or monotonic() - part.at > _FRESH for part in self.parts):
            return {}
        return {rank: place for part in self.parts for rank, place in part.seen.places.items()}

    def lines(self, ranks: Iterable[int]) -> dict[int, str]:
        of = list(ranks)
        asked = self._each(
            lambda part: part.engine.ask(
                remote.lines, self.key, [r for r in of if r in part.ranks]
            ),
            but=_Part.quiet,
        )
        found = answers(asked, _STACK_LIMIT)
        return {r: line for lines in found if isinstance(lines, dict) for r, line in lines.items()}

    def dead(self) -> dict[int, str]:
        return {rank: how for part in self.parts for rank, (how, _) in part.dead().items()}

    def ending(self, rank: int) -> tuple[str, str]:
        return next(part.dead()[rank] for part in self.parts if rank in part.dead())

    def edited(self) -> list[str]:
        return sorted({name for part in self.parts for name in part.seen.edited})

    # -- the end -----------------------------------------------------------------------------------
    def kill(self) -> str:
        self._hosts.forget(self)
        # one that does not answer is not waited for: should it come back, it ends them at once
        asked = [(part, part.engine.ask(remote.end, self.key)) for part in self.parts]
        said = answers([end for part, end in asked if not part.quiet()], _END_LIMIT)
        with suppress(Exception):
            self._receive()
        return self.printed() + "".join(text for text in said if isinstance(text, str))

    def let_go(self) -> None:
        """The client belongs to the parent process; nothing here is kept open."""


def _surroundings(now: Surroundings | None = None) -> Surroundings:
    """Of this process, what may go to other hosts: variables of tpviz, import path, directory."""
    from .server import surroundings

    env, path, cwd = now or surroundings()
    return {n: v for n, v in env.items() if n.startswith("TPVIZ_") and n != "TPVIZ_HOST"}, path, cwd
