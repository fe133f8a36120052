"""One stoppable job at a time in a worker thread, for the Run and Stop buttons.

The thread touches no signal handler and no event loop: it works wherever JupyterLab runs callbacks.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any


class Job:
    """Runs ``work()`` in a thread; then calls ``done(result, error, stopped)`` there, exactly once.

    Stopping raises ``KeyboardInterrupt`` in the worker, which is to what it runs as the interrupt
    button is to a cell: `tpviz.launch` ends its ranks and is usable again.
    """

    def __init__(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None, bool], Any]
    ):
        self._work, self._done = work, done
        self._lock = threading.Lock()
        self.running, self.stopped = True, False
        self._thread = threading.Thread(target=self._main, name="tpviz-job", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Interrupt the work; False when it had already ended."""
        with self._lock:
            if not self.running:
                return False
            self.stopped = True
            ident = ctypes.c_ulong(self._thread.ident)  # pyright: ignore[reportArgumentType]
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))
            return True

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end; True when it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _main(self):
        result = error = None
        try:
            try:
                result = self._work()
            except BaseException as raised:
                error = raised
            self._end()
        except KeyboardInterrupt as late:  # the stop came just as the work ended
            result, error = None, late
            self._end()
        self._done(result, error, self.stopped)

    def _end(self):
        with self._lock:
            self.running = False


class Working:
    """Mixin of a view whose work is a `Job`."""

    _job: Job | None = None

    def stop(self) -> bool:
        """End the work; False where none goes on. What it found stays."""
        return bool(self._job and self._job.stop())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end (for scripts and tests); True when none is left."""
        return self._job is None or self._job.join(timeout)


class Latest:
    """Does ``work()`` now; if requested again meanwhile, once more at the end, for any number of
    requests. So moves of a slider never queue up: the last one is drawn, from any thread.
    """

    def __init__(self, work: Callable[[], Any]):
        self._work, self._lock = work, threading.Lock()
        self._wanted = self._busy = False

    def __call__(self):
        """Run it, or let the active thread run it again."""
        with self._lock:
            self._wanted = True
            if self._busy:
                return
            self._busy = True
        while self._again():
            try:
                self._work()
            except BaseException:
                with self._lock:
                    self._busy = False
                raise

    def _again(self):
        with self._lock:
            self._busy, self._wanted = self._wanted, False
            return self._busy
