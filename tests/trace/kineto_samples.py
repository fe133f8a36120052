"""Pieces of Kineto files, as torch.profiler lays them out, for a rank of four."""

import json

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
    {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
    {"pg_name": "2", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [0, 2]},
]


def complete(cat, name, ts, dur, tid=7, **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def collective_args(name, elements, dtype, group, ranks, **more):
    return {
        "Collective name": name,
        "In msg nelems": elements[0],
        "Out msg nelems": elements[1],
        "Group size": len(ranks),
        "dtype": dtype,
        "Process Group Name": group,
        "Process Group Description": next(g["pg_desc"] for g in GROUPS if g["pg_name"] == group),
        "Process Group Ranks": str(ranks),
        **more,
    }


def write_profile(folder, rank, events, base=1_700_000_000_000_000_000, suffix="json"):
    data = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": GROUPS},
        "baseTimeNanoseconds": base,
        "traceEvents": events,
    }
    path = folder / f"host_{rank}.pt.trace.{suffix}"
    path.write_text(json.dumps(data))
    return path
