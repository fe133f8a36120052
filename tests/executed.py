"""Notebooks as nbval ran them, with their outputs and their widgets' state.

Browser tests look at executed notebooks, and running one takes longer than looking at it: what
nbval has run in this session is used again.
"""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbval.plugin import IPyNbCell

SHOWN = ("display_data", "execute_result", "stream", "update_display_data", "clear_output", "comm")


class Recorder:
    """A plugin of pytest: writes each notebook whose cells have all passed."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        if not isinstance(item, IPyNbCell):
            return (yield)
        notebook = item.parent
        if not hasattr(notebook, "recording"):
            notebook.recording = Recording(notebook)
        notebook.recording.cell = item.cell_num
        result = yield  # raises where the cell fails: then nothing is written
        notebook.recording.passed(folder(item.config._tmp_path_factory))
        return result


class Recording:
    """Hears what nbval hears; nbclient puts it where it belongs: outputs, displays, widgets."""

    def __init__(self, notebook):
        self.name, self.cell, self.get = notebook.path.name, 0, notebook.get_kernel_message
        self.client = NotebookClient(nbformat.read(notebook.path, as_version=4))
        self.client.reset_execution_trackers()
        self.client.clear_before_next_output = False
        self.cells = [cell for cell in self.client.nb.cells if cell.cell_type == "code"]
        self.left = len(self.cells)
        notebook.get_kernel_message = self._hear

    def _hear(self, *args, **named):
        message = self.get(*args, **named)
        if message["msg_type"].startswith(SHOWN):
            cell = self.cells[self.cell]
            self.client.process_message(message, cell, self.client.nb.cells.index(cell))
        return message

    def passed(self, folder):
        """One more cell; the last writes the notebook, at once and whole."""
        self.left -= 1
        if not self.left:
            self.client.set_widgets_metadata()
            nbformat.write(self.client.nb, folder / f"{self.name}.part")
            (folder / f"{self.name}.part").rename(folder / self.name)


def folder(tmp_path_factory) -> Path:
    """The folder that all processes of a session share."""
    base = tmp_path_factory.getbasetemp()
    found = (base.parent if base.name.startswith("popen-") else base) / "executed"
    found.mkdir(exist_ok=True)
    return found


def executed(path, tmp_path_factory):
    """The notebook with its outputs, as after ``nbconvert --execute``; raises a cell's error."""
    known = folder(tmp_path_factory) / path.name
    if known.exists():
        return nbformat.read(known, as_version=4)
    return run(nbformat.read(path, as_version=4), path.parent)


def run(notebook, folder):
    """The same of a notebook that is no file yet, with ``folder`` as its working directory."""
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=120, resources=resources).execute()
