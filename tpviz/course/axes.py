"""The exercise of notebook 07 on the axis of a mesh that carries tensor parallelism."""

from tpviz.cluster import Cluster, Device, Dimension, Level
from tpviz.core.mesh import Mesh

from .formula import Asked, Formula, least
from .told import told

_DEVICE = Device({"float32": 1e13}, 4e10, 1e12)


_WIRED = (  # (cluster, mesh axes, payload bytes), outermost axis first
    # In this order each rule of thumb of `_RULES` fails on an axis where no other one has failed.
    (
        Cluster(
            "racks of NVLink nodes",
            _DEVICE,
            (
                Level("NVLink", 2, 2e11, 2e11, 3e-6),
                Level("network", 4, 2.5e10, 2.5e10, 1e-5),
                Level("spine", 3, 1e11, 1e11, 2e-5),
            ),
        ),
        {"x": 3, "y": 4, "z": 2},
        2**24,
    ),
    (
        Cluster(
            "a torus of slow, short and fast rings",
            _DEVICE,
            torus=(
                Dimension("slow", 4, 1e10, 3e-6),
                Dimension("short", 2, 2e10, 2e-6),
                Dimension("fast", 4, 1e11, 1e-6),
            ),
        ),
        {"x": 4, "y": 2, "z": 4},
        2**24,
    ),
    (
        Cluster(
            "two wide NVLink nodes of bus boards",
            _DEVICE,
            (
                Level("bus", 4, 1e9, 1e9, 1e-6),
                Level("NVLink", 8, 2e11, 8e11, 8e-6),
                Level("network", 2, 2.5e10, 8e11, 1e-5),
            ),
        ),
        {"x": 2, "y": 8, "z": 4},
        2**16,
    ),
    (
        Cluster(
            "lopsided torus",
            _DEVICE,
            torus=(
                Dimension("thin", 4, 2e10, 1e-6),
                Dimension("wide", 4, 1e11, 1e-6),
                Dimension("far", 4, 1e10, 1e-6),
            ),
        ),
        {"x": 4, "y": 4, "z": 4},
        2**24,
    ),
)
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
