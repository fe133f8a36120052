"""Answers to the capstone: right ones, and wrong ones with the hint they get."""

import warnings
from functools import cache

import torch.distributed as dist

import tpviz as tv
from tpviz.evidence import layouts

BEST = tv.DataParallel(dp=8, zero=1, accumulation=2, shard=4)


# --- capstone_levels ---
def capstone_levels(x, mesh):
    gpu = mesh.get_group("gpu")
    shard = x.new_empty(len(x) // dist.get_world_size(gpu))
    dist.reduce_scatter_tensor(shard, x, group=gpu)
    dist.all_reduce(shard, group=mesh.get_group("node"))
    dist.all_gather_into_tensor(x, shard, group=gpu)
    return x


def levels_in_lists(x, mesh):
    gpu, node = mesh.get_group("gpu"), mesh.get_group("node")
    parts = list(x.clone().chunk(gpu.size()))
    shard = parts[0].new_empty(parts[0].shape)
    dist.reduce_scatter(shard, parts, group=gpu)
    dist.all_reduce(shard, group=node, async_op=True).wait()
    dist.all_gather(parts, shard, group=gpu)
    return x.new_tensor([number for part in parts for number in part])


def levels_at_once(x, mesh):
    dist.all_reduce(x)
    return x


def levels_whole_tensors(x, mesh):
    dist.all_reduce(x, group=mesh.get_group("gpu"))
    dist.all_reduce(x, group=mesh.get_group("node"))
    return x


def levels_of_a_node(x, mesh):
    dist.all_reduce(x, group=mesh.get_group("gpu"))
    return x


def levels_of_peers(x, mesh):
    dist.all_reduce(x, group=mesh.get_group("node"))
    return x


def levels_not_gathered(x, mesh):
    gpu = mesh.get_group("gpu")
    shard = x.new_empty(len(x) // gpu.size())
    dist.reduce_scatter_tensor(shard, x, group=gpu)
    dist.all_reduce(shard, group=mesh.get_group("node"))
    return shard


def levels_mean(x, mesh):
    return capstone_levels(x, mesh) / dist.get_world_size()


# --- capstone_cluster ---
@cache
def explained(plan=BEST):
    """All numbers but those of a run, on the first described cluster."""
    workload, cluster = tv.exercise("capstone_cluster").given(0)
    p = tv.predict(plan, workload, cluster)
    axes = {row.axis for row in p.ledger() if row.wire_bytes}
    return {
        "plan": plan,
        "predicted": p.step_time,
        "simulated": tv.simulate(plan, workload, cluster).step_time,
        "exposed": (p.parts["bandwidth wait"] + p.parts["latency wait"]) / p.step_time,
        "sent": {axis: p.ledger().total(axis=axis)[2] for axis in axes},
        "memory": p.memory().total,
    }


@cache
def _run():
    """(emulated run of the best plan, its slow motion)."""
    workload, cluster = tv.exercise("capstone_cluster").given(0)
    slow = tv.in_slow_motion(BEST, workload, cluster)
    with warnings.catch_warnings():  # a busy machine is not faithful, which is not graded
        warnings.simplefilter("ignore")
        run = tv.compare(BEST, workload, slow, steps=1, warmup=0, progress=False)
    return run, slow.slow_motion


def capstone_cluster(workload, cluster):
    run, slow = _run()
    longer = run.residual.measured - run.residual.simulated
    return explained() | {"run": run, "residual": longer / slow}


def cluster_without_looking(workload, cluster):
    return explained() | {"run": _run()[0], "residual": 0.0, "exposed": 0.0}


def cluster_in_ms(workload, cluster):
    right = explained()
    return right | {"predicted": 1e3 * right["predicted"], "memory": right["memory"] / 1e6}


def cluster_of_text(workload, cluster):
    return explained() | {"simulated": "4 ms", "exposed": float("nan"), "sent": 3, "run": 3.0}


def cluster_payloads(workload, cluster):
    ledger = BEST.ledger(workload)
    sent = {axis: ledger.total(axis=axis)[1] for axis in explained()["sent"]}
    return explained() | {"sent": sent | {"tp": 5.0}, "exposed": 100 * explained()["exposed"]}


def cluster_too_large(workload, cluster):
    return explained(tv.Megatron(tp=4) * tv.DataParallel(dp=2))


def cluster_of_another_size(workload, cluster):
    return {"plan": tv.DataParallel(dp=16)}


def cluster_by_name(workload, cluster):
    return {"plan": "Megatron", "predictd": 3.0}


def cluster_a_list(workload, cluster):
    return [BEST]


# --- capstone_published ---
def _of_layout(group, **layout):
    points = tuple(group.at(**layout))
    turn, split = layouts.Turn(group, points, covered=True), layouts.parts(points[0])
    step = sum(split.values())
    return {
        "layout": layout,
        "predicted": step,
        "exposed": 1 - (split["compute"] + split["bubble"]) / step,
        "bubble": split["bubble"] / step,
        "memory": sum(turn.memory().values()),
        "sent": turn.sent(),
    }


def capstone_published(group):
    return _of_layout(group, tp=2, pp=2, dp=128, micro_batch=2, zero=1)


def published_as_predicted(group):
    return _of_layout(group, tp=4, pp=1, dp=128, micro_batch=2, zero=0)


def published_of_one_type(group):
    right = published_as_predicted(group)
    plan = group.at(**right["layout"])[0].plan
    return right | {"memory": sum(plan.strategy.memory(plan.workload).values())}


def published_states_alone(group):
    right = published_as_predicted(group)
    point = group.at(**right["layout"])[0]
    memory = layouts.Turn(group, (point,), covered=True).memory()
    return right | {"memory": right["memory"] - memory["activations"]}


def published_of_80_gb(group):
    return published_as_predicted(group) | {"memory": 80e9}


def published_most_replicas(group):
    return _of_layout(group, tp=2, pp=1, dp=256, micro_batch=1, zero=0)


def published_nowhere(group):
    return {"layout": {"tp": 3, "pp": 1, "dp": 128, "micro_batch": 2, "zero": 0}}


def published_in_part(group):
    return {"layout": {"tp": 2, "pp": 2}}


def published_text(group):
    return {"layout": "tp=2"}


def published_in_gb(group):
    right = _of_layout(group, tp=4, pp=1, dp=128, micro_batch=2, zero=0)
    return right | {"memory": right["memory"] / 1e9, "exposed": 1 - right["exposed"], "sent": {}}


RIGHT = {
    "capstone_levels": [capstone_levels, levels_in_lists],
    "capstone_cluster": [capstone_cluster],
    "capstone_published": [capstone_published],
}
WRONG = {
    "capstone_levels": [
        (levels_at_once, "on all ranks at once"),
        (levels_whole_tensors, "you send whole tensors between the nodes"),
        (levels_of_a_node, "nothing was sent between the nodes"),
        (levels_of_peers, "nothing was sent between the GPUs of a node"),
        (levels_not_gathered, "returned shape"),
        (levels_mean, "a sum is asked for, no mean"),
    ],
    "capstone_cluster": [
        (cluster_in_ms, "(?s)predicted: 0 of 10. You have .* recomputed it is .* in ms.*in MB"),
        (cluster_of_text, "(?s)exposed: .* finite.*simulated: .* not a str.*run: .* not a float"),
        (cluster_payloads, "(?s)in per cent.*shard: you have .* payload.*'tp': nothing is sent"),
        (
            cluster_without_looking,
            "(?s)residual: 0 of 10. .*Each run has its own residual: read it",
        ),
        (cluster_too_large, "(?s)plan: 0 of 30. It does not fit: .* needs .* MB.*memory: 10 of"),
        (cluster_of_another_size, "(?s)plan: 0 of 100. It cannot be simulated: .*16"),
        (cluster_by_name, "(?s)Give a strategy, .* not a str.*Not asked for: 'predictd'"),
        (cluster_a_list, "returned a list, not a dict of plan"),
    ],
    "capstone_published": [
        (published_as_predicted, "The layout's regret is what costs: .* 68.6 of 100 points, too"),
        (published_of_one_type, "memory: 0 of 10.* `strategy.memory`, .*Counted are parameters"),
        (published_states_alone, "memory: 0 of 10.* That is without activations"),
        (published_of_80_gb, "memory: 0 of 10.* Counted are parameters .* the GPU that needs most"),
        (published_most_replicas, "layout: 7.57 of 50. Its step takes 2.94 s, 560"),
        (published_nowhere, "no layout with tp=3.*the nearest is tp="),
        (published_in_part, "It lacks dp, micro_batch, zero"),
        (published_text, "Give a dict of tp, pp"),
        (published_in_gb, "(?s)Compute is the rest.*in GB.*sent: 0 of 10. .*tp: not given"),
    ],
}
