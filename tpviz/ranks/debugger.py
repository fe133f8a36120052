"""``tv.breakpoint()``: a rank stops at a prompt of Python's debugger, which its caller types at.

The rank sends what the debugger has written, and waits for a line; the caller asks for it with
``input``, in a notebook or at a terminal, on this machine or from engines' hosts. Meanwhile no time
passes for the job's time-out, and no deadlock is looked for.
"""

import bdb
import inspect
import io
import linecache
import pdb
import sys
from collections.abc import Sequence
from typing import Any

from tpviz.core.tables import in_notebook

from . import board

HERE = "waiting at tpviz.breakpoint"


def breakpoint(rank: int | None = None) -> None:
    """Stop here at a prompt of Python's debugger (pdb), in a notebook or at the caller's terminal.

    Other ranks go on until they need this one, and then wait for it without a time-out.
    ``continue`` goes on; ``quit`` and an interrupt end the job. Ranks that come here together take
    turns. Outside of ranks it is Python's own ``breakpoint``.

    Parameters
    ----------
    rank : the only rank that stops; None stops each that comes here.

    Raises
    ------
    RuntimeError : in a world of torchrun, whose ranks have no terminal; and, from ``tpviz.launch``,
        where the caller has none.
    """
    here: Any = inspect.currentframe()
    worker, here = sys.modules.get("tpviz.ranks.worker"), here.f_back
    if worker is None or worker.rank is None:
        torchrun = sys.modules.get("tpviz.ranks.torchrun")
        if torchrun is not None and torchrun.rank is not None:
            raise RuntimeError(
                "tpviz.breakpoint stops ranks of tpviz.launch; ranks of torchrun have no terminal: "
                "launch from a notebook, or start the script without torchrun"
            )
        debugger = pdb.Pdb()
    elif rank not in (None, worker.rank):
        return
    else:
        _fetch_sources(worker, here)
        lines: Any = _Lines(worker)
        debugger = pdb.Pdb(stdin=lines, stdout=lines.said, nosigint=True, readrc=False)
        debugger.prompt = f"(rank {worker.rank}) "
    debugger.set_trace(here)  # the last call: it stops at the next line


class _Lines(io.TextIOBase):
    """Lines that the caller of this rank types."""

    def __init__(self, worker: Any):
        self.worker, self.said = worker, io.StringIO()

    def readline(self, size: int = -1) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The next line; what was said since the last one goes before it."""
        said = self.said.getvalue()
        self.said.seek(0)
        self.said.truncate()
        return _asked(self.worker, said)


def _asked(worker: Any, what: Any) -> Any:
    """The caller's answer: a line for a text, sources for names of files."""
    board.write(HERE)
    answer = worker.ask(what)
    board.write("running user code")
    return answer


def _fetch_sources(worker: Any, frame: Any) -> None:
    """Cells of a notebook, whose text only the caller has, for the debugger to show."""
    names: set[str] = set()
    while frame:
        names.add(frame.f_code.co_filename)
        frame = frame.f_back
    missing = [name for name in names if not linecache.getlines(name)]
    for name, lines in _asked(worker, missing).items() if missing else ():
        linecache.cache[name] = len("".join(lines)), None, lines, name


def answer(who: str, what: str | Sequence[str]) -> Any:
    """The caller's side: a line that is typed, or the lines of files, by name.

    who : the rank, for errors. Raises ``RuntimeError`` where nobody can type, ``KeyboardInterrupt``
    at an interrupt.
    """
    if not isinstance(what, str):
        return {name: lines for name in what if (lines := linecache.getlines(name))}
    try:
        said, _, prompt = what.rpartition("\n")
        if said:
            print(said, flush=True)
        return input(prompt) + "\n"
    except EOFError:
        if in_notebook() or sys.stdin.isatty():
            return ""  # the end of the file, Ctrl-D: the debugger takes it for quit
        why = "standard input is at its end"
    except (OSError, RuntimeError) as error:  # of pytest, and of notebooks without a front end
        why = str(error).partition("\n")[0] or type(error).__name__
    raise RuntimeError(
        f"{who} has come to tpviz.breakpoint, and there is nobody to type at its prompt ({why}); "
        "run it in a notebook or at a terminal, or take the call of tpviz.breakpoint away"
    )


def quits(failure: dict[str, Any] | None) -> bool:
    """Whether a rank failed because ``quit`` was typed."""
    return bool(failure) and failure["type"] == bdb.BdbQuit.__name__
