"""Modules that are edited while ranks that have loaded them are alive."""

import os
import sysconfig
import types
from pathlib import Path

import pytest
import torch

import tpviz as tv
from tpviz.ranks import sources


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's own that a test may edit; only ranks load it."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "only_in_ranks.py"
    path.write_text("said = 'old'\n")
    return path


def loading():
    import only_in_ranks  # pyright: ignore[reportMissingImports]

    return only_in_ranks.said, os.getpid(), os.getppid()


def test_ranks_that_have_loaded_an_edited_module_are_replaced_with_a_line(module, capsys):
    first = tv.launch(loading, world_size=2)
    assert tv.launch(loading, world_size=2) == first, "as long as nothing is edited"
    module.write_text("said = 'new!'\n")
    second = tv.launch(loading, world_size=2)
    assert [said for said, *_ in first + second] == ["old", "old", "new!", "new!"]
    assert {server for *_, server in first} == {server for *_, server in second}
    line = "[tpviz] only_in_ranks.py changed since the ranks loaded it: starting new ranks\n"
    assert capsys.readouterr().out == line
    assert tv.launch(loading, world_size=2) == second


def test_a_module_edited_in_the_job_that_loads_it(module):
    def editing():
        found = loading()
        module.write_text("said = 'new!'\n")
        return found

    assert tv.launch(editing, world_size=1)[0][0] == "old"
    assert tv.launch(loading, world_size=1)[0][0] == "new!"


def test_a_module_that_is_gone_replaces_no_ranks(module):
    first = tv.launch(loading, world_size=1)
    module.unlink()
    assert tv.launch(loading, world_size=1) == first


def test_a_file_from_the_future_has_not_changed(module):
    os.utime(module, (2**32, 2**32))
    first = tv.launch(loading, world_size=1)
    assert tv.launch(loading, world_size=1) == first


def test_only_files_of_the_user_are_looked_at():
    assert sources.of_user(__file__)
    assert sources.of_user(f"{Path(tv.__file__).parent}_of_mine/model.py")
    libraries = types.__file__, torch.__file__, tv.__file__
    of_system = "/usr/local/lib/python3.12/dist-packages/torch/nn/functional.py"
    for path in (*libraries, of_system, "<frozen importlib._bootstrap>"):
        assert not sources.of_user(path)
    assert not sources.of_user(sysconfig.get_paths()["stdlib"] + "/json/decoder.py")
