"""Models, GPUs and training states to plan with."""

from difflib import get_close_matches
from functools import lru_cache

from tpviz import clusters, models
from tpviz.cluster import Cluster
from tpviz.cluster.profiles import as_run_by, frameworks
from tpviz.core.checks import one_of
from tpviz.core.workload import GPT
from tpviz.evidence.published.adapter import fabric_of
from tpviz.evidence.published.bands import IDEAL
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.room import USUAL, Training
from tpviz.verbs.written import cell

BATCH = 1 << 22
"""Tokens of a step of a model chosen by name: Llama 2's 4M (Touvron et al. 2023, arXiv 2307.09288,
table 1), where that is a whole number of sequences."""
PADDED = 1024
"""A vocabulary that does not split over 64 ranks is padded to a multiple of this."""
COUNTS = sorted({*(1 << k for k in range(1, 15)), *(3 << k for k in range(4, 13))})
"""Numbers of GPUs to choose from: 2 to 16,384."""
USUAL_GPUS, USUAL_GPU, USUAL_FRAMEWORK, USUAL_MODEL = 512, "H100-SXM-80GB", "Megatron-LM", "llama2"
STATES = (
    ("moments and master weights in float32", USUAL),
    ("moments in 16 bits, master weights in float32", Training(moments=2)),
    ("moments in 8 bits, master weights in float32", Training(moments=1)),
    ("all in 16 bits", Training(gradients=2, master=0, moments=2)),
)
"""What AdamW keeps of a model in 16 bits."""


def preset(name: str) -> GPT:
    """A model of `tpviz.models` by name, to plan with: its batch of `BATCH` tokens, its vocabulary
    padded where it does not split over 64 ranks."""
    family, size = name.split()
    w = models.presets()[family](size)
    vocab = w.vocab if w.vocab % 64 == 0 else -(-w.vocab // PADDED) * PADDED
    return models.presets()[family](size, batch=max(1, BATCH // w.seq), vocab=vocab)


def given(workload: GPT | str | None) -> GPT | str:
    """The workload, or the name of a model, spelled as in the menu."""
    if workload is None:
        return f"{USUAL_MODEL} 70B"
    if isinstance(workload, GPT):
        return workload
    if not isinstance(workload, str):
        raise ValueError(
            f"explore needs a workload such as tv.GPT() or the name of a model, not {workload!r}"
        )
    if name := models.spelled(workload):
        return name
    known = {one.lower(): one for one in models.names()}
    near = [known[one] for one in get_close_matches(workload.lower(), known, 3, 0)]
    raise ValueError(
        f"workload={workload!r} is none of the {len(known)} models of tv.models: use "
        + " or ".join(map(repr, near))
    )


@lru_cache(maxsize=64)
def cluster_for(gpu: str, gpus: int, framework: str) -> Cluster:
    """GPUs in NVIDIA's nodes: ideal, or as run by a framework. Raises ``ValueError`` for unknown
    names, and for a node that would be cut."""
    one_of("framework", framework, (IDEAL, *frameworks()))
    cluster = clusters.dgx(gpu, gpus)
    return cluster if framework == IDEAL else as_run_by(cluster, framework, fabric_of(framework))


def plan_cell(
    model: str,
    workload: GPT,
    strategy: Strategy,
    training: Training,
    *,
    gpus: int,
    gpu: str,
    framework: str,
) -> str:
    """The code of a notebook's cell that makes the planner of a plan.

    model : its name, of which the cell has the sizes only where they are not the published ones.
    training : one of `STATES`. Raises ``ValueError`` for a strategy that has no code, such as a
    schedule of one's own.
    """
    named = model if model in models.names() and workload == preset(model) else workload
    on = {"gpus": gpus, "gpu": gpu, "framework": framework}
    lines = cell("explore", lambda: None, workload=named, **on, strategy=strategy)
    states = {value: words for words, value in STATES}[training]
    return lines + f"\nview.states.label = {states!r}" * (training != USUAL)
