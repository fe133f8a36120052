"""The capstone, notebook 09: a plan for a described cluster, a layout for a published model on 512
GPUs, each with the numbers that explain it; and an all-reduce over two levels of links."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .checks import (
    Case,
    Mistake,
    RankProgram,
    fewest_bytes,
    ran_along,
    right_numbers,
    right_shape,
    same_ledger,
    silent,
    whole_numbers,
)
from .marks import Marks, PlanExercise
from .variants import Terms


# --- capstone_cluster ---
def _given_cluster(seed: int) -> tuple[Any, ...]:
    from .capstone_grade import described  # what grades a plan loads torch, a task does not

    return described(seed)


def _mark_cluster(answer: Mapping[str, Any], seed: int) -> Marks:
    from .capstone_grade import mark_cluster

    return mark_cluster(answer, seed)


CLUSTER = PlanExercise(
    title="Plan a run",
    prompt="Plan a training step for a described cluster: `workload, cluster = tv.exercise("
    '"capstone_cluster").given(0)`. Return a dict of `plan`, a strategy, and of the numbers that '
    "explain it, by your formulas or by ours: `predicted` and `simulated`, seconds of a step; "
    "`exposed`, the share of the predicted step in which kernels wait for communication; `sent`, "
    "{axis: bytes that rank 0 sends in a step}; `memory`, bytes of a rank. Last, the emulated run: "
    "`run`, a `tv.compare` of the plan on this cluster in slow motion, and `residual`, seconds "
    "that its measured step takes longer than its simulated one, at full speed.\n\n"
    "30 points are for the plan: the step of the best one that `tv.search` finds among Megatron, "
    "DataParallel and Merak, over yours; none if it does not fit into memory. 10 are for each "
    "number within 1 % (the residual, read from the run that you hand in: 10 %), and for the run. "
    "90 of 100 pass. Another `seed` is another cluster.",
    starter="""def capstone_cluster(workload, cluster):
    return {
        "plan": tv.DataParallel(dp=cluster.size, zero=3),
        "predicted": None,  # seconds
        "simulated": None,  # seconds
        "exposed": None,  # share of the predicted step, 0 to 1
        "sent": {},  # {axis: bytes that rank 0 sends in a step}
        "memory": None,  # bytes of a rank
        "run": None,  # tv.compare on the emulated cluster
        "residual": None,  # seconds, slow motion divided out
    }""",
    concept="What does each axis send, how often, and over which links? What has to fit into a "
    "rank's memory?",
    principle="Nodes share one NIC: what is sent in every layer stays inside a node, and what "
    "crosses is sent once a step, or once a microbatch. A pipeline pays with its bubble: more "
    "microbatches and a schedule that splits backward make it small.",
    shape="A strategy or a product of two; two attributes of a prediction and a quotient of its "
    "parts; one row of the ledger for each axis; the sum of the kinds of memory; a comparison, and "
    "a difference of two of its step times over the slow motion.",
    success="A plan whose prediction, simulation and run agree is a plan that you understand; its "
    "residual is what you do not.",
    given=_given_cluster,
    mark=_mark_cluster,
    keys=("plan", "predicted", "simulated", "exposed", "sent", "memory", "run", "residual"),
    least=90.0,
)


# --- capstone_published ---
def _given_group(seed: int) -> tuple[Any, ...]:
    from .capstone_grade import group_of

    return (group_of(seed),)


def _mark_published(answer: Mapping[str, Any], seed: int) -> Marks:
    from .capstone_grade import mark_published

    return mark_published(answer, seed)


PUBLISHED = PlanExercise(
    title="Choose a layout for 512 GPUs",
    prompt="`group` has the layouts of Llama 1B on 512 H100 that others measured: "
    '`group, = tv.exercise("capstone_published").given(0)`, and `tv.LayoutView("llama-1B", '
    "gpus=512)` shows them with the measurements covered. Return a dict of `layout`, {tp, pp, dp, "
    "micro_batch, zero}, and of what you expect of it: `predicted`, seconds of a step; `exposed` "
    "and `bubble`, shares of the predicted step; `memory`, bytes in mixed precision of the GPU "
    "that needs most: parameters, gradients, optimizer state and activations; `sent`, {axis: bytes "
    "that a GPU sends in a step}, of tp, pp and dp.\n\n"
    "50 points are for the layout: the fastest measured step over yours. 10 are for each number "
    "within 1 %. 75 of 100 pass, so a step of more than twice the fastest cannot. Choose before "
    "you look at measured steps: they are public, and who looks them up learns nothing.",
    starter="""def capstone_published(group):
    return {
        "layout": {"tp": 1, "pp": 2, "dp": 256, "micro_batch": 1, "zero": 1},
        "predicted": None,  # seconds
        "exposed": None,  # share of the predicted step, 0 to 1
        "bubble": None,  # share of the predicted step, 0 to 1
        "memory": None,  # bytes of a GPU
        "sent": {},  # {axis: bytes that a GPU sends in a step}
    }""",
    concept="256 sequences on 512 GPUs: how many microbatches has a replica? What does that leave "
    "for a pipeline, and for data parallelism?",
    principle="Few and large microbatches: their GEMMs are large, and every stage boundary is "
    "crossed seldom. Among those layouts predictions are close, so look at what they leave out: "
    "hundreds of ranks in one all-reduce, tp that crosses nodes, stages that wait.",
    shape="A layout of one or two microbatches; parts of `layouts.parts(point)` over their sum, "
    "where `point` is in `group.at(**layout)`; sums of what `layouts.Turn(group, (point,), True)` "
    "has.",
    success="The residual of a published run is one number without causes: nobody can check what "
    "it is made of.",
    given=_given_group,
    mark=_mark_published,
    keys=("layout", "predicted", "exposed", "bubble", "memory", "sent"),
    least=75.0,
)


# --- capstone_levels ---
def _levels_case(rng, axes):
    ranks = axes["node"] * axes["gpu"]
    inputs = [(whole_numbers(rng, 4 * axes["gpu"]),) for _ in range(ranks)]
    terms = [x for (x,) in inputs]

    def program(steps):
        shards = steps.scatter("`x`", terms, "gpu")
        return steps.gather("the sum", steps.sum("the shard", shards, "node"), "gpu")

    return Case(inputs, [np.sum(terms, axis=0)] * ranks, None, Terms(terms, "all"), program)


def _levels_sends(axes, case):
    size = case.expected[0].nbytes
    return [
        ("gpu", "reduce_scatter", 1, size),
        ("node", "all_reduce", 1, size // axes["gpu"]),
        ("gpu", "all_gather", 1, size),
    ]


LEVELS = RankProgram(
    title="An all-reduce over two levels of links",
    prompt="Nodes share one NIC, so bytes between nodes are dear. Sum `x` over all ranks of a mesh "
    'with the axes "node" (outer) and "gpu": first over the GPUs of a node, such that each is left '
    "with a shard of the sum, then each shard over the nodes, then gather the shards. `x`: [N], N "
    "a multiple of the GPUs of a node. Every rank returns the whole sum, and sends between nodes "
    "only 1/g of what an all-reduce over `node` of the whole tensor sends.",
    starter="""def capstone_levels(x, mesh):
    # x: [N], this rank's; mesh axes "node" and "gpu"
    return x""",
    concept="What does a rank have to know of the sum before its node talks to others?",
    principle="Reduce-scatter over gpu leaves each GPU its node's sum of one shard. Only that "
    "shard crosses to other nodes.",
    shape="Three collectives: on gpu, on node, on gpu again; the second one on a tensor of "
    "`len(x) // gpus` numbers.",
    success="The links between nodes carry 1/g of the bytes of each GPU. Hybrid sharded data "
    "parallelism (HSDP) has the same three collectives.",
    make=_levels_case,
    sends=_levels_sends,
    worlds=({"node": 2, "gpu": 2}, {"node": 2, "gpu": 3}),
    judges=(
        silent("the trace shows no collective: every rank still has its own tensor only."),
        ran_along(
            "world",
            "all_reduce",
            "your all_reduce ran on all ranks at once (the default group): it sends over the NIC "
            "what is to stay in a node, and adds shards of different GPUs, if it is of shards. "
            'Reduce in steps, over `mesh.get_group("gpu")` and `mesh.get_group("node")`.',
        ),
        Mistake(
            lambda a: "node" not in {row.axis for row in a.ledger},
            "nothing was sent between the nodes: each has the sum of its own GPUs only.",
        ),
        Mistake(
            lambda a: "gpu" not in {row.axis for row in a.ledger},
            "nothing was sent between the GPUs of a node: their tensors are not added.",
        ),
        Mistake(
            lambda a: a.ledger.total(axis="node")[2] > a.needed.total(axis="node")[2],
            "you send whole tensors between the nodes, with {a}. Reduce-scatter over gpu first: "
            "then only a shard has to cross.",
        ),
        right_shape,
        right_numbers,
        fewest_bytes,
        same_ledger,
    ),
)
