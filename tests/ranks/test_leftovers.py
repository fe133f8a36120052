"""However the caller ends, neither a process nor a file of it stays behind."""

import os
import signal
from tempfile import TemporaryDirectory

import pytest
from process_watch import Script

import tpviz as tv

HANG = """
import os, signal, subprocess, sys, time
import tpviz as tv
def hang():
    import torch.distributed as dist
    subprocess.Popen(["sleep", "1000"])
    print("hanging", flush=True)
    if dist.get_rank() == 1:
        {rank_1}
    dist.barrier()
try:
    tv.launch(hang, timeout=None)
except KeyboardInterrupt:
    print("interrupted", tv.launch(os.getpid, world_size=2), flush=True)
"""


@pytest.fixture
def run():
    scripts = []

    def run(source):
        scripts.append(Script(source, folder))
        return scripts[-1]

    with TemporaryDirectory() as folder:  # tmp_path may be too long for the names of sockets
        yield run
        for script in scripts:
            script.end()


def hanging(run, rank_1="time.sleep(1000)"):
    script = run(HANG.format(rank_1=rank_1))
    for _ in range(4):
        script.wait_for("hanging")
    alive = script.alive()
    assert len(alive) >= 4 + 4 + 3, "ranks, sleeps, script, fork server, resource tracker"
    return script


GROUP = pytest.mark.parametrize("group", [False, True], ids=["process", "group"])


@GROUP
def test_an_interrupt_from_outside(run, group):
    script = hanging(run)
    script.signal(signal.SIGINT, group)
    assert "interrupted" in script.finish()
    assert script.process.returncode == 0
    assert script.left() == []


@GROUP
@pytest.mark.parametrize(
    "rank_1",
    ["time.sleep(1000)", "os.kill(os.getpid(), signal.SIGSTOP)"],
    ids=["waiting", "stopped"],
)
def test_a_killed_caller(run, rank_1, group):
    script = hanging(run, rank_1)
    script.signal(signal.SIGKILL, group)
    script.finish()
    assert script.left() == []


@pytest.mark.parametrize("end", ["tv.shutdown()", "pass"], ids=["no ranks", "idle ranks"])
def test_a_killed_caller_without_a_job(run, end):
    source = f"""
    import os, time
    import tpviz as tv
    tv.launch(os.getpid, world_size=2)
    {end}
    print("ready", flush=True)
    time.sleep(1000)
    """
    script = run(source)
    script.wait_for("ready")
    script.signal(signal.SIGKILL)
    script.finish()
    assert script.left() == []


def test_a_killed_caller_whose_fork_server_died_before(run):
    source = """
    import os, time
    import tpviz as tv
    print("server", tv.launch(os.getppid, world_size=2)[0], flush=True)
    time.sleep(1000)
    """
    script = run(source)
    os.kill(int(script.wait_for("server").split()[1]), signal.SIGKILL)
    script.signal(signal.SIGKILL)
    script.finish()
    assert script.left() == []


def test_a_job_that_ends_after_its_caller_was_killed(run):
    """No rank may exit before it has cleaned up, here slowly and with the fork server out."""
    source = """
    import os, shutil, subprocess, time
    import tpviz as tv
    def late(caller):
        rmtree = shutil.rmtree
        shutil.rmtree = lambda *args, **options: (time.sleep(0.5), rmtree(*args, **options))
        subprocess.Popen(["sleep", "1000"])
        print("server", os.getppid(), flush=True)
        while os.path.exists(f"/proc/{caller}/exe"):  # a zombie has none
            time.sleep(0.01)
    tv.launch(late, os.getpid(), world_size=2)
    """
    script = run(source)
    server = int(script.wait_for("server").split()[-1])
    script.wait_for("server")
    os.kill(server, signal.SIGSTOP)
    script.signal(signal.SIGKILL)
    os.kill(server, signal.SIGKILL)
    script.finish()
    assert script.left() == []


def test_a_caller_killed_while_its_fork_server_imports_torch(run):
    source = """
    import os, threading, time
    import tpviz as tv
    from multiprocessing import forkserver
    threading.Thread(target=tv.launch, args=(os.getpid,), daemon=True).start()
    while forkserver._forkserver._forkserver_pid is None:
        time.sleep(0.001)
    print("forking", flush=True)
    time.sleep(1000)
    """
    script = run(source)
    script.wait_for("forking")
    script.signal(signal.SIGKILL)
    script.finish()
    assert script.left() == []


def test_an_emulated_start_that_one_rank_never_joins(run):
    source = """
    import os, tempfile
    import tpviz as tv
    def missing():
        import torch.distributed as dist
        if dist.get_rank() == 1:
            os.kill(os.getpid(), 9)
        with tv.record(cluster=tv.clusters.nvlink_pairs(pairs=2)) as rec, rec.step():
            dist.barrier()
    try:
        tv.launch(missing, world_size=4)
    except tv.RankError:
        print([name for name in os.listdir(tempfile.gettempdir()) if "pace" in name])
    """
    script = run(source)
    assert script.finish() == "[]\n"
    assert script.left() == []


def test_a_caller_that_ends_normally(run):
    source = """
    import multiprocessing
    import tpviz as tv
    def lock():
        multiprocessing.current_process().lock = multiprocessing.RLock()
    tv.launch(lock)
    print("done")
    """
    script = run(source)
    assert script.finish() == "done\n", "no warning of leaked semaphores either"
    assert script.left() == []


def test_programs_that_have_ended_leave_no_threads_in_the_ranks():
    w = tv.GPT(layers=1, hidden=16, heads=4, seq=8, batch=8, vocab=32)
    threads = lambda: max(tv.launch(_threads, world_size=4))
    before = threads()
    for grid in ({"x": 2, "z": 2}, {"x": 1, "z": 4}, {"x": 2, "y": 2, "z": 1}):
        tv.verify(tv.AxoNN(**grid), w, steps=1)  # keeps outputs, which a graph leads from
    assert threads() <= before


def _threads():
    return len(os.listdir("/proc/self/task"))
