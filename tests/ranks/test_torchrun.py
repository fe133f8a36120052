"""`tpviz.launch` inside worlds that torchrun really starts."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest

import tpviz as tv

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
SCRIPT = """
import os
import tpviz as tv

def work(n):
    import torch
    import torch.distributed as dist
    from tpviz.ranks.backend import is_recorded
    x = torch.full((n,), dist.get_rank() + 1)
    dist.all_reduce(x)
    tv.progress(1, 1)
    return dist.get_rank(), x.tolist(), is_recorded()

first = tv.launch(work, 2, progress=lambda *report: print(f"progress {report}", flush=True))
second = tv.launch(work, 1, world_size=4)
expected = [[(rank, [10] * n, True) for rank in range(4)] for n in (2, 1)]
good = [first, second] == expected
line = f"rank {os.environ['RANK']} of node {os.environ['GROUP_RANK']}: {good}\\n"
os.write(1, line.encode())  # in one piece: ranks share the pipe, and print writes two
"""


@pytest.fixture
def write(tmp_path):
    def write(source):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write


def start(*arguments):
    return subprocess.Popen(
        [*TORCHRUN, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(*processes):
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    return [process.returncode for process in processes], outputs


def test_four_processes_of_one_node(write):
    codes, (output,) = finish(start("--standalone", "--nproc-per-node", 4, write(SCRIPT)))
    assert codes == [0], output
    lines = [line for line in output.splitlines() if line.startswith("rank")]
    assert sorted(lines) == [f"rank {rank} of node 0: True" for rank in range(4)]
    assert output.count("progress (1, 1, '')") == 1, "rank 0 speaks for all"


def test_two_nodes_on_loopback(write):
    script = write(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes = ["--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1"]
    nodes += ["--master-port", port]
    codes, outputs = finish(*(start(*nodes, "--node-rank", node, script) for node in (0, 1)))
    assert codes == [0, 0], "\n".join(outputs)
    for node, output in enumerate(outputs):
        lines = sorted(line for line in output.splitlines() if line.startswith("rank"))
        ranks = (0, 1) if node == 0 else (2, 3)
        assert lines == [f"rank {rank} of node {node}: True" for rank in ranks]


def test_bad_sizes_nesting_and_a_group_of_the_script(write):
    script = """
    import torch.distributed as dist
    import tpviz as tv

    dist.init_process_group("gloo")
    from tpviz.ranks.backend import is_recorded
    assert tv.launch(dist.get_backend) == ["gloo"] * 2
    assert tv.launch(is_recorded) == [True] * 2 and not is_recorded()
    assert tv.launch(is_recorded, backend="gloo") == [False] * 2
    for arguments in [{"world_size": 3}, {"timeout": -1}]:
        try:
            tv.launch(dist.get_rank, **arguments)
        except ValueError as error:
            print(error, flush=True)
    try:
        tv.launch(lambda: tv.launch(dist.get_rank))
    except tv.RankError as error:
        print(error, flush=True)
    assert tv.launch(dist.get_rank, world_size=2) == [0, 1]
    dist.destroy_process_group()
    """
    codes, (output,) = finish(start("--standalone", "--nproc-per-node", 2, write(script)))
    assert codes == [0], output
    for message in [
        "world_size=3, but torchrun started 2 ranks; leave world_size out, use 2, or run torchrun",
        "timeout=-1; use a number of seconds",
    ]:
        assert output.count(message) == 2
    for rank in range(2):
        assert f"rank {rank} raised RuntimeError: launch was called inside rank {rank}" in output


def test_a_rank_that_raises_ends_the_world(write):
    script = """
    import os
    import tpviz as tv

    def work():
        import torch.distributed as dist
        if dist.get_rank() == 1:
            raise KeyError("no such weight")
        dist.barrier()

    tv.launch(work)
    """
    codes, (output,) = finish(start("--standalone", "--nproc-per-node", 2, write(script)))
    assert codes == [1]
    assert "RankError: rank 1 raised KeyError: 'no such weight'" in output


def test_variables_alone_make_no_world(monkeypatch):
    """Of a kernel that others start with torchrun's variables, and of a world of one."""
    from tpviz.ranks import launch

    tv.launch(os.getpid, world_size=2)  # ranks that are there have their own variables too

    def world(size, kernel):
        monkeypatch.setattr(launch, "in_notebook", lambda: kernel)
        for name, value in (("RANK", "0"), ("WORLD_SIZE", size), ("MASTER_ADDR", "localhost")):
            monkeypatch.setenv(name, value)
        return launch.in_torchrun()

    assert world("2", kernel=False)
    assert not world("2", kernel=True)
    assert not world("1", kernel=False) and not world("many", kernel=False)
    world("1", kernel=False)
    ranks = tv.launch(lambda: [os.environ[n] for n in ("RANK", "WORLD_SIZE")], world_size=2)
    assert ranks == [["0", "2"], ["1", "2"]]


def test_a_launcher_that_says_too_little_is_told_so(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "3")
    with pytest.raises(ValueError, match="but LOCAL_RANK and LOCAL_WORLD_SIZE are not set: start"):
        tv.launch(os.getpid)
