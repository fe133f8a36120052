"""The judges: each looks at one `Attempt` and returns what is wrong, in a sentence or two, or None.

An exercise lists its judges in order: `FIRST`, then its own (they know the typical mistakes), then
`GENERAL`. A judge never asserts and never raises: it explains.
"""

import numpy as np

from .attempt import in_words


def returns_tensors(attempt):
    """Every rank returned a tensor."""
    for rank, got in enumerate(attempt.outputs):
        if not isinstance(got, np.ndarray):
            return (f"rank {rank} returned {got}, not a tensor. "
                    "Does every path of your function end in `return`?")


def waits_for_all(attempt):
    """No collective was left unfinished."""
    if attempt.unwaited:
        return (f"you started {' and '.join(attempt.unwaited)} without waiting for the end, so the "
                "result may or may not be there. With `async_op=True` you get a handle: call its "
                "`.wait()` before you use the data.")


def right_shape(attempt):
    """Every rank returned the expected shape."""
    for rank, (got, want) in enumerate(zip(attempt.outputs, attempt.case.expected)):
        if got.shape != want.shape:
            return f"rank {rank} returned shape {list(got.shape)}; it should be {list(want.shape)}."


def right_numbers(attempt):
    """Every rank returned the numbers that one process computes; shows the first that differs."""
    right = attempt.right
    wrong = [rank for rank in range(attempt.size) if rank not in right]
    if not wrong:
        return None
    if right:
        return (f"{_ranks(right)} right, but {_ranks(wrong)} not: "
                "the result must be the same on every rank that shares the data.")
    got, want = attempt.outputs[0], attempt.case.expected[0]
    at = tuple(int(i) for i in np.argwhere(~np.isclose(got, want, rtol=1e-5, atol=1e-5))[0])
    return (f"the numbers are wrong on every rank. On rank 0, element {list(at)} is {got[at]:g}; "
            f"one process computes {want[at]:g}. You used {attempt}.")


def right_axes(attempt):
    """Collectives ran only on the axes that need them."""
    needed = {row.axis for row in attempt.needed}
    for row in attempt.ledger:
        if row.axis not in needed:
            alike = {n.axis for n in attempt.needed if n.collective == row.collective}
            needed = alike or needed  # those that need this collective, if any does
            where = "all ranks (the default group)" if row.axis == "world" else f"axis {row.axis}"
            return (f"your {row.collective} ran on {where}, but only ranks along axis "
                    f"{' and '.join(sorted(needed))} hold parts of the same result. "
                    f"Give it the group: `group=mesh.get_group(\"{sorted(needed)[0]}\")`.")


def fewest_bytes(attempt):
    """No rank sent more bytes on the wire than the best known solution."""
    (_, _, sent), (_, _, least) = attempt.ledger.total(), attempt.needed.total()
    if sent > least:
        return (f"the numbers are right, but each rank sent {sent / least:.2g}x the bytes needed: "
                f"{sent:g} instead of {least:g}, with {attempt}.")


def fewest_collectives(attempt):
    """No more collectives than the best known solution."""
    (count, _, _), (least, _, _) = attempt.ledger.total(), attempt.needed.total()
    if count > least:
        return (f"numbers and bytes are right, but you used {count} collectives ({attempt}) where "
                f"{least} will do: each one makes every rank wait for the slowest.")


def same_ledger(attempt):
    """Exactly the collectives and bytes of the best known solution, whatever their phase."""
    mine, best = ({row[:2]: (row.count, row.wire_bytes) for row in led}
                  for led in (attempt.ledger, attempt.needed))
    if mine != best:
        return (f"the numbers are right, but the trace shows {attempt}, "
                f"and this exercise asks for {in_words(attempt.needed)}.")


def own_share_of_work(attempt):
    """No rank multiplied more than its share."""
    share = attempt.case.flops
    if share is not None and attempt.flops > share:
        return (f"the numbers are right, but each rank did {attempt.flops / share:.2g}x its share "
                f"of the multiplications: {attempt.flops} FLOPs instead of {share}.")


FIRST = (returns_tensors, waits_for_all)
GENERAL = (right_axes, right_shape, right_numbers, fewest_bytes, fewest_collectives,
           own_share_of_work, same_ledger)


def _ranks(ranks):
    listed = ", ".join(map(str, ranks))
    return f"ranks {listed} are" if len(ranks) > 1 else f"rank {listed} is"
