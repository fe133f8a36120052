"""Traffic of a known amount, alone or beside a GEMM: Triton kernels. Sizes as in `kernels`.

Tested in Triton's interpreter, compiled for sm_80 and sm_90; ran on one H200.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from .kernels import arrive, product, tile_at


@triton.jit
def move(
    source: tl.tensor, target: tl.tensor, block: tl.tensor, BLOCK: tl.constexpr, KIND: tl.constexpr
) -> tl.tensor:
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
def stream(
    source: tl.tensor, target: tl.tensor, blocks: tl.tensor, BLOCK: tl.constexpr, KIND: tl.constexpr
) -> None:
    """All blocks, shared out among the programs."""
    kept = tl.zeros((BLOCK,), tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        kept += move(source, target, block, BLOCK, KIND)
    if KIND == "read":
        tl.store(target + tl.program_id(0), tl.sum(kept))


@triton.jit(do_not_specialize=["pause"])
def beside(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    source: tl.tensor,
    target: tl.tensor,
    done: tl.tensor,
    moved: tl.tensor,
    workers: tl.tensor,
    movers: tl.tensor,
    blocks: tl.tensor,
    pause: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
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
