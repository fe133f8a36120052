"""A full disk for temporary files: it is named with its free bytes, and the caller lives on."""

import errno
import os
import shutil
import signal
import tempfile

import pytest

import tpviz as tv
from tpviz.ranks import server
from tpviz.ranks.board import Board
from tpviz.ranks.places import Places

SAID = r"has [\d,]+ bytes free, and ranks need [\d,]+ there .*set TMPDIR to another folder"


@pytest.fixture
def fills(monkeypatch):
    """A function after which the disk has less room than ranks need."""
    yield lambda: monkeypatch.setattr(server, "_ROOM", 2 * shutil.disk_usage("/").total + 2**60)
    monkeypatch.undo()
    tv.shutdown()


def test_no_ranks_start_on_a_full_disk(fills):
    tv.shutdown()
    fills()
    with pytest.raises(RuntimeError, match=f"^{tempfile.gettempdir()} {SAID}"):
        tv.launch(os.getpid, world_size=1)


def raising():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def dying():
    os.kill(os.getpid(), signal.SIGBUS)


@pytest.mark.parametrize(
    "work, how", [(raising, "raised OSError"), (dying, "was killed by SIGBUS")]
)
def test_a_disk_that_fills_up_is_named_first(fills, work, how):
    tv.launch(os.getpid, world_size=1)
    fills()
    with pytest.raises(tv.RankError, match=rf"^{tempfile.gettempdir()} {SAID}.*: rank 0 {how}"):
        tv.launch(work, world_size=1)


def test_a_full_disk_is_not_blamed_for_another_failure(fills):
    tv.launch(os.getpid, world_size=1)
    fills()
    with pytest.raises(tv.RankError, match=r"^rank 0 raised ZeroDivisionError"):
        tv.launch(lambda: 1 / 0, world_size=1)


@pytest.mark.parametrize("kind", [Board, Places])
def test_a_mapped_file_has_its_room_from_the_start(tmp_path, kind):
    """Where there is none, looking at it would be a SIGBUS, in a notebook's kernel too."""
    kind(tmp_path / "file", 16).close()
    found = (tmp_path / "file").stat()
    assert found.st_blocks * 512 >= found.st_size >= 16 * 256
