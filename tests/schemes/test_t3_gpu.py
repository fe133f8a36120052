"""T3 on a GPU. With CUDA the kernels run there; without, in Triton's interpreter where there is a
Triton (torch for the CPU brings none): the same tests on small sizes, and real processes that wait
for each other.
"""

import importlib.util
import os
import random
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import tpviz as tv
from tpviz.evidence.t3_gpu import Settings, VirtualRing, ring_sum

ROOT = Path(__file__).parents[2]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAVE_TRITON = importlib.util.find_spec("triton") is not None
SMALL = Settings(tile=(16, 16, 16), warps=4)
needs_triton = pytest.mark.skipif(not HAVE_TRITON, reason="no Triton: it comes with torch for CUDA")
runs_kernels = pytest.mark.skipif(
    not HAVE_TRITON or CUDA == INTERPRETED,
    reason=(
        "needs a CUDA device, or TRITON_INTERPRET=1 without one; test_in_the_interpreter sets that"
    ),
)
OLD = HAVE_TRITON and tuple(map(int, metadata.version("triton").split(".")[:2])) < (3, 7)
interpreted = pytest.mark.skipif(CUDA, reason="the interpreter stands in where there is no GPU")


@needs_triton
@interpreted
@pytest.mark.skipif(INTERPRETED, reason="runs itself")
@pytest.mark.skipif(OLD, reason="the interpreter of Triton before 3.7 does not take NumPy 2.4")
def test_in_the_interpreter(tmp_path):
    """This file again, in a process and ranks that load Triton anew: it reads the switch then."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            __file__,
            "-q",
            "-o",
            "addopts=",
            "-k",
            "kernels",
            "-o",
            f"cache_dir={tmp_path}",
        ],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and "passed" in said and "skipped" not in said, (
        done.stdout + done.stderr
    )


def inputs(ranks, m, k, n, dtype=torch.float16, seed=0):
    made = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=made).to(DEVICE, dtype)
    return draw(ranks, m, k), draw(ranks, k, n)


def exact(a, b):
    """(ranks, m / ranks, n) in float64."""
    total = torch.einsum("rmk,rkn->mn", a.double(), b.double())
    return total.view(len(a), -1, b.shape[2])


@runs_kernels
class TestKernels:
    """On the GPU, or interpreted: small sizes, every mode, every order, processes that wait."""

    @pytest.mark.parametrize(
        "reduce, ranks, m, k, n, dtype",
        [
            ("atomic", 2, 32, 16, 16, torch.float16),
            ("turn", 3, 51, 17, 19, torch.float32),
            ("atomic", 4, 20, 33, 18, torch.float16),
        ],
    )
    def test_every_mode_gives_the_bits_of_the_ring(self, reduce, ranks, m, k, n, dtype):
        a, b = inputs(ranks, m, k, n, dtype)
        settings = Settings(tile=(16, 16, 16), warps=4, reduce=reduce)
        ring = VirtualRing(a, b, settings)
        want = ring_sum(ring.partials().clone())
        assert (want - exact(a, b)).abs().max() < 1e-4
        for mode in ("sequential", "chunk", "tile"):
            assert torch.equal(ring.run(mode), want), mode
        # What a run leaves behind does not leak into the next one.
        assert torch.equal(ring.run("tile"), want)

    @pytest.mark.parametrize("reduce", ["atomic", "turn"])
    def test_any_order_of_arrival_gives_the_same_bits_and_counts(self, reduce):
        ranks = 4
        a, b = inputs(ranks, 64, 16, 20)
        settings = Settings(tile=(16, 16, 16), warps=4, reduce=reduce)
        ring = VirtualRing(a, b, settings)
        want = ring.run().clone()
        inbox = ring.sums if reduce == "atomic" else ring.inbox
        from tpviz.evidence.t3_gpu.ring import GpuRing, addresses

        tables = [addresses(x) for x in (ring.sums, inbox, ring.counts)]
        singles = [
            GpuRing(a[r : r + 1], b[r : r + 1], *tables, first=r, settings=settings)
            for r in range(ranks)
        ]
        for seed in range(2):
            ring.clear()
            order = [(rank, t) for rank in range(ranks) for t in range(ranks * ring.tiles)]
            random.Random(seed).shuffle(order)
            for rank, t in order:  # any tile of any rank may be the next to be done
                singles[rank].launch(t, t + 1)
            rows = ring.sums.view(ranks, ranks, ring.chunk, ring.n)
            assert torch.equal(torch.stack([rows[r, r] for r in range(ranks)]), want)
            counts = ring.counts.view(ranks, ranks, ring.tiles)
            for rank in range(ranks):
                for chunk in range(ranks):
                    # A rank's first chunk goes to the neighbour; every other tile has two updates.
                    assert (counts[rank, chunk] == (0 if chunk == (rank + 1) % ranks else 2)).all()

    @interpreted
    @pytest.mark.parametrize("reduce", ["atomic", "turn"])
    def test_processes_whose_movers_wait_for_each_other(self, tmp_path, reduce):
        path = tmp_path / "buffers"
        path.write_bytes(bytes(3 * 3 * 48 * 32 * 4))
        for got, want in tv.launch(
            _waiting_rank,
            str(path),
            reduce,
            (16, 16, 16),
            world_size=3,
            backend="gloo",
            device="cpu",
        ):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)

    @interpreted
    def test_a_mover_whose_neighbour_sends_nothing_gives_up(self, monkeypatch):
        """The two ranks of a ring one after the other: the first finds nothing, and says so."""
        from tpviz.evidence.t3_gpu import ring as rings

        monkeypatch.setattr(rings, "PATIENCE", 20)
        a, b = inputs(2, 64, 16, 16)
        buffers = torch.zeros(2, 64, 16), torch.zeros(2, 4, dtype=torch.int32)
        sums, counts = map(rings.addresses, buffers)
        settings = Settings(tile=(16, 16, 16), movers=1)
        pair = [
            rings.GpuRing(
                a[r : r + 1], b[r : r + 1], sums, sums, counts, first=r, settings=settings
            )
            for r in range(2)
        ]
        pair[0].launch()
        with pytest.raises(RuntimeError, match=r"rank 0: a tile never had both.* rank 1 above"):
            pair[0].check(buffers[1][0])
        pair[1].launch()  # which has all of rank 0's
        pair[1].check(buffers[1][1])
        want = ring_sum(torch.stack([x.float() @ y.float() for x, y in zip(a, b)]))[1]
        torch.testing.assert_close(buffers[0][1, 32:], want)

    @pytest.mark.parametrize("kind", ["copy", "update"])
    def test_movers_beside_a_gemm_change_nothing_in_it(self, kind):
        from tpviz.evidence.t3_gpu.traffic import BLOCK, Beside

        bench = Beside(
            24, 20, 40, movers=2, kind=kind, buffer=8 * 4 * BLOCK, device=DEVICE, settings=SMALL
        )
        bench.source.normal_()
        bench.target.fill_(1)
        for pause, least in [(-1, 0), (0, 1), (3, 1)]:
            bench.done.zero_()
            bench.launch(pause)
            torch.testing.assert_close(bench.out, (bench.a.float() @ bench.b.float()).half())
            assert int(bench.done) == bench.workers
            moved = bench.moved.tolist()
            assert all(n >= least for n in moved) and (pause >= 0 or moved == [0, 0])
            if not CUDA and pause == 0:  # interpreted movers find the GEMM done after one block
                assert moved == [1, 1]
                want = bench.source[: 2 * BLOCK] + (kind == "update")
                assert torch.equal(bench.target[: 2 * BLOCK], want)
                assert bench.target[2 * BLOCK :].eq(1).all()

    def test_streams_pass_every_block_once(self):
        from tpviz.evidence.t3_gpu.traffic import BLOCK
        from tpviz.evidence.t3_gpu.traffic_kernels import stream

        source = torch.randn(5 * BLOCK, device=DEVICE)
        for kind in ("read", "write", "copy", "update"):
            target = torch.ones(5 * BLOCK, device=DEVICE)
            stream[(2,)](source, target, 5, BLOCK=BLOCK, KIND=kind)
            if kind == "read":
                torch.testing.assert_close(target[:2].sum(), source.sum(), rtol=1e-3, atol=1e-2)
            else:
                want = {"write": 0 * source, "copy": source, "update": source + 1}[kind]
                assert torch.equal(target, want)

    @interpreted
    def test_interpreted_movers_of_one_process_are_refused(self):
        with pytest.raises(ValueError, match="movers=1 wait"):
            VirtualRing(*inputs(2, 32, 16, 16), Settings(tile=(16, 16, 16), movers=1))

    @interpreted
    def test_what_the_kernels_would_take_wrongly_is_refused(self):
        from tpviz.evidence.t3_gpu.ring import GpuRing

        a, b = inputs(2, 32, 16, 16)
        with pytest.raises(ValueError, match="bits of bfloat16"):
            VirtualRing(a.bfloat16(), b.bfloat16())
        with pytest.raises(ValueError, match="both must be one of"):
            VirtualRing(a, b.float())
        with pytest.raises(ValueError, match="multiple of 16 bytes"):
            GpuRing(a, b, [0, 8], [0, 8], [0, 16])


def _waiting_rank(path, reduce, tile):
    """On a rank: its programs and movers, on buffers in a file that all ranks map."""
    from tpviz.evidence.t3_gpu.ring import GpuRing

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    a, b = inputs(ranks, 48, 16, 32)
    part = 48 * 32
    shared = torch.from_file(path, shared=True, size=3 * ranks * part, dtype=torch.float32)
    shared = shared.view(3, ranks, part)
    sums, inbox, counts = ([x.data_ptr() for x in rows] for rows in shared)
    settings = Settings(tile=tile, reduce=reduce, movers=2)
    ring = GpuRing(
        a[rank : rank + 1],
        b[rank : rank + 1],
        sums,
        sums if reduce == "atomic" else inbox,
        counts,
        first=rank,
        settings=settings,
    )
    torch.distributed.barrier()
    ring.launch()  # returns when this rank's movers have had all their tiles
    result = shared[0, rank].view(ranks, -1, 32)[rank].clone()
    return result, ring_sum(torch.stack([x.float() @ y.float() for x, y in zip(a, b)]))[rank]


class TestCuda:
    """What only a GPU can show: programs that run at once, streams, symmetric memory."""

    pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]

    @pytest.mark.parametrize("movers", [0, 2])
    @pytest.mark.parametrize("reduce", ["atomic", "turn"])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_tiles_that_leave_while_the_gemm_runs(self, movers, reduce, dtype):
        a, b = inputs(4, 2048, 520, 1000, dtype)
        ring = VirtualRing(a, b, Settings(movers=movers, reduce=reduce))
        want = ring_sum(ring.partials().clone())
        torch.testing.assert_close(want.double(), exact(a, b), rtol=1e-3, atol=1e-2)
        for _ in range(20):  # another interleaving each time
            for mode in ("chunk", "tile"):
                assert torch.equal(ring.run(mode), want)

    def test_contention_is_plain_numbers(self):
        from tpviz.evidence.t3_gpu import bandwidths, contention

        rows = contention(2048, 2048, 1024, movers=8, pauses=(300, 0), repeats=5, buffer=256 << 20)
        assert 0 < rows[0].rate < rows[1].rate < sum(bandwidths(256 << 20, 3).values())
        assert all(row.slowdown > 0.8 for row in rows)

    def test_movers_go_through_the_buffer_block_by_block(self):
        from tpviz.evidence.t3_gpu.traffic import BLOCK, Beside

        bench = Beside(4096, 4096, 4096, movers=4, buffer=1 << 30)
        bench.source.fill_(1)
        bench.launch()
        assert bench.moved.min() > 1
        moved = int(bench.moved.sum())
        assert bench.target.sum(dtype=torch.float64) == moved * BLOCK
        assert bench.target.view(-1, BLOCK)[:, 0].count_nonzero() == min(moved, bench.blocks)

    @pytest.mark.parametrize(
        "movers",
        [
            0,
            pytest.param(
                8,
                marks=pytest.mark.skipif(
                    torch.cuda.device_count() < 2, reason="movers of two ranks need a GPU each"
                ),
            ),
        ],
    )
    def test_two_processes_over_symmetric_memory(self, movers):
        for got, want in tv.launch(
            _symmetric_rank, movers, world_size=2, backend="gloo", device="cuda"
        ):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2)


def _symmetric_rank(movers):
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    from tpviz.evidence.t3_gpu import SymmetricRing

    rank = torch.distributed.get_rank()
    a, b = inputs(2, 512, 256, 384)
    got = SymmetricRing(a[rank], b[rank], Settings(movers=movers)).run()
    return got.cpu(), exact(a, b)[rank].float().cpu()
