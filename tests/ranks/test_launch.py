"""`tpviz.launch` when nothing goes wrong."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import tpviz as tv
from tpviz.ranks.launch import RankError


def test_results_come_in_rank_order_from_a_real_group():
    def work(n, scale):
        import torch
        import torch.distributed as dist

        from tpviz.ranks.backend import is_recorded

        x = torch.full((n,), float(dist.get_rank()))
        dist.all_reduce(x)
        recorded = is_recorded()
        return dist.get_rank(), scale * x.sum().item(), torch.get_num_threads(), recorded

    results = tv.launch(work, 3, world_size=4, scale=2)
    assert results == [(rank, 36.0, 1, True) for rank in range(4)]


def test_a_function_of_a_notebook_cell_travels_with_what_it_uses():
    cell = {"__name__": "__main__"}
    source = """
    FACTOR = 10
    class Point:
        def __init__(self, x):
            self.x = x
    def helper(point):
        return Point(FACTOR * point.x)
    def work(point):
        return helper(point)
    """
    exec(textwrap.dedent(source), cell)
    results = tv.launch(cell["work"], cell["Point"](4), world_size=2)
    assert [type(result) for result in results] == [cell["Point"]] * 2
    assert [result.x for result in results] == [40, 40]


def test_a_pool_of_each_size_is_kept_as_far_as_there_is_room(monkeypatch):
    def alive(pids):
        return {os.path.exists(f"/proc/{pid}") for pid in pids}

    tv.shutdown()
    monkeypatch.setenv("TPVIZ_MAX_RANKS", "6")
    two, three = tv.launch(os.getpid, world_size=2), tv.launch(os.getpid, world_size=3)
    assert tv.launch(os.getpid, world_size=2) == two and not set(two) & set(three)
    plain = tv.launch(os.getpid, world_size=2, backend="gloo")  # 7 in all: the three go
    assert alive(three) == {False} and alive(two) == alive(plain) == {True}
    assert tv.launch(os.getpid, world_size=2) == two and not set(two) & set(plain)
    all = tv.launch(os.getpid, world_size=6)
    assert alive(two) == alive(plain) == {False} and alive(all) == {True}
    tv.shutdown()
    assert alive(all) == {False}


def test_ranks_that_fail_leave_other_sizes_alone():
    two = tv.launch(os.getpid, world_size=2)
    with pytest.raises(RankError):
        tv.launch(sys.exit, world_size=3)
    assert tv.launch(os.getpid, world_size=2) == two


def test_ranks_follow_the_environment_path_and_directory(tmp_path, monkeypatch):
    def seen():
        return os.environ.get("TPVIZ_TEST_A"), os.getcwd(), sys.path[0]

    before = tv.launch(seen, world_size=2)
    assert before == [(None, os.getcwd(), sys.path[0])] * 2
    with monkeypatch.context() as patch:
        patch.setenv("TPVIZ_TEST_A", "1")
        patch.chdir(tmp_path)
        patch.syspath_prepend(tmp_path)
        assert tv.launch(seen, world_size=2) == [("1", str(tmp_path), str(tmp_path))] * 2
    assert tv.launch(seen, world_size=2) == before


def test_ranks_have_torchruns_variables():
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"
    results = tv.launch(lambda: [os.environ[name] for name in names], world_size=2)
    assert results == [["0", "2", "0", "2", "1"], ["1", "2", "1", "2", "1"]]


def test_prints_are_labelled_line_by_line(capfd):
    def talk(rank_that_talks):
        import torch.distributed as dist

        if dist.get_rank() == rank_that_talks:
            print("one\ntwo")
            print("three", file=sys.stderr)
            os.write(1, b"10%\r100%\n")
            print("no end", end="")

    tv.launch(talk, 1, world_size=2)
    lines = [f"[rank 1] {text}\n" for text in ("one", "two", "three", "100%", "no end")]
    assert capfd.readouterr().out == "".join(lines)
    tv.launch(talk, 5, world_size=2)
    assert capfd.readouterr().out == ""


def test_a_great_many_prints_arrive_whole(capsys):
    def talk():
        for number in range(9_000):
            print(f"{number:0100d}")

    for _ in range(3):  # less than is cut in each; the file is emptied before the third
        tv.launch(talk, world_size=1)
        lines = capsys.readouterr().out.splitlines()
        assert lines == [f"[rank 0] {number:0100d}" for number in range(9_000)]


def test_stdin_is_closed():
    assert tv.launch(lambda: sys.stdin.read(), world_size=1) == [""]


def test_large_arguments_and_results():
    import numpy as np

    data = np.arange(3_000_000)
    results = tv.launch(lambda x: x + 1, data, world_size=2)
    assert all((result == data + 1).all() for result in results)


def test_groups_end_with_the_job_that_made_them():
    def work():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dist.barrier(group=mesh["tp"].get_group())
        pid = os.getpid()
        return pid, len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    first = tv.launch(work)
    assert tv.launch(work) == first
    assert tv.launch(work) == first
    until = time.monotonic() + 10  # nobody has to ask these ranks for anything else
    while any(len(os.listdir(f"/proc/{pid}/task")) >= threads for pid, _, threads in first):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_launch_from_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(tv.launch(os.getpid, world_size=2)))
    thread.start()
    thread.join()
    assert tv.launch(os.getpid, world_size=2) == results[0]


def test_launches_of_two_threads_wait_for_each_other():
    def work(n):
        import torch
        import torch.distributed as dist

        x = torch.tensor([n])
        dist.all_reduce(x)
        return x.item()

    results = {}
    threads = [
        threading.Thread(target=lambda n=n: results.update({n: tv.launch(work, n, world_size=2)}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [2 * n, 2 * n] for n in range(4)}


def test_progress_of_rank_0_reaches_the_caller():
    def work():
        import torch.distributed as dist

        tv.progress(0, 4, f"rank {dist.get_rank()}")
        tv.progress(4, 4)

    seen = []
    tv.shutdown()
    tv.launch(work, world_size=2, progress=lambda *report: seen.append(report))
    assert seen == [(0, 2, "starting 2 ranks"), (0, 4, "rank 0"), (4, 4, "")]
    tv.launch(work, world_size=2, progress=False)
    tv.progress(1, 2, "outside of a rank this does nothing")


def test_launch_inside_a_progress_report_is_refused():
    with pytest.raises(RuntimeError, match="while showing the progress of another"):
        tv.launch(
            lambda: tv.progress(1, 1),
            world_size=1,
            progress=lambda *_: tv.launch(os.getpid, world_size=1),
        )
    assert len(tv.launch(os.getpid, world_size=2)) == 2


def test_the_server_loads_torch_while_its_caller_does(monkeypatch):
    import torch  # noqa: F401

    from tpviz.ranks import launch

    started = []
    monkeypatch.setattr(launch, "start_server", lambda: started.append("server"))
    tv.__getattr__("run")
    assert not started  # torch is here, so ranks would start no sooner
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        for name in ("GPT", "predict", "simulate", "launch", "explore"):
            tv.__getattr__(name)
        assert not started
        tv.__getattr__("run")
    assert started == ["server"]


def test_what_keeps_the_server_from_an_early_start_is_left_to_launch(monkeypatch):
    from tpviz.ranks import launch

    def ensure():
        tried.append(sys.modules["__main__"].__dict__.get("__file__"))
        raise RuntimeError("too long")

    tried = []
    monkeypatch.setattr(launch.server, "ensure", ensure)
    launch.start_server()
    assert tried == [None]  # the user's script is hidden, as from every process started here
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "2")
    launch.start_server()
    assert len(tried) == 1  # in a torchrun world there are ranks already


def test_restart_replaces_the_server_and_shows_edited_modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "edited_by_test.py"
    module.write_text("import os\ndef work():\n    return 'old', os.getppid()\n")
    import edited_by_test

    ((old, server),) = tv.launch(edited_by_test.work, world_size=1)
    module.write_text("import os\ndef work():\n    return 'edited', os.getppid()\n")
    ((new, same_server),) = tv.launch(edited_by_test.work, world_size=1)
    tv.restart()
    ((still_new, new_server),) = tv.launch(edited_by_test.work, world_size=1)
    assert (old, new, still_new) == ("old", "edited", "edited")
    assert server == same_server != new_server
    assert not os.path.exists(f"/proc/{server}")


def test_ranks_share_what_is_large():
    """What a rank imports by itself costs memory and time in each: only our small modules."""
    script = """
    import subprocess, sys
    import tpviz as tv
    def loaded():
        return set(sys.modules)
    def mean(x):
        import torch.distributed as dist
        dist.all_reduce(x)
        return x / dist.get_world_size()
    preloaded = tv.launch(loaded, world_size=2)[0]
    from multiprocessing import forkserver
    names = ", ".join(forkserver._forkserver._preload_modules)
    server = f"import sys, multiprocessing.forkserver, {names}; print(*sys.modules)"
    of_server = subprocess.check_output([sys.executable, "-c", server], text=True).split()
    print("imported by a new rank:", preloaded - set(of_server))
    assert tv.check("mean_over_ranks", mean).passed
    tv.verify(tv.Merak(pp=2), tv.GPT(), progress=False)
    tv.run(tv.AxoNN(x=2), tv.GPT(), progress=False)
    own = [name for name in tv.launch(loaded, world_size=2)[0] - preloaded
           if not name.startswith("tpviz")]
    print("torch._dynamo" in preloaded, len(own) <= 25, {"IPython", "sympy", "plotly"} & set(own))
    """
    assert run_script(script) == "imported by a new rank: set()\nTrue True set()\n"


def test_a_forked_child_starts_its_own_ranks_and_leaves_ours_alone():
    script = """
    import os, tpviz as tv
    first = tv.launch(os.getpid, world_size=2)
    child = os.fork()
    if child == 0:
        assert not set(tv.launch(os.getpid, world_size=2)) & set(first)
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert tv.launch(os.getpid, world_size=2) == first
    print("well")
    """
    assert run_script(script) == "well\n"


def test_a_script_is_not_run_again_by_its_ranks(tmp_path):
    script = """
    import sys
    print("script", flush=True)  # without the usual __main__ guard
    import tpviz as tv
    assert "torch" not in sys.modules
    def work():
        return "torch" in sys.modules
    print(tv.launch(work, world_size=2))
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert done.stdout == "script\n[True, True]\n"


def run_script(source):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True
    )
    return done.stdout
