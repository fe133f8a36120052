"""``tpviz doctor --hosts``: why ranks on several hosts do or do not meet, and what mends it.

    there$ tpviz doctor --listen 10.0.0.2        # prints a key
    here$  tpviz doctor --hosts 10.0.0.2         # asks for the key

This host, the first, is that of rank 0. Facts of all hosts are compared, and each pair tries to
connect, both ways. Hosts are asked by functions ``ask(what, *args)``, so anything that calls
`examine.do` there will do: a `listener.Examiner`, or an engine of ipyparallel
(``partial(client[0].apply_sync, examine.do)``).
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tpviz.core.tables import text_table

from . import examine
from .listener import LIMIT, PORT, Examiner, Listener, NoProofError

MASTER_PORT = 29500  # torchrun's
_SILENCE = 3.0  # seconds until a port is silent
_TRIPS = 10
_SMALL_SHM = 64 << 20  # bytes; what containers get when nobody says otherwise
_DAY_SECONDS = 2.0  # by which times of the day may differ before logs and certificates suffer
_Ask = Callable[..., Any]
_INTERFACES = {"gloo": "GLOO_SOCKET_IFNAME", "NCCL": "NCCL_SOCKET_IFNAME"}


class HostFinding(NamedTuple):
    """What is wrong on a host, whether it keeps ranks apart, and the line that mends it there."""

    host: str
    what: str
    mend: str
    blocks: bool = True

    def __str__(self) -> str:
        return f"{self.host}: {self.what}\n      on {self.host}: {self.mend}"


class Examined(NamedTuple):
    """A host: how it is called and asked, the address that others use, and its facts."""

    name: str
    ask: _Ask
    address: str
    facts: dict[str, Any]

    @property
    def interface(self) -> str | None:
        """Of the address that others use; None where it is none of this host's."""
        named = {address: name for name, address in self.facts["interfaces"].items()}
        return named.get(self.address)


def doctor_hosts(
    hosts: Sequence[str],
    master_port: int = MASTER_PORT,
    key: Callable[[str], str] = input,
    show: Callable[[str], Any] = print,
) -> list[HostFinding]:
    """Call the listener of each host, compare all with this one, and show what was found.

    Parameters
    ----------
    hosts : names or addresses of the other hosts, each with ``:port`` unless it is the usual one.
    master_port : on which rank 0 will wait, on this host.
    key : gives the key that the listener of a host has printed, for a question.
    show : called with each line.

    Returns what is wrong, what blocks first. Raises ``ValueError`` for hosts that are not written
    like that, a key that is not the listener's, and a host that is lost in between.
    """
    if not 0 < master_port < 1 << 16:
        raise ValueError(f"master port {master_port}: use 1 to 65535")
    found: list[HostFinding] = []
    asks: dict[str, Examiner] = {}
    try:
        for text in dict.fromkeys(hosts):
            name, port = _host(text)
            if at_fault := _unreached(name, port):
                found.append(at_fault)
                continue
            try:
                asks[name] = Examiner(name, port, key(f"key that {name} printed: ").strip())
            except (NoProofError, EOFError) as error:
                raise ValueError(
                    f"{name}: {error or 'no key was given'}: use the key that it printed"
                ) from None
        if asks:
            found += examine_hosts(asks, master_port, show)
        else:
            tell(found, show)
    except OSError as error:
        raise ValueError(f"a host was lost while it was examined: {error}") from None
    finally:
        for ask in asks.values():
            ask.close()
    return found


def listen(where: str, limit: float = LIMIT, show: Callable[[str], Any] = print) -> bool:
    """Let one caller examine this host: whether he came in time (s).

    where : an address of this host, or ``ADDRESS:PORT``. Raises ``ValueError`` for another.
    """
    address, port = _host(where)
    try:
        listener = Listener(address, port)
    except OSError as error:
        raise ValueError(f"cannot listen on {address}, port {port}: {error.strerror}") from None
    show(f"Listening on {address}, port {port}, for {limit / 60:g} minutes and one caller.")
    usual = "" if port == PORT else f":{port}"
    show(f"On the host of rank 0: tpviz doctor --hosts {address}{usual}")
    show(f"key: {listener.key.decode()}")
    sys.stdout.flush()
    return listener.wait(limit)


def _host(text):
    name, _, port = text.strip().partition(":")
    if not name or (port and not (port.isdecimal() and 0 < int(port) < 1 << 16)):
        raise ValueError(f"{text!r} is no host: write a name or an address, or NAME:PORT")
    return name, int(port or PORT)


def _unreached(name, port):
    """Why no listener can be called at a host."""
    mine, address = examine.facts(), examine.resolve([name])[name]
    if address is None or (address.startswith("127.") and address != name):
        return HostFinding(
            mine["name"],
            f"the name {name} {f'means {address}, this host,' if address else 'has no address'} "
            "here",
            f"echo 'ADDRESS {name}' >> /etc/hosts    # or give its address: --hosts ADDRESS",
        )
    said = examine.knock(name, port, None, _SILENCE)
    if said == "refused":
        return HostFinding(name, f"nothing listens on port {port}", f"tpviz doctor --listen {name}")
    if said == "silent":
        source = examine.route(name) or "ADDRESS"
        return HostFinding(
            name,
            f"port {port} is silent from {source} for {_SILENCE:g} s: a firewall drops what comes "
            "in, or nobody has this address",
            opened([], source, port),
        )
    if said != "open":
        return HostFinding(
            mine["name"], f"{name} cannot be reached: {said}", f"ip route get {name}"
        )
    return None


def opened(firewalls: Sequence[str], source: str, port: int | str) -> str:
    """The line that lets a host's firewall pass connections from ``source`` to a port or range
    ("1024:65535"); firewalls : the tools that are there."""
    lines = {
        "ufw": f"ufw allow proto tcp from {source} to any port {port}",
        "firewall-cmd": f"firewall-cmd --add-rich-rule='rule family=ipv4 source address={source} "
        f"port port={str(port).replace(':', '-')} protocol=tcp accept'",
        "nft": f"nft insert rule inet filter input ip saddr {source} tcp dport "
        f"{str(port).replace(':', '-')} accept",
    }
    usual = f"iptables -I INPUT -p tcp -s {source} --dport {port} -j ACCEPT"
    return next((lines[tool] for tool in firewalls if tool in lines), usual)


def examine_hosts(
    asks: Mapping[str, _Ask], master_port: int = MASTER_PORT, show: Callable[[str], Any] = print
) -> list[HostFinding]:
    """Compare this host with those that ``asks`` reach ({name or address: function}), try every
    way between them, and show what was found; what blocks comes first."""
    addresses = examine.resolve([*asks])
    others = [Examined(name, ask, addresses[name] or name, ask("facts"))
              for name, ask in asks.items()]  # fmt: skip
    facts = examine.facts()
    mine = examine.route(others[0].address) or "127.0.0.1"
    hosts = [Examined(facts["name"], examine.do, mine, facts), *others]
    found: list[HostFinding] = []
    for host in hosts:
        found += [*_names(host, hosts), *_interfaces(host), *_memory(host)]
    for host in others:
        found += [*_versions(hosts[0], host), *_settings(hosts[0], host)]
    clocks = [_clock(host) for host in others]
    found += [late for _, late in clocks if late]
    try:
        ways, shut = _ways(hosts, master_port)
    finally:
        for host in hosts:
            host.ask("close_doors")
    found = sorted([*found, *shut], key=lambda finding: not finding.blocks)
    for line in [*_table(hosts), "", *ways, *(text for text, _ in clocks), ""]:
        show(line)
    tell(found, show)
    if not any(finding.blocks for finding in found):
        for line in _start(hosts, master_port):
            show(line)
    return found


def tell(found: Sequence[HostFinding], show: Callable[[str], Any]) -> None:
    """Show what is wrong and what mends it."""
    for finding in found:
        show(f"* {'' if finding.blocks else 'not in the way: '}{finding}")
    if not any(finding.blocks for finding in found):
        show("Nothing found that keeps ranks of these hosts apart.")


def _table(hosts):
    rows: list[Any] = [("host", "address", "interface", "python", "torch", "tpviz", "GPUs")]
    for host in hosts:
        facts = host.facts
        own = (facts[what] for what in ("python", "torch", "tpviz", "gpus"))
        rows.append((facts["name"], host.address, host.interface or "?", *map(str, own)))
    return text_table(rows)


def _start(hosts, master_port):
    yield "To start a script on all of them:"
    for rank, host in enumerate(hosts):
        yield (
            f"  on {host.facts['name']}: GLOO_SOCKET_IFNAME={host.interface or 'INTERFACE'} "
            f"torchrun --nnodes {len(hosts)} --node-rank {rank} --nproc-per-node 2 "
            f"--master-addr {hosts[0].address} --master-port {master_port} script.py"
        )


# -- what is looked at -----------------------------------------------------------------------------
def _names(host: Examined, hosts: Sequence[Examined]) -> Iterator[HostFinding]:
    """What a host's own name means there (gloo takes that address unless told an interface), and
    whether it can find the others by name."""
    facts, node = host.facts, host.facts["node"]
    own = host.ask("resolve", [node])[node]
    if not facts["settings"].get(_INTERFACES["gloo"]) and own != host.address:
        if own is None:
            what = "its own name has no address, so gloo does not know where to listen"
        elif own.startswith("127."):
            what = (
                f"its own name means {own} there (a line of /etc/hosts, as Debian writes it), so "
                "gloo would tell others an address at which they find themselves"
            )
        else:
            what = f"its own name means {own}, not {host.address}, by which others reach it"
        interface = host.interface or "INTERFACE"
        yield HostFinding(facts["name"], what, f"export {_INTERFACES['gloo']}={interface}")
    if host.facts["interfaces"] and not host.interface:
        there = ", ".join(f"{at} ({name})" for name, at in facts["interfaces"].items())
        yield HostFinding(
            facts["name"],
            f"{host.address}, by which it is called, is none of its addresses, {there}: what it "
            "tells others is not what they can reach",
            "call it by an address of its own: tpviz doctor --listen ADDRESS",
        )
    names = {other.facts["name"]: other.address for other in hosts if other is not host}
    for name, address in host.ask("resolve", [*names]).items():
        if address != names[name]:
            means = f"means {address}" if address else "has no address"
            yield HostFinding(
                facts["name"],
                f"the name {name} {means} there; it is {names[name]}",
                f"echo '{names[name]} {name}' >> /etc/hosts    # or use addresses, not names",
                blocks=False,
            )


def _interfaces(host: Examined) -> Iterator[HostFinding]:
    """Whether gloo and NCCL were told interfaces that lead to the others."""
    there = [name for name, address in host.facts["interfaces"].items() if address != "127.0.0.1"]
    for library, variable in _INTERFACES.items():
        told = host.facts["settings"].get(variable)
        if told is None or not host.interface:
            continue
        if not takes(told, host.interface, exact=library == "gloo"):
            yield HostFinding(
                host.facts["name"],
                f"{variable}={told} is not {host.interface}, which leads to the others (it has "
                f"{', '.join(there)})",
                f"export {variable}={host.interface}",
                blocks=library == "gloo" or host.facts["gpus"] > 0,
            )


def takes(told: str, interface: str, exact: bool) -> bool:
    """Whether a setting names an interface: a list of names (gloo), or as NCCL has it of
    beginnings of names, all but them after ^, whole names after =."""
    if exact:
        return interface in told.split(",")
    names = told.lstrip("^=").split(",")
    same = interface.__eq__ if "=" in told[:2] else interface.startswith
    return any(map(same, names)) != told.startswith("^")


def _memory(host: Examined) -> Iterator[HostFinding]:
    shm = host.facts["shm"]
    if shm is not None and shm < _SMALL_SHM:
        yield HostFinding(
            host.facts["name"],
            f"/dev/shm has {shm >> 20} MiB: NCCL and workers that load data need more",
            "mount -o remount,size=1G /dev/shm    # of a container: docker run --shm-size=1g",
            blocks=host.facts["gpus"] > 0,
        )


def _versions(first: Examined, host: Examined) -> Iterator[HostFinding]:
    """Functions are sent by value, and collectives must be the same: Python up to its second
    number, torch with its build but for the device's part, tpviz."""
    for what, same in (
        ("python", lambda version: version.split(".")[:2]),
        ("torch", lambda version: version.partition("+")[0]),
        ("tpviz", str),
    ):
        mine, theirs = first.facts[what], host.facts[what]
        if same(mine) != same(theirs):
            mend = f"pip install {what}=={mine}" if what != "python" else f"use python {mine}"
            name = host.facts["name"]
            yield HostFinding(name, f"{what} {theirs} there, {mine} on {first.facts['name']}", mend)
    if (first.facts["gpus"] > 0) != (host.facts["gpus"] > 0):
        counts = [f"{at.facts['gpus']} on {at.facts['name']}" for at in (first, host)]
        yield HostFinding(
            host.facts["name"],
            f"GPUs: {' and '.join(counts)}: NCCL needs one for each rank",
            "export CUDA_VISIBLE_DEVICES=    # on all hosts: gloo then moves the bytes",
        )


def _settings(first: Examined, host: Examined) -> Iterator[HostFinding]:
    """Settings of NCCL that differ, but for interfaces, which may have other names."""
    mine, theirs = (at.facts["settings"] for at in (first, host))
    for name in sorted(mine.keys() | theirs.keys()):
        counts = name.startswith("NCCL_") and name != _INTERFACES["NCCL"]
        if counts and mine.get(name) != theirs.get(name):
            mend = f"export {name}={mine[name]}" if name in mine else f"unset {name}"
            said = [at.get(name, "not set") for at in (theirs, mine)]
            what = f"{name} is {said[0]} there, {said[1]} on {first.facts['name']}"
            yield HostFinding(host.facts["name"], what, mend, blocks=False)


def _clock(host: Examined) -> tuple[str, HostFinding | None]:
    """(what the clock is like, what is wrong with the time of the day), by the shortest trip."""
    trips = []
    for _ in range(_TRIPS):
        sent, _ = examine.clock()
        theirs, day = host.ask("clock")
        back, my_day = examine.clock()
        trips.append((back - sent, theirs - (sent + back) / 2, day - my_day + (back - sent) / 2))
    trip, ahead, days = min(trips)
    name = host.facts["name"]
    text = (
        f"clock of {name}: {ahead:+.4f} s (within {trip / 2 * 1e3:.2g} ms; a job measures this "
        f"anew); round trip {trip * 1e3:.2g} ms"
    )
    if abs(days) < _DAY_SECONDS + trip:
        return text, None
    what = f"the time of the day is {days:+.1f} s from that of this host"
    return text, HostFinding(name, what, "timedatectl set-ntp true", blocks=False)


def _ways(hosts: Sequence[Examined], master_port: int) -> tuple[list[str], list[HostFinding]]:
    """(lines, what is shut): every host knocks at the door of every other, and at rank 0's."""
    lines, found = [], []
    for to, door in _doors(hosts, master_port):
        port, word = to.ask("open_door", to.address, door)
        if port is None:
            found.append(_taken(to, door, word))
            continue
        for source in (host for host in hosts if host is not to):
            said = source.ask("knock", to.address, port, word, _SILENCE)
            way = f"{source.facts['name']} -> {to.facts['name']} ({to.address}) port {port}"
            lines.append(f"{way}: {said}")
            if said != "open":
                found.append(_shut(source, to, port, door, said))
    return lines, found


def _doors(hosts, master_port) -> Iterable[tuple[Examined, int]]:
    return [(hosts[0], master_port), *((host, 0) for host in hosts)]


def _taken(to, door, why):
    other = f"torchrun --master-port {door + 1} ...    # on all hosts"
    what = f"port {door} of {to.address} cannot be had: {why.lower()}"
    return HostFinding(
        to.facts["name"], what, other if door else f"ip addr    # is it {to.address}?"
    )


def _shut(source, to, port, door, said):
    name, way = to.facts["name"], f"from {source.facts['name']} ({source.address})"
    if said in ("silent", "refused"):
        who = "drops" if said == "silent" else "rejects"
        ports = port if door else "1024:65535"  # gloo and NCCL take any that is free
        return HostFinding(
            name,
            f"port {port} is {said} {way}: a firewall {who} what comes in",
            opened(to.facts["firewalls"], source.address, ports),
        )
    what = f"port {port} cannot be reached {way}: {said}"
    return HostFinding(source.facts["name"], what + f", from {name}", f"ip route get {to.address}")
