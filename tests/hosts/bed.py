"""Several hosts on one machine, for tests: namespaces, joined by a network in user space.

    with hosts(2, delay=0.001, clocks=[0, 1000]) as bed:
        a, b = bed
        b.write("/tmp/script.py", "print('here')")
        assert b.run([sys.executable, "/tmp/script.py"]).stdout == "here\n"
        b.cut()

Each host has a name (host0, host1, ...; all resolve each other's), an interface eth0 with an
address, processes with numbers of their own, a clock (``perf_counter``) of its own, and its own
/tmp and /dev/shm; the rest of the file system is the machine's, as a network file system would be.
Nothing is left when the ``with`` block ends, or this process dies, or `LIMIT` has passed.
Where the system has no namespaces or TAP devices, or the user is not root, tests that ask for
hosts are skipped, with the reason.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

LIMIT = 300  # seconds that hosts stand, at most
PATIENCE = 20  # seconds until hosts stand, and until a command has ended
NAMESPACES = ["--net", "--uts", "--ipc", "--mount", "--pid", "--time"]
PR_SET_PDEATHSIG = 1
HERE = Path(__file__).parent


@cache
def why_not() -> str:
    """Why this machine cannot hold hosts; empty if it can."""
    if sys.platform != "linux" or os.geteuid():
        return "hosts in namespaces need Linux and root"
    if missing := [
        name for name in ("unshare", "nsenter", "ip", "mount") if not shutil.which(name)
    ]:
        return f"hosts in namespaces need {', '.join(missing)} (util-linux, iproute2)"
    if any(Path(path).is_relative_to("/tmp") for path in (sys.prefix, sys.executable, HERE)):
        return f"hosts have a /tmp of their own, in which {sys.executable} or {HERE} is missing"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "hosts in namespaces need /dev/net/tun"
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "--monotonic", "1"]
    tried = subprocess.run([*command, "ip", "tuntap", "add", "eth0", "mode", "tap"],
                           capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
    return f"no namespaces or TAP devices here: {tried.stderr.strip()}" if tried.returncode else ""


class Process(subprocess.Popen):
    """A process on a host: signals go to it, not to the ``nsenter`` in front of it."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        while self.poll() is None:
            if own := _child(self.pid):
                try:
                    os.kill(own, sig)
                except ProcessLookupError:
                    pass
                return
            time.sleep(0.01)  # nsenter has not started it yet


def end(processes: Sequence[Process]) -> None:
    """Kill processes of hosts, and wait until they have ended."""
    for process in processes:
        process.kill()
        process.wait()


def _child(parent):
    """The one child of a process, as this namespace numbers it; None without one."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    return int(entry.name)
        except OSError:
            continue
    return None


def _alive(pid):
    """Whether a process runs; one that nobody has buried yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Host:
    """One host: where it is, and what can be done on it and to it."""

    def __init__(self, bed: "Bed", number: int, clock: int, names: Mapping[str, str]):
        self.bed, self.number, self.clock = bed, number, clock
        self.name, self.address = f"host{number}", f"10.77.0.{number + 1}"
        shift = [f"--monotonic={clock}", f"--boottime={clock}"]
        command = ["unshare", *NAMESPACES, *shift, "--mount-proc", "--fork", "--kill-child"]
        self.first = bed.start([*command, *_python("host.py"), self.name, str(LIMIT)])
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        bed.tell(self.first, "\n".join(lines) + "\n")
        self.pid = _child(self.first.pid)
        if self.pid is None:
            raise RuntimeError(f"{self.name} ended at once")

    def popen(self, argv: Sequence[str | Path], **options: Any) -> Process:
        """Start a program here; options as ``subprocess.Popen`` takes them. Texts unless told
        otherwise, and output that nobody asked for goes where the test's own goes.

        cwd is a folder of this host, and ``env`` adds to the environment.
        """
        enter = ["nsenter", f"--target={self.pid}", *NAMESPACES]
        enter.append(f"--wdns={options.pop('cwd', '/tmp')}")
        env = {**os.environ, "TMPDIR": "/tmp", **options.pop("env", {})}
        options = {"text": True, "stdin": subprocess.DEVNULL, **options}
        process = Process([*enter, "--", *map(str, argv)], env=env, **options)
        self.bed.started.append(process)
        return process

    def run(
        self, argv: Sequence[str | Path], timeout: float = PATIENCE, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end; its output, errors included, is in ``stdout``. Kills it
        and raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self.popen(argv, **{**pipes, **options}) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def path(self, name: str) -> Path:
        """Where this process sees a file of the host, such as its /tmp/out.json."""
        return Path(f"/proc/{self.pid}/root") / name.lstrip("/")

    def write(self, name: str, text: str) -> str:
        """Write a file of the host; its name there."""
        self.path(name).write_text(text)
        return name

    def set(self, **settings: Any) -> None:
        """Change the link of this host: delay (s), loss (share), rate (bytes/s), cut (bool), deaf
        (TCP ports behind a firewall that drops what comes in)."""
        self.bed.set(port=self.number, **settings)

    def cut(self) -> None:
        """Let no frame in or out any more, until ``set(cut=False)``."""
        self.set(cut=True)

    def kill(self) -> None:
        """Power off: the link is cut, then every process of the host is killed; none says good-bye
        to the others."""
        self.cut()
        self.first.kill()  # of unshare, upon which the kernel kills the first process, and so all
        self.first.wait()
        until = time.monotonic() + PATIENCE
        while _alive(self.pid):
            if time.monotonic() > until:
                raise RuntimeError(f"{self.name} (process {self.pid}) does not end")
            time.sleep(0.01)

    def processes(self) -> dict[int, str]:
        """{pid here: command line} of what runs on this host, but for its first process."""
        found = {}
        for entry in self.path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and entry.name != "1":
                    line = (entry / "cmdline").read_bytes()
                    if line:  # a zombie has none
                        found[int(entry.name)] = line.replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
        return found


class Bed:
    """The hosts, in order, and the network between them."""

    def __init__(self, clocks: Sequence[int], names: Sequence[Mapping[str, str]], stack: ExitStack):
        self.stack = stack
        self.started: list[Process] = []
        stack.callback(self._bury)  # after the hosts have ended
        true = {f"host{i}": f"10.77.0.{i + 1}" for i in range(len(clocks))}
        self.hosts = [Host(self, i, clock, {**true, **names[i]}) for i, clock in enumerate(clocks)]
        ports = [f"{host.pid}:{host.address}/24" for host in self.hosts]
        self.bridge = self.start([*_python("bridge.py"), str(LIMIT), *ports])
        self._ok(self.bridge)

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def __len__(self) -> int:
        return len(self.hosts)

    def set(self, **settings: Any) -> None:
        """Change all links, or that of one ``port``, as `Host.set` says."""
        self.tell(self.bridge, json.dumps({"port": None, **settings}))

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """A helper that ends with the bed, and with this process."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt of the test is not theirs
            preexec_fn=_end_with_parent,
        )
        self.stack.callback(_end, process)
        return process

    def tell(self, process: subprocess.Popen[str], line: str) -> None:
        """Write a line to a helper, and wait until it has done what it says."""
        with suppress(BrokenPipeError):  # it has ended, which is said below
            process.stdin.write(line + "\n")  # pyright: ignore[reportOptionalMemberAccess]
            process.stdin.flush()  # pyright: ignore[reportOptionalMemberAccess]
        self._ok(process)

    def _bury(self):
        """Close the pipes of what was started on hosts, which runs no more."""
        for process in self.started:
            process.wait()
            _close(process)

    def _ok(self, process):
        if process.stdout.readline() != "ok\n":
            raise RuntimeError(f"{process.args} ended with code {process.wait()}")


def _python(file):
    return [sys.executable, "-S", "-E", str(HERE / file)]


def _end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process):
    process.kill()
    process.wait()
    _close(process)


def _close(process):
    for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
        with suppress(BrokenPipeError):  # of a line that it did not read
            pipe.close()


@contextmanager
def hosts(
    n: int,
    delay: float = 0.0,
    clocks: Sequence[int] | None = None,
    names: Mapping[int, Mapping[str, str]] | None = None,
    **settings: Any,
) -> Generator[Bed, None, None]:
    """So many hosts, or the test is skipped; the rest of `Host.set` as ``settings``.

    delay : seconds that a frame takes from one host to another. clocks : by how many whole
    seconds each host's clock is ahead of this machine's. names : {host: {name: address}} that this
    host's /etc/hosts says wrongly.
    """
    if reason := why_not():
        pytest.skip(reason)
    clocks = [0] * n if clocks is None else clocks
    if len(clocks) != n:
        raise ValueError(f"{len(clocks)} clocks for {n} hosts")
    with ExitStack() as stack:
        bed = Bed(clocks, [(names or {}).get(i, {}) for i in range(n)], stack)
        bed.set(delay=delay, **settings)
        yield bed
        for host in bed.hosts:
            if host.first.poll() is None:
                host.kill()
