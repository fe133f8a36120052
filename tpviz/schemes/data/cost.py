"""What one step of data parallelism sends, by ZeRO stage, exactly (derived).

With P bytes of parameters, padded, in buckets:

ZeRO 0: all-reduce of every bucket's gradient: P.
ZeRO 1, 2: reduce-scatter of every gradient bucket, all-gather of every parameter bucket after the
update: 2 P in two halves, on a ring the same traffic as ZeRO 0 (Rajbhandari et al. 2020, arXiv
1910.02054, section 7).
ZeRO 3: every bucket is gathered before forward, the blocks' again before backward, gradients
reduce-scattered: the 1.5 x of the paper's section 7.2.2 (a little less, the root being gathered
once).
"""

from tpviz.trace import Ledger


def ledger(buckets, dp, zero, itemsize):
    """The `Ledger` of one step of one rank over the axis dp."""
    entries = []
    for bucket in buckets:
        size = bucket.numel * itemsize
        entries.append(("dp", "reduce_scatter" if zero else "all_reduce", "sync", 1, size, dp))
        if zero in (1, 2):
            entries.append(("dp", "all_gather", "optimizer", 1, size, dp))
        if zero == 3:
            entries.append(("dp", "all_gather", "forward", 1, size, dp))
            entries.append(("dp", "all_gather", "backward", int(bucket.block >= 0), size, dp))
    return Ledger.of(entries)
