"""Answers to notebook 10 on numbers and choices: right ones, and wrong ones with their hints."""

from functools import partial

# --- atp_owned ---


def _owned(weight, shape, mesh, order, rank, exchange=False, outer_first=True, swap=False):
    at = dict(
        zip(
            ("d1", "d2"),
            divmod(rank, mesh[1]) if outer_first else (rank % mesh[0], rank // mesh[0]),
        )
    )
    sizes = dict(zip(("d1", "d2"), mesh))
    axes = ("d1", "d2") if (weight in ("qkv", "up")) == (order == "column") else ("d2", "d1")
    cuts = [
        (at[axis] * size // sizes[axis], (at[axis] + 1) * size // sizes[axis])
        for axis, size in zip(axes[::-1] if exchange else axes, shape)
    ]
    return (*cuts[0], *cuts[1]) if not swap else (*cuts[1], *cuts[0])


def owned(weight, shape, mesh, order, rank):
    return _owned(weight, shape, mesh, order, rank)


def owned_always_column(weight, shape, mesh, order, rank):
    return _owned(weight, shape, mesh, "column", rank)


def owned_always_first(weight, shape, mesh, order, rank):
    return _owned("up", shape, mesh, order, rank)


def owned_ranks_turned(weight, shape, mesh, order, rank):
    return _owned(weight, shape, mesh, order, rank, outer_first=False)


def owned_transposed(weight, shape, mesh, order, rank):
    return _owned(weight, shape, mesh, order, rank, swap=True)


def owned_nothing(weight, shape, mesh, order, rank):
    return shape


# --- atp_wire_bytes ---


def wire_bytes(d1, d2, order, tokens, hidden, itemsize):
    if order == "row":
        d1, d2 = d2, d1
    return 8 * tokens * hidden * itemsize / (d1 * d2) * ((d1 - 1) + 3 * (d2 - 1))


def wire_by_layer(d1, d2, order, tokens, hidden, itemsize):
    """Sum by sum, as the table has them."""
    i, s = (d1, d2) if order == "column" else (d2, d1)
    over_stream = [3 * hidden / i, 4 * hidden / i, hidden / i, 4 * hidden / i]
    over_inside = [hidden / s] * 4
    elements = 2 * (s - 1) / s * sum(over_stream) + 2 * (i - 1) / i * sum(over_inside)
    return tokens * itemsize * elements


def wire_forward_alone(*sizes):
    return wire_bytes(*sizes) / 2


def wire_of_payloads(d1, d2, order, tokens, hidden, itemsize):
    i, s = (d1, d2) if order == "column" else (d2, d1)
    return tokens * hidden * itemsize * (12 / i + 4 / s)


def wire_column_only(d1, d2, order, tokens, hidden, itemsize):
    return wire_bytes(d1, d2, "column", tokens, hidden, itemsize)


def wire_narrow_mlp(d1, d2, order, tokens, hidden, itemsize):
    i, s = (d1, d2) if order == "column" else (d2, d1)
    return 2 * tokens * hidden * itemsize / (i * s) * (4 * (i - 1) + 6 * (s - 1))


def wire_megatron(d1, d2, order, tokens, hidden, itemsize):
    n = d1 * d2
    return 8 * tokens * hidden * itemsize * (n - 1) / n


def wire_in_elements(d1, d2, order, tokens, hidden, itemsize):
    return wire_bytes(d1, d2, order, tokens, hidden, 1)


# --- atp_best_mesh ---


def _best(world_size, b1, b2, first=1, second=3):
    meshes = [(world_size >> k, 1 << k) for k in range(world_size.bit_length())]
    return min(meshes, key=lambda m: first * (m[0] - 1) / b1 + second * (m[1] - 1) / b2)


def best_mesh(world_size, b1, b2):
    return _best(world_size, b1, b2)


def best_is_one_axis(world_size, b1, b2):
    return world_size, 1


def best_is_square(world_size, b1, b2):
    d2 = 1 << (world_size.bit_length() - 1) // 2
    return world_size // d2, d2


def best_unweighted(world_size, b1, b2):
    return _best(world_size, b1, b2, second=1)


def best_weighs_d1(world_size, b1, b2):
    return _best(world_size, b1, b2, first=3, second=1)


def best_bandwidths_exchanged(world_size, b1, b2):
    return _best(world_size, b2, b1)


def best_is_no_mesh(world_size, b1, b2):
    return world_size, world_size


# --- atp_mesh_for ---


def mesh_for(cluster, workload):
    import tpviz as tv

    meshes = tv.ATP.meshes(workload, cluster.size)
    best = min(meshes, key=lambda s: tv.predict(s, workload, cluster).step_time)
    return *best.mesh, best.order


def mesh_guessed(cluster, workload):
    return {"NVLink-pair PCIe box": (4, 2, "column"), "2 x 4 torus": (4, 2, "column")}.get(
        cluster.name, (2, 4, "column")
    )


def mesh_is_megatron(cluster, workload):
    return 8, 1, "column"


def mesh_is_four_by_two(cluster, workload):
    return 4, 2, "column"


def mesh_in_row_order(cluster, workload):
    return *mesh_guessed(cluster, workload)[:2], "row"


def mesh_without_order(cluster, workload):
    return 4, 2


def mesh_as_list(cluster, workload):
    return [[4, 2], "column"]


def mesh_forgotten(cluster, workload):
    mesh_guessed(cluster, workload)


# --- atp_chunk_count ---


def chunk_count(cluster, workload, mesh):
    import tpviz as tv

    def seconds(chunks):
        return tv.predict(tv.ATP(mesh=mesh, chunks=chunks), workload, cluster).step_time

    return min((1, 2, 4, 8, 16, 32), key=seconds)


def _always(chunks, cluster, workload, mesh):
    return chunks


count_one, count_four, count_thirty_two, count_three = (
    partial(_always, chunks) for chunks in (1, 4, 32, 3)
)


RIGHT = {
    "atp_owned": [owned],
    "atp_wire_bytes": [wire_bytes, wire_by_layer],
    "atp_best_mesh": [best_mesh],
    "atp_mesh_for": [mesh_for, mesh_guessed],
    "atp_chunk_count": [chunk_count],
}

WRONG = {
    "atp_owned": [
        (owned_always_column, "that is the answer for the other order"),
        (owned_always_first, r"out .*the axes are swapped. The second layer"),
        (owned_ranks_turned, "you counted ranks along d1 first"),
        (owned_transposed, r"rows and columns are exchanged. A weight is \(out, in\)"),
        (owned_nothing, r"the answer is \(\d+, \d+, \d+, \d+\); you returned \(\d+, \d+\)"),
    ],
    "atp_wire_bytes": [
        (wire_forward_alone, "that is only forward"),
        (wire_of_payloads, r"payloads of the all-reduces; on a ring .* 2\(n-1\)/n"),
        (wire_column_only, "order='row'.*In row order the wide tensors .* sharded over d2"),
        (wire_narrow_mlp, "the MLP is four hidden sizes wide"),
        (wire_megatron, "that is Megatron's 1D"),
        (wire_in_elements, "these are counts of numbers|the answer for itemsize"),
    ],
    "atp_best_mesh": [
        (best_is_one_axis, r"\(\d+, 1\) spends [\d.]+ times the minimal time .* One axis alone"),
        (best_is_square, "A square would be best if both axes had the same"),
        (best_unweighted, r"spends 1\.\d+ times .* Weight the axes: in column order the all-red"),
        (best_weighs_d1, "Is the weight of 3 on d1"),
        (best_bandwidths_exchanged, "Each axis has its own bandwidth: the bytes over d1 are"),
        (best_is_no_mesh, r"\((\d+), \1\) is no mesh of \1 ranks; there are \(\1, 1\), "),
    ],
    "atp_mesh_for": [
        (mesh_is_megatron, r"takes .* a step, .* is possible. Its kernels wait most for d1"),
        (mesh_is_four_by_two, r"2 NVSwitch nodes, 1 NIC each .*\(4, 2, 'column'\) takes 13"),
        (
            mesh_in_row_order,
            r"wait most for d1 .*: the heavy axis, with three times the bytes, in "
            "row order",
        ),
        (mesh_without_order, r"returned \(4, 2\), which is not a mesh with its order: one of"),
        (mesh_as_list, "which is not a mesh with its order"),
        (mesh_forgotten, "your function returned NoneType, which is not a mesh"),
    ],
    "atp_chunk_count": [
        (count_one, "1 takes .* a step, .* is possible. More chunks are faster here"),
        (count_thirty_two, "32 takes .* Fewer chunks are faster here"),
        (count_four, "4 takes .* faster here"),
        (count_three, "3, which is not a number of chunks: one of 1, 2, 4"),
    ],
}
