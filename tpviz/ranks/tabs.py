"""What ranks print, in a notebook: a tab for each rank, under its host, while they run.

At the end the tabs give way to text that a saved notebook keeps: a fold for each rank.
"""

import re
import sys
from collections import deque
from html import escape
from time import monotonic
from typing import Any

_LINES = 500  # last ones of each rank that are shown
_EVERY = 0.25  # seconds between two drawings, so that a flood does not keep the notebook busy
_LABELLED = re.compile(r"\[rank (\d+)(?: on ([^\]]+))?\] (.*)\n?")
_STYLE = "margin:0;max-height:20em;overflow:auto;white-space:pre-wrap"


class RankTabs:
    """Takes lines of ranks as ``output.show`` gets them; `close` after the last.

    What no rank has said is printed.
    """

    def __init__(self):
        self._lines: dict[tuple[str, int], deque[str]] = {}  # (host, rank) -> its last lines
        self._counts: dict[tuple[str, int], int] = {}
        self._pages: dict[tuple[str, int], Any] = {}  # widgets
        self._box: Any = None
        self._handle: Any = None
        self._drawn = 0.0

    def add(self, said: str) -> None:
        """Show more lines; ``""`` shows what has not been drawn yet."""
        for line in said.splitlines(keepends=True):
            if found := _LABELLED.fullmatch(line):
                who = found[2] or "", int(found[1])
                self._lines.setdefault(who, deque(maxlen=_LINES)).append(found[3])
                self._counts[who] = self._counts.get(who, 0) + 1
            else:
                sys.stdout.write(line)
        if self._lines and monotonic() - self._drawn > _EVERY:
            self._draw()
            self._drawn = monotonic()

    def _draw(self):
        import ipywidgets
        from IPython.display import display

        if self._pages.keys() != self._lines.keys():
            for who in self._lines.keys() - self._pages.keys():
                self._pages[who] = ipywidgets.HTML()
            self._box = self._box or ipywidgets.VBox()
            self._box.children = self._tabs(ipywidgets)
        for who, page in self._pages.items():
            page.value = self._page(who)
        self._handle = self._handle or display(self._box, display_id=True)

    def _tabs(self, ipywidgets):
        children = []
        for host in sorted({host for host, _ in self._pages}):
            ranks = sorted(rank for at, rank in self._pages if at == host)
            tab = ipywidgets.Tab([self._pages[host, rank] for rank in ranks])
            tab.titles = [f"rank {rank}" for rank in ranks]
            tab.selected_index = 0
            children += [ipywidgets.HTML(f"<b>{escape(host)}</b>"), tab] if host else [tab]
        return children

    def _page(self, who):
        lines, count = self._lines[who], self._counts[who]
        left = f"... {count - len(lines):,} lines before\n" if count > len(lines) else ""
        return f"<pre style='{_STYLE}'>{left}{escape(chr(10).join(lines))}</pre>"

    def to_html(self) -> str:
        """A fold for each rank, under its host, with its last lines (500 at most)."""
        parts, last = [], ""
        for host, rank in sorted(self._lines):
            if host != last:
                parts.append(f"<b>{escape(host)}</b>")
            last, count = host, self._counts[host, rank]
            head = f"rank {rank}: {count:,} line{'s' * (count != 1)}"
            page = self._page((host, rank))
            parts.append(f"<details><summary>{head}</summary>{page}</details>")
        return f"<div class='tpv-ranks'>{''.join(parts)}</div>"

    def close(self) -> None:
        """The job has ended: put text in the place of the tabs, which need a running kernel."""
        from IPython.display import display

        if self._lines:
            bundle = {"text/html": self.to_html(), "text/plain": self._text()}
            if self._handle:
                self._handle.update(bundle, raw=True)
            else:
                display(bundle, raw=True)
        if self._box:
            for widget in (*self._pages.values(), *self._box.children, self._box):
                widget.close()

    def _text(self):
        return "\n".join(
            f"[rank {rank}{f' on {host}' if host else ''}] {line}"
            for host, rank in sorted(self._lines)
            for line in self._lines[host, rank]
        )
