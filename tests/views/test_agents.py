"""``tpviz mcp``, asked by a client of the mcp package over standard input and output."""

import json
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from process_watch import alive

import tpviz as tv
from tpviz.verbs import written

SMALL = "layers=1, hidden=16, heads=4, seq=8, batch=4, vocab=32"


@asynccontextmanager
async def server(mark="", program=("-m", "tpviz", "mcp"), errlog=sys.stderr):
    """A client of a server in a process of its own."""
    of = StdioServerParameters(
        command=sys.executable, args=[*program], env={"TPVIZ_TEST_MARK": mark}
    )
    with open(os.devnull, "w") as nowhere:
        async with Client(stdio_client(of, nowhere)) as client:
            yield client


def run(ask):
    """What a coroutine gives, in a thread of its own: browsers leave a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, ask).result()


def asked(*calls, **of_server):
    """What a server answers to each call (tool, arguments): (its result or None, its error)."""

    async def ask():
        answers = []
        async with server(**of_server) as client:
            for tool, arguments in calls:
                answer = await client.call_tool(tool, arguments)
                text = "".join(part.text for part in answer.content)
                if not answer.is_error:
                    assert json.loads(text) == answer.structured_content
                answers.append((None, text) if answer.is_error else (json.loads(text), ""))
        return answers

    return run(ask)


def marked(mark):
    """Commands of processes whose environment has the mark, but for the one in which Python itself
    keeps track of resources while a program runs."""
    return [
        line for line in alive(mark).values() if b"multiprocessing.resource_tracker" not in line
    ]


def gone(mark, seconds=10.0):
    """Whether no process with the mark is left, or soon none."""
    end = time.monotonic() + seconds
    while left := marked(mark):
        if time.monotonic() > end:
            return left
        time.sleep(0.05)
    return left


def test_tools_say_what_they_take_and_give():
    async def look():
        async with server() as client:
            return (await client.list_tools()).tools, client.instructions

    tools, said = run(look)
    assert [tool.name for tool in tools] == ["predict", "search", "verify", "ledger"]
    for name in ("Megatron", "Experts", "llama3", "nvlink_pairs"):
        assert name in said
    for tool in tools:
        schema = tool.input_schema
        assert schema["additionalProperties"] is False
        assert all("description" in one for one in schema["properties"].values()), tool.name
        assert tool.output_schema["properties"]
        assert tool.annotations.read_only_hint == (tool.name != "verify")
    asking = tools[2].input_schema["properties"]["start_ranks"]
    assert asking["type"] == "boolean" and asking["default"] is False


def test_predict_is_the_same_as_in_python():
    plan, sizes = tv.Megatron(tp=4) * tv.DataParallel(dp=4, zero=1), {"seq": 2048, "batch": 16}
    larger = tv.GPT(layers=40, hidden=6144, heads=48, vocab=50304, dtype="bfloat16", **sizes)
    words = "layers=40, hidden=6144, heads=48, vocab=50304, dtype='bfloat16', seq=2048, batch=16"
    small = tv.GPT(layers=1, hidden=16, heads=4, seq=8, batch=4, vocab=32)
    real = tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", 16))
    asks = [
        (small, tv.clusters.nvlink_pairs(pairs=8), "predicted", SMALL, "nvlink_pairs(pairs=8)"),
        (small, real, "predicted", SMALL, "as_run_by(dgx('H100-SXM-80GB', 16))"),
        (larger, real, "fitted", words, "as_run_by(dgx('H100-SXM-80GB', 16))"),
    ]
    calls = [
        ("predict", {"strategy": plan.short, "gpt": gpt, "cluster": cluster})
        for *_, gpt, cluster in asks
    ]
    for (answer, error), (workload, cluster, label, *_) in zip(asked(*calls), asks):
        assert not error
        p = tv.predict(plan, workload, cluster)
        assert answer["step_time"]["value"] == p.step_time
        assert answer["step_time"]["unit"] == "s"
        assert {kind: q["value"] for kind, q in answer["parts"].items()} == p.parts
        assert {
            axis: q["value"] for axis, q in answer["exposed_communication"].items()
        } == p.exposed
        assert answer["memory"]["total"]["value"] == p.memory().total
        rows = [(r.axis, r.collective, r.phase, r.count, r.wire_bytes) for r in p.ledger()]
        assert rows == [
            (r["axis"], r["collective"], r["phase"], r["count"], r["wire"]["value"])
            for r in answer["ledger"]
        ]
        assert (answer["badge"], answer["strategy"]) == (p.badge, plan.short)
        assert {q["label"] for q in answer["parts"].values()} == {label}
        assert answer["step_time"]["label"] == label


def test_search_gives_plans_that_can_be_asked_for():
    hardware = {"gpt": SMALL, "cluster": "nvswitch(4)"}
    search = ("search", {**hardware, "strategies": ["Megatron", "DataParallel"], "top": 3})
    (found, _), (longest, _) = asked(
        search, ("search", {**hardware, "top": 1, "seconds": 2.0, "strategies": ["Merak"]})
    )
    assert 1 <= len(found["plans"]) <= 3 and len(longest["plans"]) == 1
    for plan in [*found["plans"], *longest["plans"]]:
        again = tv.predict(
            written.strategy(plan["strategy"]),
            written.workload(SMALL),
            written.cluster("nvswitch(4)"),
        )
        assert plan["predicted"]["value"] == pytest.approx(again.step_time, rel=1e-9)
        assert plan["simulated"]["label"] == "simulated"
        assert plan["memory"] == {
            "value": again.memory().total, "unit": "bytes", "label": "predicted"
        }  # fmt: skip


@pytest.mark.parametrize("order", ["tp-dp", "dp-tp"])
def test_a_plan_in_another_order_is_read_as_it_is_written(order):
    plan = (tv.Megatron(tp=2) * tv.DataParallel(dp=2)).with_order(order)
    assert written.strategy(plan.short) == plan


def test_bad_input_is_said_in_one_line():
    wrong = [
        ("predict", {"strategy": "Megatron(tp=3)"}, "heads=4 does not split evenly over tp=3: use"),
        ("predict", {"strategy": "Megatrom(tp=2)"}, "'Megatrom' is no strategy; there are ATP"),
        ("predict", {"strategy": "Megatron(tp=__import__('os').getpid())"}, "use plain values"),
        ("predict", {"strategy": "Megatron(tp=2).factors"}, "is no strategy"),
        ("predict", {"strategy": "Megatron(tp=2)", "cluster": "moon(2)"}, "'moon' is no cluster"),
        ("predict", {"strategy": "Megatron(tp=2)", "gpt": "llama3('9B')"}, "use '1B'"),
        ("predict", {"strategy": "Megatron(tp=2)", "model": "x"}, "it takes strategy, gpt"),
        ("predict", {}, "strategy is missing"),
        ("search", {"top": "many"}, "top='many': input should be a valid integer"),
        ("search", {"seconds": -1}, "seconds"),
        ("verify", {"strategy": "Megatron(tp=3)", "start_ranks": True}, "use tp=2 or 4"),
        ("verify", {"strategy": "Megatron(tp=2)", "start_ranks": "true"}, "start_ranks='true'"),
        ("verify", {"strategy": "Megatron(tp=2)", "steps": 0, "start_ranks": True}, "steps=0"),
        ("ledger", {"path": "no/such.json"}, "no trace at no/such.json"),
        ("train", {}, "there is no tool 'train'; there are predict, search, verify, ledger"),
    ]  # fmt: skip
    answers = asked(*[call[:2] for call in wrong])
    for (tool, _, wanted), (answer, error) in zip(wrong, answers):
        assert answer is None, tool
        assert wanted in error
        assert "Traceback" not in error and "\n" not in error


def test_verify_starts_nothing_unless_asked():
    mark = uuid.uuid4().hex

    async def ask():
        async with server(mark) as client:
            answer = await client.call_tool("verify", {"strategy": "Megatron(tp=2)", "gpt": SMALL})
            return answer, marked(mark)

    answer, processes = run(ask)
    assert answer.is_error
    assert "2 processes on this machine" in answer.content[0].text
    assert "start_ranks=true" in answer.content[0].text
    assert len(processes) == 1  # the server
    assert not gone(mark)


def test_verify_leaves_no_process():
    mark = uuid.uuid4().hex

    async def ask():
        async with server(mark) as client:
            arguments = {"strategy": "Megatron(tp=2)", "gpt": SMALL, "start_ranks": True}
            answer = await client.call_tool("verify", arguments)
            return answer.structured_content, marked(mark)

    found, processes = run(ask)
    assert found["ok"] and found["ledger_is_formula"] is True
    assert found["ranks"] == 2
    assert 0 < found["max_error"]["value"] < 1e-10 and found["max_error"]["label"] == "measured"
    assert len(processes) == 1, "the server alone is left when it answers"
    assert not gone(mark)


def test_a_client_that_leaves_during_verify_leaves_no_process():
    mark = uuid.uuid4().hex

    async def ask():
        async with server(mark) as client, anyio.create_task_group() as group:
            arguments = {"strategy": "Megatron(tp=2)", "steps": 10_000, "start_ranks": True}
            group.start_soon(client.call_tool, "verify", arguments)
            while len(marked(mark)) < 4:  # server, fork server, ranks
                await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(ask)
    assert not gone(mark)


def test_ledger_of_a_trace_file_says_where_its_numbers_come_from(tmp_path):
    plan, workload = tv.Megatron(tp=2), written.workload(SMALL)
    trace = tv.simulate(plan, workload, tv.clusters.nvswitch(2))
    trace.to_chrome(tmp_path / "ours.json")
    event = {
        "ph": "X",
        "name": "ncclDevKernel_AllReduce_Sum_f32",
        "cat": "kernel",
        "ts": 1,
        "dur": 5,
    }
    theirs = {"traceEvents": [{**event, "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}]}
    (tmp_path / "theirs.json").write_text(json.dumps(theirs))
    (ours, _), (other, _), (_, error) = asked(
        ("ledger", {"path": str(tmp_path / "ours.json")}),
        ("ledger", {"path": str(tmp_path / "theirs.json")}),
        ("ledger", {"path": str(tmp_path / "ours.json"), "rank": 7}),
    )
    assert ours["label"] == "simulated" and ours["ranks"] == [0, 1]
    assert [(r["collective"], r["count"], r["payload"]["value"]) for r in ours["rows"]] == [
        (r.collective, r.count, r.payload_bytes) for r in trace.ledger()
    ]
    [row] = other["rows"]
    assert (other["label"], row["collective"]) == ("imported", "all_reduce")
    assert row["payload"] == {"value": None, "unit": "bytes", "label": "unknown"}
    assert error == "the trace has no rank 7; it has [0, 1]"


def test_what_is_printed_is_not_in_the_protocol():
    """By Python, by what Python has not yet written, and by a process that a tool starts."""
    program = """
import os, subprocess
from tpviz.views import agents
def loud(path: str) -> agents.LedgerResult:
    "Prints."
    print("not JSON")
    os.write(1, b"nor is this\\n")
    subprocess.run(["echo", "nor this"])
    return inner(path)
inner, agents.ledger = agents.ledger, loud
loud.__name__ = "ledger"
agents.serve()
"""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    sent = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
         "params": {"name": "ledger", "arguments": {"path": "none.json"}}},
    ]  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for message in sent:
        server.stdin.write(json.dumps(message) + "\n")
        server.stdin.flush()
        if "id" in message:
            answer = json.loads(server.stdout.readline())
            assert answer["id"] == message["id"]
    assert "no trace at none.json" in answer["result"]["content"][0]["text"]
    rest, said = server.communicate(timeout=60)
    assert server.returncode == 0 and rest == ""
    for words in ("not JSON", "nor is this", "nor this"):
        assert words in said


@pytest.mark.parametrize("missing", ["no mcp", "mcp 1"])
def test_without_mcp_the_command_says_what_to_install(missing, tmp_path):
    if missing == "mcp 1":  # it has other modules
        (tmp_path / "mcp").mkdir()
        (tmp_path / "mcp" / "__init__.py").write_text("")
    else:
        (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('No mcp', name='mcp')")
    done = subprocess.run(
        [sys.executable, "-m", "tpviz", "mcp"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tpviz mcp: it needs mcp, version 2: pip install 'tpviz[mcp]'\n"
