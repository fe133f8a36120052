"""The exercises of notebook 02 on cost models: times, bandwidths, and choices that follow."""

from math import inf

from ..cluster import Cluster, Device, Dimension, Level
from ..cluster.collectives import cost
from ..mesh import Mesh
from .formula import Formula, Question, same

NOTEBOOK = "02_cost_models"


def _draw(rng, *choices):
    return [choice[int(rng.integers(len(choice)))] for choice in choices]


# --- ring_time ---


def _make_ring_time(rng):
    questions = []
    for n in (2, 4, 8, 6):
        payload, latency, bandwidth = _draw(
            rng, (240_000, 4_800_000, 96_000_000), (5e-6, 2e-5, 1e-4), (1e9, 5e9, 2e10)
        )
        hops, volume = cost("ring", "all_reduce", payload, n)
        asked = {"payload": payload, "n": n, "latency": latency, "bandwidth": bandwidth}
        questions.append(Question(asked, hops * latency + volume / bandwidth))
    return questions


def _ring_time_wrong(question, got):
    payload, n, latency, bandwidth = question.arguments.values()
    bytes_alone, part = 2 * (n - 1) / n * payload / bandwidth, (n - 1) / n * payload / bandwidth
    mistakes = [
        (
            bytes_alone,
            "that is the time of the bytes alone. A ring all-reduce takes 2(n-1) steps, "
            "one after another, and each of them pays one latency too.",
        ),
        (bytes_alone + latency, "you paid for one latency, but each of the 2(n-1) steps has one."),
        (
            2 * (n - 1) * latency + payload / bandwidth,
            "each rank sends 2(n-1)/n times the tensor on a ring, not once the tensor.",
        ),
        (
            part + (n - 1) * latency,
            "half way: this is a reduce-scatter. The all-gather takes as long again.",
        ),
        (
            2 * n * latency + 2 * payload / bandwidth,
            "a ring needs 2(n-1) steps of 1/n of the tensor: the last rank to add a block need not "
            "send it to itself.",
        ),
    ]
    for wrong, words in mistakes:
        if same(got, wrong):
            return f"for {question}: {words}"


RING_TIME = Formula(
    name="ring_time",
    title="The time of a ring all-reduce",
    notebook=NOTEBOOK,
    prompt="Write the time (s) of a ring all-reduce of a tensor of `payload` bytes over `n` ranks. "
    "A message of m bytes takes `latency` + m / `bandwidth` (s, bytes/s).",
    starter="""def ring_time(payload, n, latency, bandwidth):
    return payload / bandwidth""",
    hints=(
        "Count the steps of the microscope's ring, and the bytes of one message.",
        "A reduce-scatter and an all-gather, n-1 steps each, every message one n-th of the tensor.",
        "`steps = 2 * (n - 1)`, then `return steps * (latency + payload / n / bandwidth)`.",
    ),
    success="The alpha-beta model: latency times hops, plus bytes over bandwidth.",
    make=_make_ring_time,
    needs=None,
    checks=(_ring_time_wrong,),
)


# --- bus_bandwidth ---


def _factor(collective, n):
    return (2 if collective == "all_reduce" else 1) * (n - 1) / n


def _make_bus(rng):
    questions = []
    for collective, n in (
        ("all_reduce", 8),
        ("all_gather", 4),
        ("reduce_scatter", 3),
        ("all_to_all", 8),
    ):
        payload, seconds = _draw(rng, (2**20, 2**24, 3 * 2**20), (0.002, 0.013, 0.25))
        asked = {"collective": collective, "payload": payload, "n": n, "seconds": seconds}
        questions.append(Question(asked, _factor(collective, n) * payload / seconds))
    return questions


def _bus_wrong(question, got):
    collective, payload, n, seconds = question.arguments.values()
    algbw = payload / seconds
    if same(got, algbw):
        return (
            f"for {question}: that is algbw, S / t. busbw counts the bytes that each rank "
            "really has to send, which for this collective is not S."
        )
    if collective != "all_reduce" and same(got, 2 * (n - 1) / n * algbw):
        return (
            f"for {question}: 2(n-1)/n is for an all-reduce, which passes the ring twice; "
            f"{collective} passes it once."
        )
    if same(got, algbw / _factor(collective, n)):
        return f"for {question}: multiply algbw by the factor, do not divide by it."


BUS = Formula(
    name="bus_bandwidth",
    title="From a measured time to busbw",
    notebook=NOTEBOOK,
    prompt='A `collective` ("all_reduce", "all_gather", "reduce_scatter" or "all_to_all") '
    "of `payload` bytes (the full tensor) on `n` ranks took `seconds`. Return its busbw in "
    "bytes/s.",
    starter="""def bus_bandwidth(collective, payload, n, seconds):
    return payload / seconds""",
    hints=(
        "algbw is what the program sees; busbw is how fast a link must have worked.",
        "The least that a rank must send: 2(n-1)/n of the tensor for an all-reduce, (n-1)/n for "
        "the other three.",
        '`factor = (2 if collective == "all_reduce" else 1) * (n - 1) / n`, then '
        "`return factor * payload / seconds`.",
    ),
    success="Now numbers of different collectives and sizes of group can be compared with a link.",
    make=_make_bus,
    needs=None,
    checks=(_bus_wrong,),
)


# --- axis_for_tp ---

_DEVICE = Device({"float32": 1e13}, 4e10, 1e12)
_WIRED = (  # (cluster, mesh axes, payload bytes): inner and outer axis win twice each
    (
        Cluster(
            "two NVLink nodes",
            _DEVICE,
            (Level("NVLink", 4, 2e11, 2e11, 3e-6), Level("network", 2, 2.5e10, 2.5e10, 1e-5)),
        ),
        {"x": 2, "y": 4},
        2**24,
    ),
    (
        Cluster(
            "boards of slow bus, bridged",
            _DEVICE,
            (Level("shared bus", 2, 1e10, 1e10, 5e-6), Level("bridge", 2, 1e11, 2e11, 5e-6)),
        ),
        {"x": 2, "y": 2},
        2**22,
    ),
    (
        Cluster(
            "two wide NVLink nodes",
            _DEVICE,
            (Level("NVLink", 16, 2e11, 2e11, 8e-6), Level("network", 2, 2.5e10, 4e11, 1e-5)),
        ),
        {"x": 2, "y": 16},
        2**12,
    ),
    (
        Cluster(
            "lopsided torus",
            _DEVICE,
            torus=(Dimension("ring", 4, 1e11, 1e-6), Dimension("tall", 4, 2e10, 1e-6)),
        ),
        {"x": 4, "y": 4},
        2**24,
    ),
)


def _times(cluster, mesh, payload):
    """{axis: seconds of an all-reduce} with all groups of the axis active."""
    return {
        axis: cluster.collective_time(
            "all_reduce", payload, mesh.axes[axis], cluster.axis_link(mesh, axis)
        )
        for axis in mesh.axes
    }


def _make_axis(rng):
    questions = []
    for number in rng.permutation(len(_WIRED)):
        cluster, axes, payload = _WIRED[number]
        names = rng.permutation(list(axes)).tolist()  # so that no name is the answer by heart
        mesh = Mesh(dict(zip(names, axes.values())))
        times = _times(cluster, mesh, payload)
        words = (
            f"{payload:,} bytes on {cluster.name}, mesh "
            f"{' x '.join(f'{name} {size}' for name, size in mesh.axes.items())}"
        )
        questions.append(
            Question(
                {"cluster": cluster, "mesh": mesh, "payload": payload},
                min(times, key=times.get),  # pyright: ignore[reportCallIssue, reportArgumentType]
                words,
                times,
            )
        )
    return questions


def _axis_wrong(question, got):
    times = question.known
    if got not in times:
        return f"for {question}: the axes are {' and '.join(times)}; you returned {got!r}."
    return (
        f"for {question}: an all-reduce takes {1e6 * times[got]:.4g} us along {got}, but "
        f"{1e6 * times[question.answer]:.4g} us along {question.answer}. Count the hops with "
        "their latency, and the bytes at the bandwidth that is left when all groups of the "
        "axis send."
    )


AXIS = Formula(
    name="axis_for_tp",
    title="Which axis should carry tp?",
    notebook=NOTEBOOK,
    prompt="Tensor parallelism all-reduces `payload` bytes after every layer. Return the name of "
    "the axis of `mesh` along which this takes the least time on `cluster`. "
    "`cluster.axis_link(mesh, axis)` has the `.bandwidth` (bytes/s, all groups of the axis "
    "active) and the `.latency` (s) of a hop; `mesh.axes` is {name: size}.",
    starter="""def axis_for_tp(cluster, mesh, payload):
    return mesh.names[-1]  # the innermost axis""",
    hints=(
        "Innermost is often right, since neighbours have the best links; but compute it.",
        "For each axis: the time of a ring all-reduce of its size on its link; small messages are "
        "decided by hops x latency.",
        '`cluster.collective_time("all_reduce", payload, mesh.axes[a], cluster.axis_link(mesh, '
        "a))` for each axis a; return the a with the smallest.",
    ),
    success="This is the question that ATP and AxoNN answer by searching over meshes.",
    make=_make_axis,
    needs=None,
    checks=(_axis_wrong,),
)


# --- best_chunks ---


def _pipeline(chunks, payload, links, latency, bandwidth):
    """T(C) = (C + links - 1) (latency + payload / C / bandwidth); derived."""
    return (chunks + links - 1) * (latency + payload / chunks / bandwidth)


def _best(*sizes):
    """The smallest C with the smallest T(C); T has one valley, so stop when it rises."""
    chunks, least = 1, inf
    while (time := _pipeline(chunks, *sizes)) < least:
        chunks, least = chunks + 1, time
    return chunks - 1


def _make_chunks(rng):
    questions = []
    for links in (4, 8, 16, 3):
        payload, latency, bandwidth = _draw(
            rng, (1_000_003, 4_000_037, 9_000_011), (1e-5, 2e-5, 4e-5), (1e10, 2e10)
        )
        sizes = {"payload": payload, "links": links, "latency": latency, "bandwidth": bandwidth}
        questions.append(Question(sizes, _best(*sizes.values())))
    return questions


def _chunks_wrong(question, got):
    sizes, best = question.arguments.values(), question.answer
    if got < 1 or int(got) != got:
        return f"for {question}: you returned {got:.6g}, but chunks are whole, and at least 1."
    mine, least = (1e6 * _pipeline(c, *sizes) for c in (int(got), best))
    side = "more chunks are" if got < best else "fewer chunks are"
    why = (
        "a step is shorter, and the last link starts earlier"
        if got < best
        else "each chunk pays one more latency"
    )
    return (
        f"for {question}: T({int(got)}) = {mine:.6g} us, but {least:.6g} us is possible: "
        f"{side} faster here ({why})."
    )


CHUNKS = Formula(
    name="best_chunks",
    title="How many chunks?",
    notebook=NOTEBOOK,
    prompt="`payload` bytes pass along a chain of `links` links, cut into C chunks that follow "
    "each other: T(C) = (C + links - 1) (latency + payload / (C bandwidth)). Return the "
    "whole number C that makes T smallest.",
    starter="""def best_chunks(payload, links, latency, bandwidth):
    return 1""",
    hints=(
        "Many chunks fill the chain sooner, but each chunk pays the latency again.",
        "Multiply T out: one part grows with C, one falls with 1/C. Their sum is smallest where "
        "they are equal; then look at the two whole numbers next to it.",
        "`c = ((links - 1) * payload / (latency * bandwidth)) ** 0.5`; return whichever of "
        "`max(1, int(c))` and `int(c) + 1` has the smaller T.",
    ),
    success="The same square root sizes the buckets of DDP and the chunks that hide an all-reduce.",
    make=_make_chunks,
    needs=None,
    checks=(_chunks_wrong,),
)
