"""What both fuzzers share: calls under an alarm, and what counts as an answer in words.

A call survives if it returns, or if tpviz itself raises ``ValueError`` with a message: the
innermost frame is a ``raise`` in the package. ``TypeError`` is accepted for a call that does not
fit the signature, ``NotImplementedError`` where tpviz raises it, ``OSError`` if it names the file.
Anything else is raw: an error of Python's or NumPy's that leaked out, an empty message, or a hang.
"""

import contextlib
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tpviz

SECONDS = 20  # of CPU time, for one call
WALL = 300
MEMORY = 12 << 30
PACKAGE = str(Path(tpviz.__file__).parent)
WORDS = (ValueError, NotImplementedError)
SIGNATURE = re.compile(r"\(\) (got an unexpected keyword|missing \d+ required|takes \d+ pos)")


class Hang(BaseException):
    """Raised by the alarm; no ``except Exception`` on the way catches it."""


class Fuzz:
    """Counts calls and keeps one example of each kind of raw error: {kind: [times, example]}."""

    def __init__(self, seconds: float = SECONDS):
        self.seconds, self.tried, self.raw = seconds, 0, {}
        self.outcomes = Counter()

    @property
    def failures(self) -> int:
        """How many calls did not survive."""
        return sum(times for times, _ in self.raw.values())

    def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result, or None after an error; ``what`` names the call in the report."""
        self.tried += 1
        try:
            with _alarm(self.seconds):
                result = function(*args, **kwargs)
        except Hang:
            self._keep(f"{what}: hang of {self.seconds} s", args, kwargs)
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            kind = raw_kind(error)
            self.outcomes["refused in words" if not kind else "raw"] += 1
            if kind:
                self._keep(f"{what}: {kind}", args, kwargs, str(error)[:90])
        else:
            self.outcomes["returned"] += 1
            return result
        return None

    def _keep(self, kind, args, kwargs, message=""):
        words = [repr(message), *map(_short, args)]
        words += [f"{name}={_short(value)}" for name, value in kwargs.items()]
        self.raw.setdefault(kind, [0, ", ".join(words)])[0] += 1

    def report(self, title: str) -> int:
        """Print tried, survived and every kind of raw error; returns the exit status."""
        print(
            f"{title}: {self.tried} calls tried, {self.tried - self.failures} survived "
            f"({dict(self.outcomes)})"
        )
        for kind, (times, example) in sorted(self.raw.items(), key=lambda row: -row[1][0]):
            print(ascii(f"  {times} x {kind}  <- {example}").strip("'\""))
        return int(bool(self.raw))


def raw_kind(error: BaseException) -> str:
    """ "" for an error in words, else what is wrong with it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    kind = f"{type(error).__name__} at {place}"
    ours = frames[-1].filename.startswith(PACKAGE) and (frames[-1].line or "").startswith("raise ")
    if type(error) is TypeError and (ours or SIGNATURE.search(str(error))):
        return ""
    if isinstance(error, OSError) and (error.filename or ours):
        return ""
    return "" if type(error) in WORDS and ours and str(error).strip() else kind


class _alarm:
    """Raises `Hang` after so many seconds of CPU time, or WALL seconds of waiting."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def ring(*_):
            raise Hang

        for which, timer, seconds in self._timers():
            signal.signal(which, ring)
            signal.setitimer(timer, seconds)

    def __exit__(self, *_):
        for which, timer, _ in self._timers():
            signal.setitimer(timer, 0)
            signal.signal(which, signal.SIG_DFL)

    def _timers(self):
        yield signal.SIGPROF, signal.ITIMER_PROF, self.seconds
        yield signal.SIGALRM, signal.ITIMER_REAL, WALL


def _short(value):
    try:
        text = repr(value)
    except Exception as error:  # it is only for the report
        text = f"<{type(value).__name__}, repr raises {type(error).__name__}>"
    return text if len(text) < 60 else text[:57] + "..."


def main(title: str, run: Callable[[Fuzz, int], Iterable[Any]], calls: int) -> None:
    """Command line: ``SEED CALLS``, by default 0 and the number promised."""
    seed, calls = (int(a) if a else d for a, d in zip([*sys.argv[1:3], "", ""], (0, calls)))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    fuzz = Fuzz()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for _ in zip(run(fuzz, seed), _progress(calls)):
            pass
    sys.exit(fuzz.report(f"{title}, seed {seed}"))


def _progress(calls):
    for number in range(calls):
        if number and number % 500 == 0:
            print(f"... {number}", file=sys.stderr, flush=True)
        yield number
