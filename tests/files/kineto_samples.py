"""Pieces of Kineto files, as torch.profiler lays them out, for a rank of four."""

import json
from pathlib import Path
from typing import Any

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
    {"pg_name": "1", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
    {"pg_name": "2", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [0, 2]},
]


def complete(
    cat: str, name: str, ts: float, dur: float, tid: int = 7, **args: Any
) -> dict[str, Any]:
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


def collective_args(
    name: str, elements: tuple[int, int], dtype: str, group: str, ranks: list[int], **more: Any
) -> dict[str, Any]:
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


def write_profile(
    folder: Path,
    rank: int,
    events: list[dict[str, Any]],
    base: int = 1_700_000_000_000_000_000,
    suffix: str = "json",
) -> Path:
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
