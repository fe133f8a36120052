"""Address maps for notebook 13: right ones, and wrong ones with their hints."""

from functools import partial

from solutions_t3 import order, order_down, order_own_first

from tpviz.evidence.t3_hardware import Dma, Local, Remote

# --- t3_ring_maps ---


def ring_maps(ranks, first=None, middle=None, last=None, order=order, step=-1):
    def own(rank):
        to = (rank + step) % ranks
        chunks = order(rank, ranks)
        rules = [
            first or Remote(to),
            *[middle(to) if middle else Dma(to)] * (ranks - 2),
            last or Local(2),
        ]
        return list(zip(chunks, rules))

    return [own(rank) for rank in range(ranks)]


def ring_maps_as_lists(ranks):
    """Plain sequences are fine too."""
    return [[[chunk, tuple(rule)] for chunk, rule in row] for row in ring_maps(ranks)]


def ring_maps_upwards(ranks):
    return ring_maps(ranks, order=lambda rank, n: [(rank - 1 - j) % n for j in range(n)], step=1)


ring_maps_early = partial(ring_maps, middle=lambda to: Dma(to, "update", 1))
ring_maps_late = partial(ring_maps, middle=lambda to: Dma(to, "update", 3))
ring_maps_stored = partial(ring_maps, middle=lambda to: Dma(to, "store", 2))
ring_maps_complete_early = partial(ring_maps, last=Local(1))
ring_maps_kept = partial(ring_maps, middle=lambda to: Local(2))
ring_maps_shifted = partial(ring_maps, order=lambda rank, n: [(rank + j) % n for j in range(n)])
ring_maps_same_order = partial(ring_maps, order=lambda rank, n: list(range(n)))


def ring_maps_slow(ranks):
    """Right rules, in the order of the chunks."""
    return [sorted(row) for row in ring_maps(ranks)]


def ring_maps_all_stay(ranks, of=0):
    """The first chunk goes to memory first, on the ranks from ``of``."""
    return [
        [
            (c, Dma(rule.to, "update", 1) if isinstance(rule, Remote) and rank >= of else rule)
            for c, rule in row
        ]
        for rank, row in enumerate(ring_maps(ranks))
    ]


ring_maps_others_stay = partial(ring_maps_all_stay, of=1)


def ring_maps_direct(ranks):
    return [direct(rank, ranks) for rank in range(ranks)]


def ring_maps_of_one(ranks):
    return ring_maps(ranks)[0]


def ring_maps_numbers(ranks):
    return [[(c, 2) for c in range(ranks)] for _ in range(ranks)]


def ring_maps_too_few(ranks):
    return ring_maps(ranks)[1:]


# --- t3_other_maps ---


def direct(rank, ranks, op="update", updates=None):
    return [*((c, Remote(c, op)) for c in order(rank, ranks)[:-1]), (rank, Local(updates or ranks))]


def gather(rank, ranks, last=True):
    to, chunks = (rank - 1) % ranks, order_own_first(rank, ranks)
    rules = [Dma(to, "store", 1)] * (ranks - 1)
    return list(zip(chunks, [*rules, Local(1) if last else rules[0]]))


def other_maps(collective, ranks, **changed):
    known = {
        "direct_rs": direct,
        "ring_ag": gather,
        "all_to_all": partial(direct, op="store", updates=1),
    } | changed
    return [known[collective](rank, ranks) for rank in range(ranks)]


other_maps_two = partial(other_maps, direct_rs=partial(direct, updates=2))
other_maps_stored = partial(other_maps, direct_rs=partial(direct, op="store"))
other_maps_summed = partial(other_maps, all_to_all=partial(direct, updates=1))
other_maps_all_wait = partial(other_maps, all_to_all=partial(direct, op="store"))
other_maps_round = partial(other_maps, ring_ag=partial(gather, last=False))
other_maps_far = partial(
    other_maps,
    ring_ag=lambda rank, n: [
        (c, Dma((rank + 1) % n, "store", 1) if c != (rank + 1) % n else Local(1))
        for c in order_down(rank + 1, n)
    ],
)


RIGHT = {
    "t3_ring_maps": [ring_maps, ring_maps_as_lists],
    "t3_other_maps": [other_maps],
}

WRONG = {
    "t3_ring_maps": [
        (
            ring_maps_early,
            r"rank 0 sends chunk 2 after 1 update of each element, but 2 come: too "
            "early",
        ),
        (
            ring_maps_late,
            "rank 0 waits for 3 updates of each element of chunk 2, but 2 come: it never completes",
        ),
        (ring_maps_stored, r"stores chunk \d at rank \d, over what else comes there"),
        (ring_maps_complete_early, "rank 0 calls complete chunk 0 after 1 update"),
        (ring_maps_kept, "chunk 2 ends at rank 0|never completes"),
        (
            ring_maps_shifted,
            "rank 0 sends chunk 0 away, which is its own: use Local; chunk 0 ends "
            "at rank 1: its owner is rank 0",
        ),
        (
            ring_maps_same_order,
            "what ranks? .* sends? it would stay there|sends chunk 3 away|never completes",
        ),
        (
            ring_maps_slow,
            r"the result is right, but takes 1\.\d+ times as long .* rank 0 begins "
            "with chunk 0",
        ),
        (
            ring_maps_all_stay,
            r"the result is right, but \d+ bytes of results go through the memory "
            r"of rank 0 where \d+ will do",
        ),
        (ring_maps_others_stay, r"\d+ bytes of results go through the memory of rank 1 where"),
        (ring_maps_direct, "this is not a ring|its only link is to rank 3"),
        (ring_maps_upwards, "its only link is to rank 3"),
        (ring_maps_of_one, r"not a list of \(chunk, rule\)|is 1, not \(chunk, rule\)"),
        (ring_maps_numbers, r"in the map of rank 0 is \(0, 2\), not \(chunk, rule\)"),
        (ring_maps_too_few, "you returned 3 maps for 4 ranks"),
    ],
    "t3_other_maps": [
        (
            other_maps_two,
            r"a direct reduce-scatter of \d ranks: this is not a direct reduce-"
            "scatter: rank 0 calls complete chunk 0 after 2 updates",
        ),
        (other_maps_stored, "this is not a direct reduce-scatter: rank 0 stores chunk"),
        (other_maps_summed, "this is not an all-to-all: rank 0 adds chunk .* use op='store'"),
        (other_maps_all_wait, "this is not an all-to-all: rank 0 waits for 4 updates .* never"),
        (
            other_maps_round,
            "rank . sends chunk . to rank ., whose GEMM computed it",
        ),
        (other_maps_far, "rank 0 sends chunk .* to rank 1, but in this ring its only link"),
    ],
}
