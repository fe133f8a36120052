"""``tpviz cluster``: start an engine on each of several hosts, see what they have, stop them.

    tpviz cluster start --hosts a,b      # by SSH; or --local 2, --mpi 2, --slurm 2
    tpviz cluster status
    tpviz cluster stop

``ipyparallel`` starts engines and their controller. A cluster has a folder of its own, which only
its owner can read and which goes when it stops. The controller listens on one address alone.
"""

import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from tpviz.core.tables import text_table

from . import examine
from .cluster import answers
from .engine import leave, remove

_ANSWER = 5  # seconds for a controller or an engine to answer
_END = 10.0  # seconds for engines to end by themselves
_OWN_FOLDER = "--IPEngine.auto_create=True"  # where the homes of hosts are not one
_SLURM = """#!/bin/sh
#SBATCH --export=ALL
#SBATCH --job-name=tpviz-{cluster_id}
#SBATCH --nodes={n}
#SBATCH --ntasks={n}
#SBATCH --ntasks-per-node=1
srun {program_and_args}
"""


def folder(name: str = "") -> str:
    """Where a cluster's files are, or those of all."""
    if name and not re.fullmatch(r"[\w.-]*\w[\w.-]*", name):
        raise ValueError(f"{name!r} is no name for a cluster: use letters, digits, - and _")
    state = os.environ.get("XDG_STATE_HOME") or os.path.join("~", ".local", "state")
    return os.path.join(os.path.expanduser(state), "tpviz", "clusters", name)


def names() -> list[str]:
    """Of the clusters that were started here and not stopped."""
    return sorted(os.listdir(folder())) if os.path.isdir(folder()) else []


def _ipyparallel():
    try:
        import ipyparallel
    except ImportError:
        raise ValueError(
            "clusters need ipyparallel: pip install 'tpviz[cluster]' here and on each host"
        ) from None
    logging.getLogger("ipyparallel").setLevel(logging.ERROR)
    return ipyparallel


# -- start -----------------------------------------------------------------------------------------
def start(
    name: str,
    how: str,
    n: int,
    hosts: Sequence[str] = (),
    ip: str | None = None,
    python: str = sys.executable,
    options: str = "",
    seconds: float = 120.0,
) -> None:
    """Start a controller here and ``n`` engines, and print what a notebook needs to use them.

    how : "local", "ssh", "mpi" or "slurm". hosts : for SSH, one engine on each. ip : address of
    this machine that engines reach; None takes the one with a route to the first host, or the only
    one. python : that of the hosts. options : for ssh, mpiexec or sbatch. seconds : for engines to
    come, of which a queue may take the most.

    Raises ``ValueError`` where ipyparallel is missing, a cluster has this name, the address cannot
    be chosen, or engines do not come; nothing is left then.
    """
    ipyparallel, place = _ipyparallel(), folder(name)
    if n < 1:
        raise ValueError(f"{n} engines: use 1 or more")
    ip = ip or ("127.0.0.1" if how == "local" else _address(hosts))
    os.umask(0o077)  # of this command: keys and logs are the owner's alone
    try:
        os.makedirs(place, mode=0o700)
    except FileExistsError:
        raise ValueError(
            f"a cluster {name} was started already: tpviz cluster stop --name {name}, or take "
            "another --name"
        ) from None
    cluster = ipyparallel.Cluster(
        cluster_id=name,
        profile_dir=place,
        engines="tpviz.ranks.mpi_engines.PlainMPIEngines" if how == "mpi" else how,
        controller_ip=ip,
        controller_args=["--IPController.enable_curve=True"],  # else random bytes can stop it
        controller_location=ip,
        shutdown_atexit=False,
        load_profile=False,
        delay=0.0,
        config=_config(place, how, hosts, python, shlex.split(options)),
        log_level=logging.ERROR,
    )
    try:
        cluster.start_cluster_sync(n=n)
        client = cluster.connect_client_sync()
        with client:
            client.wait_for_engines(n, timeout=seconds)
            if how == "local":
                _name(client)
            _show(name, client)
    except BaseException as error:
        said = _said(place)
        _end(name, cluster)
        if not isinstance(error, Exception):
            raise
        raise ValueError(f"engines did not start: {_line(error)}{said}") from error
    file = _file(name)
    print(f"\nIn a notebook:\n    client = ipyparallel.Client({file!r})\n    tv.use(client)")
    print(f"or shorter: tv.use({name!r}). The end: tpviz cluster stop{_named(name)}")


def _named(name):
    return "" if name == "tpviz" else f" --name {name}"


def _config(place, how, hosts, python, options):
    """Settings of the launchers, as ipyparallel names them."""
    from traitlets.config import Config

    config = Config()
    engine = [python, "-m", "ipyparallel.engine"]
    if how == "ssh":
        quiet = ["-oBatchMode=yes", *options]  # a password cannot be asked for
        config.SSHEngineSetLauncher.engines = dict.fromkeys(hosts, 1)
        config.SSHEngineSetLauncher.remote_python = python
        config.SSHEngineSetLauncher.ssh_args = quiet
        config.SSHEngineSetLauncher.scp_args = quiet
        config.SSHEngineLauncher.to_send = []  # keys travel in the engine's environment
        config.SSHEngineLauncher.poll_seconds = 1  # for so long an ssh may outlive this command
    elif how == "mpi":
        config.MPIEngineSetLauncher.mpi_args = options
        config.MPIEngineSetLauncher.engine_cmd = engine
        config.MPIEngineSetLauncher.engine_args = [_OWN_FOLDER]
    elif how == "slurm":
        first, rest = _SLURM.split("\n", 1)
        own = [f"#SBATCH {shlex.join(options)}"] if options else []
        config.SlurmEngineSetLauncher.batch_template = "\n".join([first, *own, rest])
        config.SlurmEngineSetLauncher.batch_file_name = os.path.join(place, "engines.sbatch")
        config.SlurmEngineSetLauncher.engine_cmd = engine
        config.SlurmEngineSetLauncher.engine_args = [_OWN_FOLDER]
    return config


def _address(hosts):
    """This machine's address for engines elsewhere."""
    if hosts:
        name = hosts[0].rpartition("@")[2].partition(":")[0]
        there = examine.resolve([name])[name]
        if there and (own := examine.route(there)):
            return own
        raise ValueError(f"no way to {name}: {there or 'its name has no address'}; give --ip")
    own = [a for a in examine.interfaces().values() if not a.startswith("127.")]
    if len(own) == 1:
        return own[0]
    raise ValueError(
        "which address of this machine do engines reach? Give one with --ip: "
        f"{', '.join(own) or '127.0.0.1 is all it has'}"
    )


def _name(client):
    """Engines of one machine stand for as many hosts: each has a name of its own."""
    for number in client.ids:
        name = f"{os.uname().nodename}-{number}"
        client[number].execute(f"import os; os.environ['TPVIZ_HOST'] = {name!r}", block=True)


def _said(place):
    """What the logs of a cluster that did not start end with."""
    ends = []
    for file in sorted(os.listdir(os.path.join(place, "log"))) if os.path.isdir(place) else ():
        with open(os.path.join(place, "log", file), errors="replace") as log:
            if lines := [line.strip() for line in log if line.strip()]:
                ends.append(f"\n  {file}: {lines[-1]}")
    return "".join(ends)


def _line(error):
    out = getattr(error, "stderr", None) or getattr(error, "output", None)
    return f"{type(error).__name__}: {error}{f' ({out.strip()})' if out else ''}"


# -- what there is ---------------------------------------------------------------------------------
def client(name: str) -> Any:
    """A client of a cluster that `start` has started. Raises ``ValueError`` for another name, or
    where its controller does not answer."""
    ipyparallel = _ipyparallel()
    _check(name)
    try:
        return ipyparallel.Client(_file(name), timeout=_ANSWER)
    except OSError:  # none in time, or no file of it: it never stood
        raise ValueError(
            f"cluster {name}: its controller does not answer; tpviz cluster stop{_named(name)} "
            "removes what is left"
        ) from None


_connected: dict[str, tuple[int, Any]] = {}


def connected(name: str) -> Any:
    """The `client` of a cluster, the same for as long as that cluster stands."""
    started = os.stat(_file(name)).st_mtime_ns if os.path.exists(_file(name)) else 0
    if _connected.get(name, (0,))[0] != started or not started:
        _connected[name] = started, client(name)
    return _connected[name][1]


def _file(name):
    return os.path.join(folder(name), "security", f"ipcontroller-{name}-client.json")


def _check(name):
    if name not in names():
        there = ", ".join(names()) or "none"
        raise ValueError(f"no cluster {name} was started here; there are: {there}")


def status(name: str | None = None) -> bool:
    """Print what each cluster, or one, has; whether all that were asked for answer."""
    well = bool(names())
    if not well:
        print("no cluster was started here: tpviz cluster start --help")
    for each in [name] if name else names():
        try:
            with client(each) as found:
                well &= _show(each, found)
        except ValueError as error:
            print(error)
            well = False
    return well


def _show(name, client):
    """Print a cluster's hosts; whether all engines answer."""
    asked = [client[number].apply_async(examine.facts) for number in client.ids]
    said = answers(asked, _ANSWER)
    rows: list[Any] = [("engine", "host", "cores", "GPUs", "torch", "Python", "tpviz", "addresses")]
    for number, facts in zip(client.ids, said):
        if isinstance(facts, dict):
            own = [str(facts[what]) for what in ("cores", "gpus", "torch", "python", "tpviz")]
            there = [a for a in facts["interfaces"].values() if not a.startswith("127.")]
            rows.append((str(number), facts["name"], *own, ", ".join(there) or "127.0.0.1"))
        else:
            rows.append((str(number), f"does not answer: {_line(facts)}", *[""] * 6))
    print(f"cluster {name}: {len(client.ids)} engines")
    print("\n".join(text_table(rows)))
    return bool(said) and all(isinstance(facts, dict) for facts in said)


# -- stop ------------------------------------------------------------------------------------------
def stop(name: str) -> None:
    """End a cluster's engines and controller, and remove its files here and on its hosts.

    Raises ``ValueError`` where there is no such cluster.
    """
    ipyparallel = _ipyparallel()
    _check(name)
    cluster = None
    with suppress(OSError, ValueError):  # it never stood
        with open(file := os.path.join(folder(name), "security", f"cluster-{name}.json")) as text:
            known = json.load(text)
        # ipyparallel writes a launcher that is not its own in a form that it cannot read
        known["engines"]["class"] = known["engines"]["class"].replace(":", ".")
        cluster = ipyparallel.Cluster.from_dict(
            known, cluster_file=file, load_profile=False, log_level=logging.CRITICAL
        )
    _end(name, cluster)
    print(f"cluster {name} is stopped")


def _end(name, cluster):
    """Engines are asked to end, and to take their files with them; what then still is, is killed
    by whoever started it."""
    with suppress(Exception), client(name) as found:
        answers([found[number].apply_async(leave) for number in found.ids], _ANSWER)
        found.shutdown(hub=False, block=False)
        until = monotonic() + _END
        while found.ids and monotonic() < until:
            sleep(0.1)
    if cluster:
        many = [getattr(each, "launchers", {}).values() for each in cluster.engines.values()]
        by_ssh = [each for some in many for each in some if hasattr(type(each), "ssh_sender")]
        for engine in by_ssh:
            engine._output = ""  # else each stop waits 10 s for an output that is gone
        with suppress(Exception):
            cluster.stop_cluster_sync()
        for engine in by_ssh:  # of those that could not be asked
            with suppress(Exception):
                engine.ssh_sender.cmd_rmdir(engine.remote_profile_dir)
    remove(folder(name))
