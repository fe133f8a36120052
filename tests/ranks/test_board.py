from pathlib import Path

from tpviz.ranks import board
from tpviz.ranks.board import Board, spoken


def test_a_rank_writes_its_own_slot_only(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "_slot", None)
    parent = Board(tmp_path / "board", 3)
    board.write("nobody is attached: this goes nowhere")
    assert [parent.read(rank)[0] for rank in range(3)] == ["", "", ""]
    board.attach(tmp_path / "board", 1)
    board.write("a much longer text, of which nothing may be left")
    board.write("short")
    text, age = parent.read(1)
    assert text == "short"
    assert 0 <= age < 60
    assert parent.read(0) == parent.read(2) == ("", float("inf"))


def test_long_text_is_cut_and_stays_readable(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "_slot", None)
    parent = Board(tmp_path / "board", 2)
    board.attach(tmp_path / "board", 0)
    board.write("x" + "é" * 500)
    text, _ = parent.read(0)
    assert text.startswith("xé")
    assert set(text[1:]) == {"é"}
    assert len(text.encode()) > board.SLOT - 16
    assert parent.read(1) == ("", float("inf"))


def test_a_rank_that_has_finished_says_what_came_last(tmp_path, monkeypatch):
    monkeypatch.setattr(board, "_slot", None)
    board.finish()
    parent = Board(tmp_path / "board", 1)
    board.attach(tmp_path / "board", 0)
    board.write("left send #0 on axis world (ranks 0,1), 8 bytes")
    board.finish()
    assert parent.read(0)[0] == "finished after left send #0 on axis world (ranks 0,1), 8 bytes"


def test_torn_bytes_are_tolerated(tmp_path):
    path = Path(tmp_path / "board")
    parent = Board(path, 1)
    path.write_bytes(b"\x01" * 8 + b"ok\xff\xfe" + b"\0" * (board.SLOT - 12))
    assert parent.read(0)[0] == "ok"


def test_spoken():
    assert spoken("", float("inf")) == "starting"
    collective = "all_reduce #3 on axis tp (ranks 0,1), 64 bytes"
    assert spoken(f"waiting in {collective}", 5.04) == f"waiting 5.0 s in {collective}"
    assert spoken(f"issuing {collective}", 2) == f"issued {collective} 2.0 s ago"
    assert spoken(f"left {collective}", 2) == f"left {collective} 2.0 s ago"
    assert spoken(f"finished after left {collective}", 2) == "finished 2.0 s ago"
    running = "no collective, running user code for 1.0 s"
    assert spoken("running user code", 1) == running
