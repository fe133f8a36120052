"""Work that an interrupt must not cut in half: starting ranks, ending them, importing torch.

Ctrl-C, a notebook's stop button and `widgets.job` raise ``KeyboardInterrupt`` between any two
bytecodes of the thread that they mean. A start cut in half leaves processes that nobody knows, and
half of torch's import can never be repeated in that process. So such work runs in a thread of its
own, which no interrupt reaches; the caller only waits for it, and may stop waiting at any moment.
"""

import _thread
import contextvars
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

_TICK = 0.05  # seconds between two moments at which an exception set from outside is noticed

T = TypeVar("T")


def shielded(work: Callable[[], T]) -> T:
    """The result of ``work()``, run to its end whatever happens to the caller.

    Raises what ``work`` raises. On an interrupt this function raises at once while ``work`` goes on
    in its thread, so ``work`` must hold its own lock and store its own result.
    """
    answer = SimpleQueue()
    context = contextvars.copy_context()  # notebooks tell by it to which cell a print belongs

    def carry_out():
        try:
            outcome = context.run(work), None
        except BaseException as error:
            outcome = None, error
        answer.put(outcome)

    # Neither `threading.Thread` nor `Event` will do: an interrupt inside them can keep their locks.
    try:
        _thread.start_new_thread(carry_out, ())
    except RuntimeError:  # the interpreter is ending: no new threads, and no prompt to come back to
        return work()
    while True:
        try:
            result, error = answer.get(timeout=_TICK)
            break
        except Empty:
            continue
    if error is not None:
        raise error
    return result
