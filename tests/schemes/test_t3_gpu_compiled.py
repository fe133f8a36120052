"""T3's kernels compiled for GPUs that are not here: the fences and atomic adds in their code."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HAVE_TRITON = importlib.util.find_spec("triton") is not None

COMPILE = """
import re, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from tpviz.evidence.t3_gpu.kernels import ring
from tpviz.evidence.t3_gpu.traffic_kernels import beside, stream

WHAT = r"bar\\.sync|atom\\.[\\w.]*add[\\w.]*|red\\.global[\\w.]*|mma|acquire"

def made(name, kernel, types, **const):
    types = {n: "constexpr" if n in const else types.get(n, "i32") for n in kernel.arg_names}
    code = compile(ASTSource(fn=kernel, signature=types, constexprs=const),
                   target=GPUTarget("cuda", int(sys.argv[1]), 32),
                   options=dict(num_warps=4, enable_fp_fusion=True,
                                launch_cooperative_grid=kernel is not stream))
    print(name, *re.findall(WHAT, code.asm["ptx"]))

gemm = dict(BM=64, BN=64, BK=32, PRECISION="ieee")
# movers, fused, atomic, type: every value, and every pair of the first three that is launched
for movers, fused, atomic, dtype in [(2, True, True, "fp16"), (2, True, False, "fp32"),
                                     (0, True, True, "bf16"), (0, True, False, "fp16"),
                                     (0, False, True, "fp32")]:
    types = {n: f"*{dtype}" for n in "ab"} | dict(sums="*i64", inbox="*i64", counts="*i64")
    made(f"ring,{movers},{fused},{atomic},{dtype}", ring, types, HERE=4, MOVERS=movers,
         FUSED=fused, ATOMIC=atomic, SCOPE=sys.argv[2], **gemm)
types = dict(source="*fp32", target="*fp32")
made("stream,read", stream, types, BLOCK=1024, KIND="read")
types |= dict(a="*fp16", b="*fp16", out="*fp16", done="*i32", moved="*i32")
for kind in ("copy", "update"):
    made(f"beside,{kind}", beside, types, BLOCK=1024, KIND=kind, **gemm)
"""


@pytest.mark.skipif(not HAVE_TRITON, reason="no Triton: it comes with torch for CUDA")
@pytest.mark.parametrize("capability, scope", [("80", "sys"), ("90", "gpu")])
def test_compiled_counters_release_after_a_barrier(capability, scope):
    """Without a GPU: the code for one has the fences that `kernels` argues with, and no others."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, capability, scope],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 8
    for name, *found in lines:
        kernel, *way = name.split(",")
        has = lambda *words, found=found: any(all(w in f for w in words) for f in found)
        counters = [
            i for i, what in enumerate(found) if what.startswith("atom.") and "acq_rel" in what
        ]
        assert all(found[i - 1] == found[i + 1] == "bar.sync" for i in counters), name
        if kernel == "ring":
            movers, fused, atomic, dtype = way
            assert len(counters) == 2 * (fused == "True"), name
            assert all(scope in found[i] for i in counters), name
            assert has("acquire") == (movers == "2"), name
            # puts: a worker's and a mover's
            assert has("relaxed", "f32") == (fused == atomic == "True"), name
            assert has("mma") == (dtype != "fp32"), name
        else:
            assert len(counters) == (kernel == "beside"), name
            assert has("relaxed", "f32") == (way == ["update"]), name
