"""Guess first, then reveal: a learner's guesses before the ranks run, and the results."""

import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import ipywidgets

from .guess import Guess
from .knobs import small

STEP, SLOWLY = "How long will a step take on the ranks?", "How long will a step take, slowed down?"
EXPOSED = "How much of it will be exposed communication?"


class GuessPane(ipywidgets.VBox):
    """A check box, two questions, and a button that skips them.

    A guess belongs to the configuration it was made for and stays with it; the next configuration
    has new questions. One committed answer enables Run. lock : of the view around it, since
    callbacks come from any thread.
    """

    def __init__(self, lock: threading.RLock):
        self._lock = lock
        box, waits = (partial(ipywidgets.Checkbox, indent=False), "Run waits until you commit one")
        self.on = box(True, description="guess first, then reveal", tooltip=waits)
        harder = "harder: guess without seeing the formula's result"
        self.cover = box(False, description="cover the prediction until then", tooltip=harder)
        self.skip = ipywidgets.Button(
            description="skip the guess",
            icon="forward",
            tooltip="run this configuration without a guess",
        )
        self._fresh, self._of, self._skipped, self._key, self._heard = None, {}, set(), None, []
        self._slowly = False
        self._form, help = ipywidgets.VBox(), small("Run is enabled once a guess is committed.")
        self._way_out = ipywidgets.HBox([self.skip, help], layout={"align_items": "center"})
        super().__init__([ipywidgets.HBox([self.on, self.cover]), self._form])
        self.add_class("tpviz-guesses")
        self.skip.on_click(lambda button: self._skip())
        for box in (self.on, self.cover):
            box.observe(lambda change: self._changed(), "value")

    def on_change(self, callback: Callable[[], Any]) -> None:
        """Call ``callback()`` when a guess is committed or skipped, or the mode changes."""
        self._heard.append(callback)

    def ask(self, key: Hashable, slowly: bool = False) -> None:
        """Ask for the configuration ``key`` (hashable); None asks nothing. slowly : whether it will
        run in slow motion."""
        with self._lock:
            if slowly != self._slowly:
                self._fresh, self._slowly = None, slowly
            self._key = key
            self._lay_out()

    @property
    def settled(self) -> bool:
        """Whether the configuration may run: guessed, skipped, or no guess is wanted."""
        return not self.on.value or self._key in {None, *self._skipped, *self._of}

    @property
    def covering(self) -> bool:
        """Whether the prediction is covered for now."""
        return self.cover.value and not self.settled

    def of(self, key: Hashable) -> dict[str, Guess]:
        """{question: `Guess`} made for a configuration; empty where there is none."""
        return self._of.get(key, {})

    def _asked(self):
        """The unanswered questions; the same ones while configurations change."""
        if self._fresh is None:
            step = Guess(SLOWLY if self._slowly else STEP, "ms")
            self._fresh = {"step": step, "exposed": Guess(EXPOSED, "%")}
            for guess in self._fresh.values():
                guess.on_commit(self._committed)
        return self._fresh

    def _committed(self):
        with self._lock:
            if self._fresh and any(guess.value is not None for guess in self._fresh.values()):
                self._of[self._key], self._fresh = self._fresh, None
        self._changed()

    def _skip(self):
        with self._lock:
            self._skipped.add(self._key)
        self._changed()

    def _changed(self):
        with self._lock:
            self._lay_out()
        for callback in self._heard:
            callback()

    def _lay_out(self):
        self.cover.layout.display = "" if self.on.value else "none"
        shown = self.on.value and self._key is not None and self._key not in self._skipped
        if not shown:
            self._form.children = []
        elif self._key in self._of:
            self._form.children = list(self._of[self._key].values())
        else:
            self._form.children = [*self._asked().values(), self._way_out]
