"""Groups that are asked for by backend: gloo's are recorded, of others trace and pictures speak."""

import torch
import torch.distributed as dist

import tpviz as tv

RANKS, ITEMS = 4, 100
BOX = tv.clusters.nvlink_pairs(pairs=2).scale_model(slow_motion=100)


def summed(group=None):
    value = torch.full((ITEMS,), float(dist.get_rank() + 1))
    dist.all_reduce(value, group=group)
    return value[0].item()


def on_gloo(cluster=None):
    """In a rank: sums over the world and over gloo's groups; results, names of backends, trace."""
    mine = dist.get_rank() // 2
    every = dist.new_group(backend="gloo")
    pairs = [dist.new_group([2 * i, 2 * i + 1], backend="cpu:gloo") for i in range(RANKS // 2)]
    again = dist.new_group(backend=dist.get_backend(every))
    subgroup, _ = dist.new_subgroups(2)
    with tv.record(cluster=cluster) as recorder, recorder.step():
        found = [summed(g) for g in (None, every, pairs[mine], again, subgroup)]
        objects = [None] * RANKS
        dist.all_gather_object(objects, dist.get_rank(), group=every)
        dist.barrier(group=every)
    return found, objects, str(dist.get_backend(every)), recorder.trace


def test_groups_of_gloo_are_in_the_ledger():
    whole, pair = [10.0] * RANKS, [3.0, 3.0, 7.0, 7.0]
    for cluster in (None, BOX):
        ranks = tv.launch(on_gloo, cluster, world_size=RANKS)
        for rank, (found, objects, backend, trace) in enumerate(ranks):
            assert found == [whole[rank], whole[rank], pair[rank], whole[rank], pair[rank]]
            assert objects == list(range(RANKS)) and backend == "gloo"
            sums = trace.select(kind="comm", name="all_reduce")
            pairs = f"{rank // 2 * 2},{rank // 2 * 2 + 1}"
            assert sums["members"].tolist() == [*["0,1,2,3"] * 2, pairs, "0,1,2,3", pairs]
            assert sums["bytes"].tolist() == [4 * ITEMS] * 5
            assert len(trace.select(kind="comm", name="barrier")) == 1
            assert len(trace.select(kind="comm", name="all_gather")) == 2  # sizes, then objects
            assert "unrecorded" not in trace.meta


def on_another(cluster=None):
    """In a rank of a world that is not ours."""
    pair = dist.new_group([0, 1])
    x = torch.ones(8, 8)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said of the world, in a warning of its own
        with tv.record() as recorder, recorder.step():
            x @ x
            summed()
            if dist.get_rank() < 2:
                summed(pair)
    return recorder.trace


def test_groups_that_are_not_recorded_are_named_in_trace_and_pictures(tmp_path):
    traces = tv.launch(on_another, world_size=3, backend="gloo")
    assert traces[2].meta["unrecorded"] == [["gloo", "0,1,2"]]
    trace = tv.Trace.merge(traces)
    assert trace.meta["unrecorded"] == [["gloo", "0,1,2"], ["gloo", "0,1"]]
    words = "this machine, gloo; not recorded: gloo group of ranks 0,1,2 and 1 more"
    view = tv.Timeline(trace)
    assert trace.badge == words and words in view.to_svg() and words in view.describe()
    assert tv.load_trace(trace.to_chrome(tmp_path / "t.json")).badge == words
