"""Closed forms of collectives: how many hops one after another, how many bytes through one port.

T = hops * latency + volume / bandwidth. n ranks, S bytes of payload (the full tensor), log = log2
rounded up:

==================  ===================  ==========================  ===========================
                    ring                 tree                        recursive_doubling
==================  ===================  ==========================  ===========================
all_reduce          2(n-1), 2(n-1)/n S   2 log, 2 S                  log, log S
all_gather          n-1, (n-1)/n S       (as recursive_doubling)     log, (n-1)/n S
reduce_scatter      n-1, (n-1)/n S       (as recursive_doubling)     log, (n-1)/n S (halving)
broadcast, reduce   n-1, S               log, S                      log, log S
==================  ===================  ==========================  ===========================

Ring and recursive doubling: Thakur, Rabenseifner, Gropp (2005), "Optimization of Collective
Communication Operations in MPICH". Tree: the two pipelined binary trees of Sanders, Speck, Traeff
(2009), which NCCL has since 2.4; a rank passes every byte up once and down once. gather, scatter
and all_to_all move (n-1)/n S through the busiest port in n-1 steps whatever the algorithm (deeper
in a cluster than one level, and with unequal parts, `exchanges` says how much that is; all_to_all_v
alone takes what the rank with most sends to others); a barrier is an empty tree all-reduce; a
message one hop; a copy to or from the host is all of its bytes. Pipelining of ring broadcast and of
trees is taken as perfect.

>>> cost("ring", "all_reduce", 800, 4)
(6, 1200.0)
"""

from tpviz.core.checks import one_of
from tpviz.core.copies import COPY

ALGORITHMS = ("ring", "tree", "recursive_doubling")
NCCL = {"all_reduce": ("ring", "tree")}
"""What NCCL's tuner chooses from between nodes; for all other collectives it has the ring alone
(its src/graph/tuning.cc, before PAT came with 2.23)."""


def cost(algorithm: str, collective: str, payload: float, size: int) -> tuple[int, float]:
    """(hops, volume) of one collective by the table above; the volume has the payload's unit.

    A ring all-reduce takes 2(n-1) hops and 2(n-1)/n S, a reduce-scatter and an all-gather (Thakur,
    Rabenseifner, Gropp (2005), as all rings and recursive doubling here).
    Raises ``ValueError`` for an unknown algorithm or collective.
    """
    one_of("algorithm", algorithm, ALGORITHMS)
    if collective in ("send", "recv"):
        return 1, float(payload)
    if collective == COPY:
        return 0, float(payload)
    if size == 1:
        return 0, 0.0
    log, part = (size - 1).bit_length(), (size - 1) * payload / size
    if collective == "barrier":
        return 2 * log, 0.0
    if collective == "all_to_all_v":
        return size - 1, float(payload)
    if collective in ("gather", "scatter", "all_to_all"):
        return size - 1, part
    if collective == "all_reduce":
        if algorithm == "ring":
            return 2 * (size - 1), 2 * part
        return (2 * log, 2.0 * payload) if algorithm == "tree" else (log, float(log * payload))
    if collective in ("all_gather", "reduce_scatter"):
        return (size - 1 if algorithm == "ring" else log), part
    if collective in ("broadcast", "reduce"):
        hops = size - 1 if algorithm == "ring" else log
        return hops, float(log * payload if algorithm == "recursive_doubling" else payload)
    raise ValueError(f"collective {collective!r} is not known here")


def choose(
    algorithm: str, collective: str, payload: float, size: int, latency: float, bandwidth: float
) -> tuple[int, float]:
    """(hops, volume): of the named algorithm, or for "auto" of the fastest of `NCCL`'s.

    latency in s, bandwidth in bytes/s. At equal times the ring.
    """
    if algorithm != "auto":
        return cost(algorithm, collective, payload, size)
    found = [cost(name, collective, payload, size) for name in NCCL.get(collective, ("ring",))]
    return min(found, key=lambda c: c[0] * latency + c[1] / bandwidth)
