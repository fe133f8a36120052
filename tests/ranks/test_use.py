"""Ranks on several hosts: two engines of this machine, which call their hosts alpha and beta."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import tpviz as tv
from tpviz.ranks.cluster import spread

ipyparallel = pytest.importorskip("ipyparallel")
pytestmark = pytest.mark.filterwarnings("ignore")  # of what ipyparallel imports


@pytest.fixture(scope="module")
def client():
    """A client of two engines, on one "host" each."""
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        client.wait_for_engines(2, timeout=60)
        for number, name in enumerate(("alpha", "beta")):
            _name(client, number, name)
        yield client


def _name(client, number, host):
    client[number].execute(f"import os; os.environ['TPVIZ_HOST'] = {host!r}", block=True)


@pytest.fixture
def hosts(client):
    tv.use(client)
    yield client
    tv.use(None)
    assert _ranks_of(client) == [], "no rank is left on any host"


def _ranks_of(client):
    """Processes of ranks that engines have, by the names of their output files."""
    engines = client[:].apply_sync(os.getpid)
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and "/ranks-" in os.readlink(entry / "fd/1"):
                parents = _parents(int(entry.name))
                found += [int(entry.name)] if parents & set(engines) else []
        except OSError:
            continue
    return found


def _parents(pid):
    found = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def _where():
    import torch.distributed as dist

    here = os.environ["TPVIZ_HOST"], os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
    return dist.get_rank(), *here


def _sum(n):
    import torch

    x = torch.ones(n)
    torch.distributed.all_reduce(x)
    return x.sum().item()


@pytest.mark.parametrize("world, hosts, counts", [(8, 2, [4, 4]), (5, 2, [3, 2]), (2, 3, [1, 1])])
def test_ranks_are_spread_evenly(world, hosts, counts):
    assert spread(world, hosts) == counts


def test_hosts_go_by_name_whichever_engine_came_first(client, capsys):
    _name(client, 0, "node10")
    _name(client, 1, "node9")
    try:
        assert [where[1] for where in tv.launch(_where, world_size=2, cluster=client)] == [
            "node9",
            "node10",
        ]
    finally:
        _name(client, 0, "alpha")
        _name(client, 1, "beta")
        tv.shutdown()


def test_ranks_are_numbered_by_host_and_add_up(hosts):
    assert tv.launch(_where, world_size=3) == [
        (0, "alpha", "0", "2"),
        (1, "alpha", "1", "2"),
        (2, "beta", "0", "1"),
    ]
    assert tv.launch(_sum, 3, world_size=4) == [12.0] * 4
    x = 2.0
    assert tv.launch(lambda y: x * y, 3, world_size=1) == [6.0], "one rank needs no other host"


def test_launch_may_name_the_cluster_and_else_takes_this_machine(client):
    assert [where[1] for where in tv.launch(_where, world_size=2, cluster=client)] == [
        "alpha",
        "beta",
    ]
    parents = tv.launch(lambda: os.environ.get("TPVIZ_HOST"), world_size=2)
    assert parents == [None, None]


def test_the_interface_is_said_and_hosts_see_the_world_on_it_alone(client, capsys):
    tv.shutdown()
    tv.use(client)
    said = capsys.readouterr().out
    assert "ranks run on alpha (engine 0, " in said and "beta (engine 1, " in said
    address = said.rpartition("they meet at ")[2].strip()
    ranks = tv.launch(_listening, world_size=4)
    tv.use(None)
    local = {entry for rank in ranks for entry in rank}
    assert local, "each rank listens for its peers"
    assert local == {address}, "and on no address but the chosen one"


def _listening():
    """IPv4 addresses on which this rank's sockets listen."""
    import psutil

    found = psutil.Process().net_connections(kind="inet")
    return [entry.laddr.ip.removeprefix("::ffff:") for entry in found if entry.status == "LISTEN"]


def test_lines_and_progress_come_back(hosts, capsys):
    def work():
        import torch.distributed as dist

        print("first\nsecond", end="")
        tv.progress(1, 2, "half")
        dist.barrier()

    seen = []
    tv.launch(work, world_size=4, progress=lambda *what: seen.append(what))
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("[rank 3 on beta] second") == 1
    assert lines.count("[rank 0 on alpha] first") == 1
    assert (1, 2, "half") in seen


def _fails(how):
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 2:
        how()
    dist.barrier()


def _raise():
    raise KeyError("lost")


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep():
    time.sleep(60)


FAULTS = [
    (_raise, tv.RankError, "rank 2 on beta raised KeyError: 'lost'"),
    (_die, tv.RankError, "rank 2 on beta was killed by SIGKILL"),
    (_sleep, tv.RankTimeoutError, "rank 2 on beta: left barrier #"),
    (exit, tv.RankError, "rank 2 on beta raised SystemExit"),
]


@pytest.mark.parametrize("how, kind, text", FAULTS)
def test_a_fault_names_rank_host_and_collective_and_the_next_launch_works(hosts, how, kind, text):
    tv.launch(_sum, 1, world_size=4)  # ranks have loaded what this file imports
    with pytest.raises(kind) as error:
        tv.launch(_fails, how, world_size=4, timeout=5)
    assert text in str(error.value)
    for other in ("rank 3 on beta", "on alpha", "in barrier #"):
        assert other in str(error.value)
    assert _ranks_of(hosts) == []
    assert tv.launch(_sum, 1, world_size=4) == [4.0] * 4


def test_a_certain_deadlock_is_told_across_hosts(hosts):
    def work():
        import torch.distributed as dist

        if dist.get_rank() != 2:
            dist.barrier()

    begun = time.monotonic()
    with pytest.raises(
        tv.RankTimeoutError, match="rank 2 on beta finished and never joins barrier"
    ):
        tv.launch(work, world_size=4, timeout=60)
    assert time.monotonic() - begun < 30


def test_an_interrupt_says_what_ranks_of_all_hosts_did(hosts):
    tv.launch(_sum, 1, world_size=4)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt, match="rank 2 on beta: left barrier #"):
        tv.launch(_fails, _sleep, world_size=4)
    assert tv.launch(_sum, 1, world_size=4) == [4.0] * 4


def test_a_rank_killed_between_calls_is_said(hosts, capsys):
    pids = tv.launch(os.getpid, world_size=4)
    os.kill(pids[3], signal.SIGKILL)
    time.sleep(0.2)
    assert tv.launch(_sum, 1, world_size=4) == [4.0] * 4
    assert "since the last call, rank 3 on beta was killed by SIGKILL" in capsys.readouterr().out


def test_a_caller_that_is_silent_leaves_no_ranks(hosts, monkeypatch):
    from tpviz.ranks import cluster

    monkeypatch.setattr(cluster, "_BEAT", 60.0)
    tv.launch(_sum, 1, world_size=2)
    assert len(_ranks_of(hosts)) == 2
    until = time.monotonic() + 30
    while _ranks_of(hosts) and time.monotonic() < until:
        time.sleep(0.2)
    assert _ranks_of(hosts) == []
    assert tv.launch(_sum, 1, world_size=2) == [2.0] * 2


def test_signs_of_life_keep_ranks_that_are_idle(hosts):
    from tpviz.ranks.engine import SILENCE

    pids = tv.launch(os.getpid, world_size=2)
    time.sleep(SILENCE + 1.5)
    assert tv.launch(os.getpid, world_size=2) == pids


def test_versions_that_differ_are_refused_by_host_and_value(client):
    client[1].execute("import tpviz; tpviz.__version__ = '0.0.9'", block=True)
    try:
        with pytest.raises(ValueError, match=r"tpviz 0.0.9 is on beta, but on alpha 0\.1\.0"):
            tv.use(client)
    finally:
        client[1].execute(f"tpviz.__version__ = {tv.__version__!r}", block=True)


def test_two_hosts_of_one_name_are_refused_and_two_engines_of_a_host_are_said(client, capsys):
    client[1].execute("os.environ['TPVIZ_HOST'] = 'alpha'", block=True)
    try:
        tv.use(client)
        assert "alpha has more engines, which stay unused: 1" in capsys.readouterr().out
        hosts_module = "tpviz.ranks.hosts"
        client[1].execute(
            f"import sys; sys.modules[{hosts_module!r}]._clock = lambda pid: 'ffff'", block=True
        )
        with pytest.raises(ValueError, match="two hosts of one name"):
            tv.use(client)
    finally:
        client[1].execute(
            "from importlib import reload; reload(sys.modules['tpviz.ranks.hosts'])", block=True
        )
        client[1].execute(
            "sys.modules['tpviz.ranks.examine'].host = sys.modules['tpviz.ranks.hosts'].host",
            block=True,
        )
        client[1].execute("os.environ['TPVIZ_HOST'] = 'beta'", block=True)
        tv.use(None)


def test_what_is_no_client_is_refused():
    with pytest.raises(ValueError, match=r"an ipyparallel\.Client or the name of .*, not 3"):
        tv.use(3)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(ImportError, match=r"pip install 'tpviz\[cluster\]'"):
        tv.use(object())
    tv.use(None)


def test_an_interface_that_is_not_there(client):
    with pytest.raises(ValueError, match="on nowhere0"):
        tv.use(client, interface="nowhere0")


def test_a_warm_call_asks_each_engine_three_times_and_waits_for_two(hosts, monkeypatch):
    """A look at the ranks, the job with its results, and its end, for which nobody waits."""
    from tpviz.ranks import cluster

    pids = tv.launch(os.getpid, world_size=4)
    asked, ask = [], cluster.ClusterEngine.ask
    monkeypatch.setattr(cluster, "_POLL", 5.0)  # a job that is slow for once is no other question

    def counted(self, function, *args):
        asked.extend([(self.name, function.__name__)] * (function.__name__ != "beat"))
        return ask(self, function, *args)

    monkeypatch.setattr(cluster.ClusterEngine, "ask", counted)
    for _ in range(3):
        assert tv.launch(os.getpid, world_size=4) == pids
        assert sorted(asked) == [
            (host, what)
            for host in ("alpha", "beta")
            for what in ("exchange", "exchange", "finish")
        ]
        asked.clear()


def test_verbs_know_nothing_of_it(hosts):
    gpt = tv.GPT(layers=1, hidden=16, heads=4, batch=2, seq=8)
    assert tv.verify(tv.Megatron(tp=2) * tv.DataParallel(dp=2), gpt).ok
    trace = tv.run(tv.Megatron(tp=4), gpt)
    assert [trace.meta["hosts"][rank][0] for rank in range(4)] == ["alpha", "alpha", "beta", "beta"]


def test_an_engine_that_stands_still_is_out_of_reach_and_its_ranks_end_when_it_goes_on(
    hosts, capsys
):
    tv.launch(_sum, 1, world_size=4)
    (engine,) = hosts[[1]].apply_sync(os.getpid)
    threading.Timer(1.0, os.kill, (engine, signal.SIGSTOP)).start()
    begun = time.monotonic()
    try:
        with pytest.raises(tv.RankError, match="rank 2 on beta is out of reach: engine 1 has not"):
            tv.launch(_fails, _sleep, world_size=4)
        assert time.monotonic() - begun < 1.0 + 10.0
        assert tv.launch(_sum, 1, world_size=2) == [2.0] * 2
        assert "ranks run on alpha (engine 0); without beta (engine 1" in capsys.readouterr().out
    finally:
        os.kill(engine, signal.SIGCONT)
    until = time.monotonic() + 10
    while len(_ranks_of(hosts)) > 2 and time.monotonic() < until:
        time.sleep(0.2)
    assert len(_ranks_of(hosts)) == 2, "those of the last launch"
    tv.shutdown()
    assert tv.launch(_where, world_size=2)[1][1] == "beta", "it is there again"


def test_an_engine_that_dies_is_named_and_others_go_on_without_it(hosts, capsys):
    tv.launch(_sum, 1, world_size=4)
    (engine,) = hosts[[1]].apply_sync(os.getpid)
    threading.Timer(1.0, os.kill, (engine, signal.SIGKILL)).start()
    begun = time.monotonic()
    with pytest.raises(tv.RankError, match="rank 2 on beta is "):
        tv.launch(_fails, _sleep, world_size=4)
    assert time.monotonic() - begun < 1.0 + 10.0
    assert tv.launch(_sum, 1, world_size=4) == [4.0] * 4
    assert "without beta (engine 1" in capsys.readouterr().out
    assert {where[1] for where in tv.launch(_where, world_size=4)} == {"alpha"}
    hosts.cluster.start_engines_sync(1)
    hosts.wait_for_engines(n=2, timeout=60)
    _name(hosts, max(hosts.ids), "beta")
    tv.shutdown()
    assert [where[1] for where in tv.launch(_where, world_size=2)] == ["alpha", "beta"]


@pytest.mark.slow
def test_a_breakpoint_and_variables_of_ranks_on_other_hosts(hosts, monkeypatch):
    from test_breakpoint import _fails, _stops, check_variables

    from tpviz.ranks.engine import SILENCE

    lines, prompts = ["p secret", "c"], []

    def read(prompt):
        prompts.append(prompt)
        time.sleep(SILENCE + 1 if len(prompts) == 1 else 0)  # nobody is taken for lost meanwhile
        return lines.pop(0)

    monkeypatch.setattr("builtins.input", read)
    assert tv.launch(_stops, 3, world_size=4, timeout=3) == [[60.0, 60.0]] * 4
    assert prompts == ["(rank 3) "] * 2
    with pytest.raises(tv.RankError) as caught:
        tv.launch(_fails, world_size=4)
    check_variables(caught.value, [1, 2, 3])
