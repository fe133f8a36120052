"""An interrupt, wherever it hits, leaves a process in which the next launch works."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch.distributed as dist
from process_watch import Script

import tpviz as tv
from tpviz.ranks.rank_errors import Interrupted

STRESS = Path(__file__).parents[2] / "bench" / "stress_interrupts.py"

# The caller interrupts itself where a rank has been forked and its process id is not yet known,
# and waits there for what that does.
BETWEEN = """
import os, signal, time
from multiprocessing import popen_forkserver, util
import tpviz as tv
tv.launch(os.getpid, world_size=4)
folder, read = util.get_temp_dir(), popen_forkserver.forkserver.read_signed
for at in (1, 2, 4):
    tv.shutdown()
    seen = []
    def interrupted(descriptor):
        seen.append(descriptor)
        if len(seen) == at:
            {interrupt}
        return read(descriptor)
    popen_forkserver.forkserver.read_signed = interrupted
    try:
        tv.launch(os.getpid, world_size=4)
        print("not interrupted")
    except KeyboardInterrupt as error:
        assert str(error) == "stopped while no rank was running", error
    popen_forkserver.forkserver.read_signed = read
    assert len(tv.launch(os.getpid, world_size=3)) == 3
    assert os.path.isdir(folder)
print("survived")
"""

IMPORT = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and self in sys.meta_path:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
import tpviz as tv
try:
    {use}
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
import torch
from tpviz import run
print(torch.ones(2).sum().item(), run is tv.run)
"""

GONE = """
import os, shutil
from multiprocessing import util
import tpviz as tv
from tpviz.ranks import server
tv.launch(os.getpid, world_size=2)
shutil.rmtree(util.get_temp_dir())
print(len(tv.launch(os.getpid, world_size=3)))
shutil.rmtree(server.home())
print(len(tv.launch(os.getpid, world_size=3)))
shutil.rmtree(util.get_temp_dir())
tv.restart()
print(len(tv.launch(os.getpid, world_size=2)))
"""

# Ctrl-C reaches the whole process group: also the fork server, until it has left the group.
GROUP = """
import os, signal, threading, time
import tpviz as tv
for moment in (0.02, 0.05, 0.12):
    tv.restart()
    threading.Timer(moment, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
    try:
        tv.launch(os.getpid, world_size=2)
        time.sleep(1)
    except KeyboardInterrupt:
        pass
    assert len(tv.launch(os.getpid, world_size=2)) == 2
print("survived")
"""


@pytest.fixture
def run():
    with TemporaryDirectory() as folder:  # tmp_path may be too long for the names of sockets
        scripts = []

        def run(source):
            scripts.append(Script(source, folder))
            output = scripts[-1].finish()
            assert scripts[-1].process.returncode == 0, output
            assert scripts[-1].left() == []
            return output.split()

        yield run
        for script in scripts:
            script.end()


@pytest.mark.parametrize(
    "interrupt",
    ["os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1)", "raise KeyboardInterrupt"],
    ids=["signal", "raised"],
)
def test_an_interrupt_between_a_fork_and_its_process_id(run, interrupt):
    """Raised, it leaves a rank that nobody knows, whose folder is gone: nothing is heard of it."""
    assert run(BETWEEN.replace("{interrupt}", interrupt)) == ["survived"]


@pytest.mark.parametrize(
    "module, use", [("torch._C", "tv.run"), ("torch.distributed", "from tpviz import verify")]
)
def test_an_interrupt_of_the_first_import_of_torch(run, module, use):
    assert run(IMPORT.format(module=module, use=use)) == ["interrupted", "2.0", "True"]


def test_interrupts_of_the_whole_process_group_show_nothing_of_the_fork_server(run):
    assert run(GROUP) == ["survived"]


class Interrupting:
    """An object that is interrupted when it is pickled, or in the caller when it comes back."""

    def __init__(self, when):
        self.when = when

    def __getstate__(self):
        if self.when == "sent":
            raise KeyboardInterrupt
        return {"when": self.when, "home": os.getpid()}

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.when == "returned" and state["home"] != os.getpid() and not dist.is_initialized():
            raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["sent", "returned"])
def test_an_interrupt_before_and_after_the_ranks_work_is_a_line_too(when):
    with pytest.raises(Interrupted, match="no rank was running"):
        tv.launch(lambda given: given, Interrupting(when), world_size=2)


def test_temporary_files_that_somebody_removes(run):
    assert run(GONE) == ["3", "3", "2"]


def test_interrupts_at_random_moments_of_a_script_and_of_a_kernel():
    """`bench/stress_interrupts.py` does this two thousand times; the last may be one of a pair."""
    done = subprocess.run([sys.executable, STRESS, "5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("[56] tried", done.stdout)) == 2
