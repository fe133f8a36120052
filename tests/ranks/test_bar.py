import io
import re
import sys
import types

from tpviz.ranks import bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_one_line_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    show = bar.viewer(None)
    show(1, 4, "first")
    show(4, 4, "")
    show(0, 0, "empty")
    show.close()
    frames = sys.stderr.getvalue().split("\r\x1b[K")[1:]
    assert frames[0].count("#") * 3 in range(frames[0].count(".") - 2, frames[0].count(".") + 3)
    assert frames[0].endswith("] 1/4 first")
    assert "." not in frames[1]
    assert "#" not in frames[2]
    assert frames[2].endswith("\n")


def test_silent_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for progress in (None, False):
        show = bar.viewer(progress)
        show(1, 4, "first")
        show.found(types.SimpleNamespace(_repr_html_=lambda: 1 / 0))  # is not even made
        show.close()
    assert sys.stderr.getvalue() == ""


def test_an_output_in_a_kernel_of_which_nothing_is_left(monkeypatch):
    import IPython.display

    shown = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(data["text/html"]))

    def display(data, raw, display_id):
        handle.update(data, raw)
        return handle

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", display)
    show = bar.viewer(None)
    show.close()
    assert shown == [], "a job that reports nothing shows nothing"
    show = bar.viewer(None)
    show(3, 4, "a < b")
    show.found(types.SimpleNamespace(_repr_html_=lambda: "<p>so far</p>"))
    show(4, 4, "last")
    show.close()
    first, found, last, nothing = shown
    assert found == f"{first}<p>so far</p>" and last.endswith("<p>so far</p>")
    assert "value='3' max='4'" in first and "3/4 a &lt; b</div>" in first
    assert "value='4' max='4'" in last and "4/4 last</div>" in last
    assert re.sub("<style>.*</style>|<[^>]*>", "", nothing) == ""
