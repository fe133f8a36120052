"""Which host's clock this process reads: events of two clocks do not go on one time line.

``perf_counter`` is one clock for all processes of one host, from its start on. Hosts have clocks
that began at other times; so have two time namespaces of one host, while containers on one host
share a clock whatever their names are. Traces of two clocks are joined (`Trace.merge`) where these
were compared (`tpviz.ranks.offsets`); ranks of two clocks are not paced together.
"""

import os
import platform
import uuid
from contextlib import suppress
from functools import cache
from typing import Any
from zlib import crc32

from tpviz.core.trace.clocks import refuse_several

ONE_NEEDED = "and an emulated cluster needs one: its ranks agree on when each collective ends"


def host() -> list[str]:
    """[name of this host, mark of its clock], as ``trace.meta["hosts"]`` has it for a rank.

    The name is that of the system unless the environment has another, ``TPVIZ_HOST``.

    The mark hides what it is made of: the id of the system's start and the time namespace (Linux),
    elsewhere the address of the machine.
    """
    return [
        os.environ.get("TPVIZ_HOST") or platform.node() or "a host without a name",
        _clock(os.getpid()),
    ]


@cache  # by process: a rank is forked, and may have been moved
def _clock(_pid):
    parts = []
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/time"))
    if not parts:
        parts.append(f"{uuid.getnode():x}")
    return f"{crc32(' '.join(parts).encode()):08x}"


def hosts_of_world() -> dict[int, list[str]]:
    """{rank: `host`} of the world (a collective call)."""
    import torch.distributed as dist  # here: who asks for `host` alone needs no torch

    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, host())
    return dict(enumerate(hosts))


def check_one_clock() -> None:
    """Raise ``ValueError``, on every rank of the world, unless all read one clock (a collective
    call)."""
    refuse_several(hosts_of_world(), ONE_NEEDED)
