"""T3 as Triton kernels: a persistent GEMM whose tiles are sent and reduced while it still runs.

After Pati et al. 2024 (arXiv 2401.16677): their order of chunks, tracker, trigger and reduction in
memory, by programs of the GPU instead of hardware. A program plays one of two parts for one rank of
the ring (rank r sends to r - 1):

* a *worker* computes output tiles of its rank in the staggered order, chunk r + 1 first and the
  rank's own chunk last, puts each into memory and counts it (the tracker);
* a *mover*, if there are any, waits until a tile has both its updates, the rank's own and the one
  from the neighbour, and writes the sum into the next neighbour's memory (trigger and DMA). Without
  movers whichever program brings a tile's second update sends it on itself, and nobody ever waits.

"Put" is an atomic add on zeroed memory (near-memory reduction: on NVIDIA in the L2 cache), or a
plain store into an inbox whose reader does the addition. Either way an element gets exactly two
addends a hop, and a + b = b + a, so bits do not depend on who comes first (derived). Atomics differ
from plain additions in subnormal numbers, which they take for zero on memory (PTX, atom.add.f32),
and in the sign of zero: 0 + -0 = 0.

Memory order. Puts are relaxed; what orders them is the counter of their tile. ``arrive``: a barrier
puts all threads' puts before the one thread that adds to the counter, and that add releases them at
SCOPE ("gpu", or "sys" between GPUs); the add also acquires, so whoever reads 2 has seen both puts.
``wait_for`` polls with acquire. The barrier after either keeps the other threads' loads behind it.
Tiles are read past the L1 cache, which no release of another program reaches.

Progress. Workers never wait. A mover waits at position p for its own worker and for what the
neighbour sent at position p - 1 (a worker's for p = 1, else a mover's), so the graph of waits has
no cycle; and it can only starve them if they are not on the GPU, so with movers the whole grid must
be resident: at most one program an SM, launched cooperatively (it fails rather than hangs). A rank
of another process may never start, or stop: polls are counted, and a mover that gives up says so.

Shapes: rank's A (m, k), B (k, n), sums (m, n) float32; a chunk is m / ranks rows, its tiles are
numbered down the rows first. Tables hold each rank's address, so that a rank may be a buffer of
this GPU or of another process.

Checked in Triton's interpreter and by compiling for sm_80 and sm_90; ran on one H200.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]


@triton.jit
def address(table: tl.tensor, rank: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """Where a rank's buffer starts; `Ring` has checked that 16 bytes divide it."""
    return tl.multiple_of(tl.load(table + rank).to(tl.pointer_type(TYPE)), 16)


@triton.jit
def tile_at(
    chunk: tl.tensor,
    place: tl.tensor,
    chunk_rows: tl.tensor,
    n: tl.tensor,
    BM: tl.constexpr,
    BN: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """A chunk's tile: first row and column, which rows and columns there are, offsets in (m, n).

    The offset comes in two parts, 64 bits for the tile and 32 inside of it, to spare registers.
    """
    down = tl.cdiv(chunk_rows, BM)
    row, col = (place % down) * BM, (place // down) * BN
    row_in = tl.arange(0, BM) < chunk_rows - row
    col_in = tl.arange(0, BN) < n - col
    row += chunk * chunk_rows
    base = row.to(tl.int64) * n + col
    return row, col, row_in, col_in, base, tl.arange(0, BM)[:, None] * n + tl.arange(0, BN)[None, :]


@triton.jit
def product(
    a: tl.tensor,
    b: tl.tensor,
    row: tl.tensor,
    col: tl.tensor,
    row_in: tl.tensor,
    col_in: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """One output tile in float32, its sum over k in order."""
    acc = tl.zeros((row_in.shape[0], col_in.shape[0]), tl.float32)
    depth = tl.arange(0, BK)
    x_at = tl.arange(0, row_in.shape[0])[:, None] * k + depth[None, :]
    y_at = depth[:, None] * n + tl.arange(0, col_in.shape[0])[None, :]
    a += row.to(tl.int64) * k
    b += col
    for start in range(0, k, BK):
        left = depth < k - start
        x = tl.load(a + x_at, row_in[:, None] & left[None, :], other=0.0)
        y = tl.load(b + y_at, left[:, None] & col_in[None, :], other=0.0)
        acc = tl.dot(x, y, acc, input_precision=PRECISION)
        a += BK
        b += BK * n
    return acc


@triton.jit
def put(
    to: tl.tensor, value: tl.tensor, inside: tl.tensor, ATOMIC: tl.constexpr, SCOPE: tl.constexpr
) -> None:
    """One update of a tile."""
    if ATOMIC:
        tl.atomic_add(to, value, inside, sem="relaxed", scope=SCOPE)
    else:
        tl.store(to, value, inside)


@triton.jit
def arrive(counter: tl.tensor, SCOPE: tl.constexpr) -> tl.tensor:
    """Count an update whose puts are done; how many there are now."""
    tl.debug_barrier()
    seen = tl.atomic_add(counter, 1, sem="acq_rel", scope=SCOPE) + 1
    tl.debug_barrier()
    return seen


@triton.jit
def wait_for(
    counter: tl.tensor, needed: tl.tensor, polls: tl.tensor, SCOPE: tl.constexpr
) -> tl.tensor:
    """Poll until ``needed`` updates are counted, at most so often; how many there were."""
    seen = tl.atomic_add(counter, 0, sem="acquire", scope=SCOPE)
    while (seen < needed) & (polls > 0):
        seen = tl.atomic_add(counter, 0, sem="acquire", scope=SCOPE)
        polls -= 1
    tl.debug_barrier()
    return seen


@triton.jit
def forward(
    at: tl.tensor,
    position: tl.tensor,
    base: tl.tensor,
    within: tl.tensor,
    inside: tl.tensor,
    sums: tl.tensor,
    inbox: tl.tensor,
    counter_of: tl.tensor,
    counts: tl.tensor,
    ranks: tl.tensor,
    ATOMIC: tl.constexpr,
    SCOPE: tl.constexpr,
) -> tl.tensor:
    """Send on a tile of rank ``at`` that has both updates; the neighbour's count, 0 at the end."""
    mine = address(sums, at, tl.float32) + base + within
    last = position == ranks - 1
    seen = tl.full((), 0, tl.int32)
    if (not last) or (not ATOMIC):
        value = tl.load(mine, inside, cache_modifier=".cg")
        if not ATOMIC:
            came = address(inbox, at, tl.float32) + base + within
            value += tl.load(came, inside, cache_modifier=".cg")
        if last:
            tl.store(mine, value, inside)
        else:
            to = (at + ranks - 1) % ranks
            put(address(inbox, to, tl.float32) + base + within, value, inside, ATOMIC, SCOPE)
            seen = arrive(address(counts, to, tl.int32) + counter_of, SCOPE)
    return seen


@triton.jit(do_not_specialize=["first", "begin", "end", "patience"])
def ring(
    a: tl.tensor,
    b: tl.tensor,
    sums: tl.tensor,
    inbox: tl.tensor,
    counts: tl.tensor,
    first: tl.tensor,
    ranks: tl.tensor,
    workers: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    patience: tl.tensor,
    HERE: tl.constexpr,
    MOVERS: tl.constexpr,
    FUSED: tl.constexpr,
    ATOMIC: tl.constexpr,
    SCOPE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Ranks ``first`` to ``first + HERE - 1``: tiles ``begin`` to ``end`` of each one's order.

    a (HERE, m, k), b (HERE, k, n); sums, inbox, counts: address of each rank's buffer (int64).
    HERE * (workers + MOVERS) programs. patience: polls of a tile. FUSED False: tiles are stored in
    sums and nothing else.
    """
    program = tl.program_id(0)
    chunk_rows = m // ranks
    tiles = tl.cdiv(chunk_rows, BM) * tl.cdiv(n, BN)
    if program < HERE * workers:
        local = program // workers
        rank = first + local
        a += local.to(tl.int64) * m * k
        b += local.to(tl.int64) * k * n
        for t in range(begin + program % workers, end, workers):
            position, place = t // tiles, t % tiles
            chunk = (rank + 1 + position) % ranks
            row, col, row_in, col_in, base, within = tile_at(chunk, place, chunk_rows, n, BM, BN)
            inside = row_in[:, None] & col_in[None, :]
            acc = product(a, b, row, col, row_in, col_in, n, k, BK, PRECISION)
            if FUSED:
                # The first chunk is never stored here: it goes to the neighbour (remote_map).
                remote = position == 0
                at = tl.where(remote, (rank + ranks - 1) % ranks, rank)
                table = tl.where(remote, inbox, sums)
                put(address(table, at, tl.float32) + base + within, acc, inside, ATOMIC, SCOPE)
                counter_of = chunk * tiles + place
                seen = arrive(address(counts, at, tl.int32) + counter_of, SCOPE)
                if MOVERS == 0:
                    position = tl.maximum(position, 1)
                    while seen == 2:
                        seen = forward(
                            at,
                            position,
                            base,
                            within,
                            inside,
                            sums,
                            inbox,
                            counter_of,
                            counts,
                            ranks,
                            ATOMIC,
                            SCOPE,
                        )
                        at = (at + ranks - 1) % ranks
                        position += 1
            else:
                tl.store(address(sums, rank, tl.float32) + base + within, acc, inside)
    elif MOVERS > 0:
        mover = program - HERE * workers
        rank = first + mover // MOVERS
        t = tiles + mover % MOVERS
        while t < ranks * tiles:
            position, place = t // tiles, t % tiles
            chunk = (rank + 1 + position) % ranks
            row, col, row_in, col_in, base, within = tile_at(chunk, place, chunk_rows, n, BM, BN)
            inside = row_in[:, None] & col_in[None, :]
            counter_of = chunk * tiles + place
            own = address(counts, rank, tl.int32)
            t += MOVERS
            if wait_for(own + counter_of, 2, patience, SCOPE) == 2:
                forward(
                    rank,
                    position,
                    base,
                    within,
                    inside,
                    sums,
                    inbox,
                    counter_of,
                    counts,
                    ranks,
                    ATOMIC,
                    SCOPE,
                )
            else:  # the first chunk's counters are not used here: see `Ring.check`
                tl.store(own + (rank + 1) % ranks * tiles, 1)
                t = ranks * tiles


INTERPRETED = not isinstance(ring, triton.runtime.JITFunction)
