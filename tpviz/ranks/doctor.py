"""``tpviz doctor``: what this machine can do, shown by doing it.

Facts are read from the system; whether ranks start is not guessed but tried.
"""

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from tpviz.core.tables import text_table

from . import launch as launching
from .rank_errors import RankError, RankTimeoutError

_RANKS = 4
_SMALL_SHM = 64 << 20  # bytes; what containers get when nobody says otherwise
_RANK_MEMORY = 35 << 20  # bytes; proportional share of one of 8 idle ranks
_BROWSERS = "chromium", "chromium-browser", "google-chrome"


def doctor(show: Callable[[str], Any] = print) -> dict[str, Any]:
    """Describe this machine, start ranks on it, and say what that means.

    Parameters: ``show``, called with each line of the report. Returns the facts by name;
    ``facts["launch"]["error"]`` is None when ranks really ran.
    """
    facts = {**software(), **machine(), "max_ranks": launching.max_ranks()}
    facts["launch"] = try_ranks(min(_RANKS, facts["max_ranks"]))
    facts["notes"] = notes(facts)
    for line in report(facts):
        show(line)
    return facts


def software() -> dict[str, Any]:
    """Versions, torch.distributed backends and GPUs that torch sees, and a browser."""
    import torch
    import torch.distributed as dist

    available = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    gpus = range(torch.cuda.device_count())
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backends": [name for name, there in available.items() if there],
        "gpus": [torch.cuda.get_device_name(gpu) for gpu in gpus],
        "browser": next(filter(None, map(shutil.which, _BROWSERS)), None),
    }


def machine() -> dict[str, Any]:
    """CPU cores and bytes of memory, of the machine and within the limits of this container."""
    shm = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else 0
    return {
        "cores": len(os.sched_getaffinity(0)),
        "core_limit": _cpu_limit(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_limit": _memory_limit(),
        "shm": shm,
    }


def try_ranks(world_size: int) -> dict[str, Any]:
    """Start ranks twice, with the fork server cold and warm, up to the end of an all-reduce."""
    result = {"world_size": world_size, "error": None}
    try:
        launching.restart()
        for name in ("cold_start", "warm_start"):
            launching.shutdown()
            begun = perf_counter()
            sums = launching.launch(_all_reduce, world_size=world_size, progress=False)
            result[name] = perf_counter() - begun
        result |= launching.pool_info()
        if sums != [world_size] * world_size:
            result["error"] = f"the all-reduce of ones gave {sums} on {world_size} ranks"
    except (RankError, RankTimeoutError, RuntimeError, OSError, ValueError) as error:
        result["error"] = str(error)
    return result


def _all_reduce():
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return int(x)


def notes(facts: dict[str, Any]) -> list[str]:
    """Plain sentences on what the facts mean for the user."""
    return [note for note in (_on_gpus(facts), *_on_limits(facts)) if note]


def _on_gpus(facts):
    gpus, most = len(facts["gpus"]), facts["max_ranks"]
    if not gpus:
        return (
            "No GPU: ranks compute on the CPU and gloo moves their bytes. Results and byte counts "
            "are exact; times are those of this machine. NCCL is not possible here."
        )
    if "nccl" not in facts["backends"]:
        return f"{gpus} GPUs, but this torch has no NCCL: ranks use the GPUs, gloo moves the bytes."
    if gpus < most:
        return (
            f"NCCL for up to {gpus} ranks, a GPU each; beyond that ranks share GPUs and gloo moves "
            "the bytes, since NCCL refuses two ranks on one GPU."
        )
    return f"NCCL, with a GPU for each of up to {gpus} ranks."


def _on_limits(facts):
    cores = min(facts["cores"], facts["core_limit"] or facts["cores"])
    memory = min(facts["memory"], facts["memory_limit"] or facts["memory"])
    if cores < _RANKS:
        yield (
            f"Fewer cores ({cores:g}) than ranks: ranks take turns, so overlap of communication "
            "with compute hardly shows in measured times."
        )
    if memory < 4 * facts["max_ranks"] * _RANK_MEMORY:
        yield (
            f"Little memory ({_size(memory)}): an idle rank takes about {_size(_RANK_MEMORY)} "
            "before your model; keep world_size at 8 or below."
        )
    if facts["shm"] < _SMALL_SHM:
        yield f"/dev/shm is small ({_size(facts['shm'])}): data loaders with workers may fail."
    if not facts["launch"]["error"] and not facts["launch"]["preloaded"]:
        yield (
            "The fork server could not load torch in advance, so every rank loads it anew: install "
            "tpviz (pip install -e .) instead of setting sys.path, or call tpviz.restart()."
        )
    if not facts["browser"]:
        yield "No Chromium: browser tests are skipped here; notebooks do not need it."
    yield "Several machines: start your script with torchrun; tpviz.launch then uses its ranks."


def report(facts: dict[str, Any]) -> list[str]:
    """The facts as lines of text."""
    tried = facts["launch"]
    rows = {
        "python": facts["python"],
        "torch": facts["torch"],
        "backends": ", ".join(facts["backends"]) or "none",
        "GPUs": ", ".join(facts["gpus"]) or "none",
        "cores": _limited(facts["cores"], facts["core_limit"], "{:g}".format),
        "memory": _limited(facts["memory"], facts["memory_limit"], _size),
        "/dev/shm": _size(facts["shm"]),
        "ranks": f"up to {facts['max_ranks']} (TPVIZ_MAX_RANKS)",
        "browser": facts["browser"] or "none",
    }
    size = tried["world_size"]
    if tried["error"]:
        rows["trial"] = f"{size} ranks FAILED: {tried['error']}"
    else:
        rows["trial"] = (
            f"{size} ranks on {tried['device']}, bytes moved by {tried['inner']}: started and "
            f"all-reduced in {tried['cold_start']:.2f} s, again in {tried['warm_start']:.2f} s"
        )
    return [*text_table([*rows.items()]), "", *(f"* {note}" for note in facts["notes"])]


def _limited(value, limit, text):
    below = limit is not None and limit < value
    return f"{text(value)}, of which {text(limit)} may be used" if below else text(value)


def _size(number):
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _cpu_limit():
    """CPUs that the control group may use, or None."""
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        return int(quota) / int(period)
    quota, period = _cgroup("cpu/cpu.cfs_quota_us"), _cgroup("cpu/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _memory_limit():
    """Bytes that the control group may use, or None."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _cgroup(name)
        if text.isdecimal() and int(text) < 1 << 60:  # version 1 says "none" by a huge number
            return int(text)
    return None


def _cgroup(name):
    """A setting of this process's control group: of its own folder, else of the top one."""
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
    except OSError:
        own = ""
    for folder in (root / own, root):
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return ""
