"""Traffic of a known amount, alone or beside a GEMM: Triton kernels. Sizes as in `kernels`.

Not run on a GPU yet; tested in Triton's interpreter, compiled for sm_80 and sm_90.
"""

import triton
import triton.language as tl

from .kernels import arrive, product, tile_at


@triton.jit
def move(source, target, block, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """One block of float32: "read", "write", "copy" (read, store) or "update" (read, atomic add).

    Returns what was read (zeros for "write"), so that a caller can keep a read from being dropped.
    """
    at = tl.full((), BLOCK, tl.int64) * block + tl.arange(0, BLOCK)
    value = tl.zeros((BLOCK,), tl.float32)
    if KIND != "write":
        value = tl.load(source + at, cache_modifier=".cg")
    if KIND == "update":
        tl.atomic_add(target + at, value, sem="relaxed")
    elif KIND != "read":
        tl.store(target + at, value)
    return value


@triton.jit
def stream(source, target, blocks, BLOCK: tl.constexpr, KIND: tl.constexpr):
    """All blocks, shared out among the programs."""
    kept = tl.zeros((BLOCK,), tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        kept += move(source, target, block, BLOCK, KIND)
    if KIND == "read":
        tl.store(target + tl.program_id(0), tl.sum(kept))


@triton.jit(do_not_specialize=["pause"])
def beside(
    a,
    b,
    out,
    source,
    target,
    done,
    moved,
    workers,
    movers,
    blocks,
    pause,
    m,
    n,
    k,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A GEMM on ``workers`` programs; ``movers`` more move blocks until it is done.

    Between two blocks a mover looks ``pause`` times whether the GEMM is done; below 0 it moves
    nothing. Movers only ever wait for workers, which wait for nobody; all are resident, one an SM.
    out (m, n) in a's type; done: one int32 of 0; moved (movers,) int32: blocks of each.
    """
    program = tl.program_id(0)
    if program < workers:
        for t in range(program, tl.cdiv(m, BM) * tl.cdiv(n, BN), workers):
            row, col, row_in, col_in, base, within = tile_at(0, t, m, n, BM, BN)
            acc = product(a, b, row, col, row_in, col_in, n, k, BK, PRECISION)
            tl.store(
                out + base + within, acc.to(out.dtype.element_ty), row_in[:, None] & col_in[None, :]
            )
        arrive(done, "gpu")
    else:
        mover = program - workers
        block, count = mover, 0
        finished = tl.where(pause < 0, workers, 0)
        while finished < workers:
            move(source, target, block, BLOCK, KIND)
            block = (block + movers) % blocks
            count += 1
            finished = tl.atomic_add(done, 0, sem="relaxed")
            left = pause
            while (left > 0) & (finished < workers):
                finished = tl.atomic_add(done, 0, sem="relaxed")
                left -= 1
        tl.store(moved + mover, count)
