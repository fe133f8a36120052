"""The exercises of notebook 03 that are choices: a mesh for a machine, a number of chunks.

Any answer is timed by `predict`, on the cluster in question; what is close to the best is right.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .. import clusters
from ..cost import show_seconds
from .atp import NOTEBOOK, strategy_of
from .formula import Formula, NoAnswer, Question

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..workload import GPT

NEAR = 1.01
"""A choice is right if its step takes at most this many times as long as the best one's."""


@dataclass(frozen=True, repr=False)
class Choice(Formula):
    """Asked for one of ``question.known``, {choice: seconds}; near ties are right as well.

    ``kind``: what a choice is, in words. ``unit``: what takes so long.
    """

    kind: str = ""
    unit: str = "a step"

    def judge(self, question: Question, got: Any) -> str | None:
        """What is wrong with an answer, or None where its time is near the least."""
        times = question.known
        got = chosen(times, got)
        if got not in times:  # what `ask` gives is hashable
            got = got.type if isinstance(got, NoAnswer) else repr(got)
            return (
                f"for {question} your function returned {got}, which is not {self.kind}: one "
                f"of {', '.join(map(repr, times))}."
            )
        if times[got] <= NEAR * min(times.values()):
            return None
        words = next(filter(None, (judge(question, got) for judge in self.checks)), "")
        return (
            f"for {question}: {got!r} takes {show_seconds(times[got])} {self.unit}, "
            f"{show_seconds(min(times.values()))} is possible. {words}"
        )


def chosen(choices: Iterable[Any], got: Any) -> Any:
    """The choice that an answer equals, whose sizes may be floats (8 / 2, say), or the answer."""
    return next((choice for choice in choices if choice == got), got)


# --- atp_mesh_for ---


def _machines():
    """(cluster, what its links are like) of 8 devices each."""
    return (
        (clusters.nvlink_pairs(4, rings="single"), "only pairs of neighbours have fast links"),
        (
            clusters.nvswitch_nodes(2, 4, nics=1),
            "four neighbours have fast links, and the two nodes share one NIC each",
        ),
        (
            clusters.torus(2, 4),
            "a mesh whose d2 is the ring of 2, or whose d1 is the ring of 4, "
            "has links of its own for each axis",
        ),
    )


@lru_cache(maxsize=1)
def _workload():
    from ..workload import GPT

    return GPT(layers=2, hidden=4096, heads=32, seq=1024, batch=4, vocab=32000, dtype="bfloat16")


def mesh_times(cluster: "Cluster", workload: "GPT") -> dict[tuple[int, int, str], float]:
    """{(d1, d2, order): predicted seconds of a step} of `ATP.meshes`."""
    from ..schemes.atp.strategy import ATP
    from ..verbs.predict import predict

    return {
        (*s.mesh, s.order): predict(s, workload, cluster).step_time
        for s in ATP.meshes(workload, cluster.size)
    }


def _make_mesh_for(rng):
    machines, questions, w = _machines(), [], _workload()
    for number in rng.permutation(len(machines)).tolist():
        cluster, why = machines[number]
        times = mesh_times(cluster, w)
        times.setdefault((1, cluster.size, "row"), times[cluster.size, 1, "column"])  # the same
        times.setdefault((cluster.size, 1, "row"), times[1, cluster.size, "column"])
        asked = {"cluster": cluster, "workload": w}
        best = min(times, key=times.get)  # pyright: ignore[reportCallIssue, reportArgumentType]
        questions.append(Question(asked, best, f"{cluster.name} ({why})", times))
    return questions


def _mesh_wrong(question, got):
    cluster, w = question.arguments.values()
    from ..verbs.predict import predict

    strategy = strategy_of(got[:2], got[2])
    exposed = predict(strategy, w, cluster).exposed
    worst = max(exposed, key=exposed.get)  # pyright: ignore[reportCallIssue, reportArgumentType]
    bandwidth = cluster.axis_link(strategy.axes, worst).bandwidth
    wide = "d2" if strategy.order == "column" else "d1"
    load = "the heavy one, with three times the bytes," if worst == wide else "the light one"
    load = "the only one" if 1 in got[:2] else load
    return (
        f"Its kernels wait most for {worst} ({show_seconds(exposed[worst])}): {load} in "
        f"{strategy.order} order, and a rank gets {bandwidth / 1e9:.3g} GB/s on it."
    )


MESH_FOR = Choice(
    name="atp_mesh_for",
    title="Choose the mesh for the machine",
    notebook=NOTEBOOK,
    prompt="Guess before you search: three machines of 8 devices, `cluster.name` "
    '"NVLink-pair PCIe box", "2 NVSwitch nodes, 1 NIC each" and "2 x 4 torus" '
    "(neighbouring ranks lie along its side of 2). For a given `cluster` and `workload` "
    "return (d1, d2, order) of the ATP that takes least time. Write a guess for each, or a "
    "function that works it out: each answer is timed on the cluster by `tv.predict`, and "
    "within 1 % of the best is right.",
    starter="""def atp_mesh_for(cluster, workload):
    return 8, 1, "column"  # Megatron everywhere?""",
    hints=(
        "One axis carries three times the bytes of the other: give it the fast links, and no more "
        "ranks than these reach.",
        "In column order the heavy axis is d2, of neighbouring ranks. How many neighbours have "
        "fast links? A group that leaves its node shares the node's way out with all the others.",
        "`tv.predict(s, workload, cluster).step_time` for each s of `tv.ATP.meshes(workload, "
        "cluster.size)`; return `(*s.mesh, s.order)` of the smallest.",
    ),
    success="No mesh is best everywhere: this is what the paper's search is for.",
    make=_make_mesh_for,
    needs=None,
    checks=(_mesh_wrong,),
    kind="a mesh with its order",
)


# --- atp_chunk_count ---

COUNTS = (1, 2, 4, 8, 16, 32)


def chunk_times(
    cluster: "Cluster", workload: "GPT", mesh: tuple[int, int] = (4, 2)
) -> dict[int, float]:
    """{chunks: predicted seconds of a step}."""
    from ..verbs.predict import predict

    return {c: predict(strategy_of(mesh, chunks=c), workload, cluster).step_time for c in COUNTS}


def _make_chunk_count(rng):
    base, questions = replace(_workload(), batch=32), []
    for hop, hidden in ((3.4e-6, 8192), (3e-5, 8192), (1e-4, 4096)):
        box = clusters.nvswitch(8)
        level = replace(box.levels[0], p2p=2e11, group=2e11, latency=hop)
        cluster = replace(box, levels=(level,))
        w = replace(base, hidden=hidden)
        asked = {"cluster": cluster, "workload": w, "mesh": (4, 2)}
        words = f"hidden={hidden} with {1e6 * hop:.3g} us a hop"
        times = chunk_times(cluster, w)
        questions.append(Question(asked, min(times, key=times.get), words, times))  # pyright: ignore[reportCallIssue, reportArgumentType]
    return [questions[k] for k in rng.permutation(len(questions)).tolist()]


def _count_wrong(question, got):
    if got < question.answer:
        return (
            "More chunks are faster here: what is left of a layer's sum after its last GEMM is "
            "one chunk's."
        )
    return (
        "Fewer chunks are faster here: each sum pays its hops again, and a chunk's latency is "
        "not worth what it hides."
    )


CHUNK_COUNT = Choice(
    name="atp_chunk_count",
    title="How many chunks hide the sums?",
    notebook=NOTEBOOK,
    prompt=f"Return the number of chunks, one of {COUNTS}, with which `tv.ATP(mesh=mesh, "
    "chunks=c)` takes least time for a step of `workload` on `cluster`; within 1 % is "
    "right. Ask `tv.predict(strategy, workload, cluster).step_time`, or reason with the "
    "time of a GEMM, of a sum and of its hops.",
    starter="""def atp_chunk_count(cluster, workload, mesh):
    return 1""",
    hints=(
        "A chunk's sum runs during the next chunk's GEMM. What can never be hidden?",
        "With GEMM g, sum a, latency l: T(C) = max(g + a / C + l, g / C + a + C l). Where g is the "
        "longer, more chunks leave less of a; where a is, each chunk costs one l.",
        f"`min({COUNTS}, key=lambda c: tv.predict(tv.ATP(mesh=mesh, chunks=c), workload, "
        "cluster).step_time)`.",
    ),
    success="The model of the step takes a GEMM in parts as costing what it costs whole. On a real "
    "device small GEMMs are slower, and slower still while a sum runs: fewer chunks than "
    "this, in doubt.",
    make=_make_chunk_count,
    needs=None,
    checks=(_count_wrong,),
    kind="a number of chunks",
)
