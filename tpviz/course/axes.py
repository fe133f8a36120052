"""The exercise of notebook 07 on the axis of a mesh that carries tensor parallelism."""

import json

from tpviz.cluster import Cluster
from tpviz.core.mesh import Mesh
from tpviz.evidence.facts import facts

from .formula import Asked, Formula, least
from .told import told

_WIRED = [
    (Cluster.from_json(json.dumps(row["cluster"])), row["mesh"], row["payload"])
    for row in facts(__file__, "axes").wired
]
"""[(cluster, mesh axes, payload bytes)]."""
_RULES = {
    "is the innermost axis": lambda place, size, link: -place,
    "is the outermost axis": lambda place, size, link: place,
    "has the fewest ranks": lambda place, size, link: size,
    "has the most bandwidth": lambda place, size, link: -link.bandwidth,
    "has the least latency of a hop": lambda place, size, link: link.latency,
}
"""{why an axis may be picked: what is least on that axis}."""


def _times(cluster, mesh, payload):
    """{axis: seconds of an all-reduce} with all groups of the axis active."""
    return {
        axis: cluster.collective_time(
            "all_reduce", payload, mesh.axes[axis], cluster.axis_link(mesh, axis)
        )
        for axis in mesh.axes
    }


def _draw_axis(rng):
    for cluster, axes, payload in _WIRED:
        names = rng.permutation(list(axes)).tolist()  # so that no name is the answer by heart
        mesh = Mesh(dict(zip(names, axes.values())))
        words = (
            f"{payload:,} bytes on {cluster.name}, mesh "
            f"{', '.join(f'{name} {size}' for name, size in mesh.axes.items())}"
        )
        yield Asked((cluster, mesh, payload), words, _times(cluster, mesh, payload))


def _reasons(cluster, mesh, axis):
    """Rules of thumb by which this axis alone comes first."""
    facts = [
        (place, size, cluster.axis_link(mesh, name))
        for place, (name, size) in enumerate(mesh.axes.items())
    ]
    mine = facts[mesh.names.index(axis)]
    return [
        words
        for words, rule in _RULES.items()
        if all(rule(*mine) < rule(*other) for other in facts if other is not mine)
    ]


def _axis_wrong(question, got):
    times, (cluster, mesh, _) = question.known, question.arguments.values()
    if got not in times:
        return AXIS.say("the axes", question=question, axes=", ".join(times), got=got)
    reasons = _reasons(cluster, mesh, got)
    words = AXIS.say("axis which does not decide", got=got, reasons=" and ".join(reasons))
    if not reasons:
        words = AXIS.say("axis takes the longest of all", got=got) * (
            got == max(times, key=times.get)
        )
    return AXIS.say(
        "all-reduce takes us along",
        question=question,
        mine=1e6 * times[got],
        got=got,
        least=1e6 * times[question.answer],
        words=words,
    )


AXIS = Formula(
    **told("axis_for_tp"),
    draw=_draw_axis,
    solution=lambda *asked: least(_times(*asked)),
    wrong=_axis_wrong,
)
