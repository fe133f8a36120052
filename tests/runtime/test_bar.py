import io
import sys
import types

from tpviz.runtime import bar


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
        show.close()
    assert sys.stderr.getvalue() == ""


def test_a_widget_in_a_kernel(monkeypatch):
    import IPython.display

    shown = []
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    show = bar.viewer(None)
    show.close()
    assert shown == [], "a job that reports nothing shows nothing"
    show = bar.viewer(None)
    show(3, 4, "step")
    show(4, 4, "last")
    (box,) = shown
    progress, label = box.children
    assert (progress.value, progress.max, progress.description) == (4, 4, "4/4")
    assert label.value == "last"
    show.close()
