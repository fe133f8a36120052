"""Answers to notebook 11 on numbers and choices: right ones, and wrong ones with their hints."""

from functools import partial

# --- axonn_coords ---


def coords(rank, grid, order):
    sizes, found = dict(zip(("x", "y", "z", "data"), grid)), {}
    for axis in "xyz" if order == "xyz" else "yxz":
        rank, found[axis] = divmod(rank, sizes[axis])
    return found["x"], found["y"], found["z"], rank


def coords_always_xyz(rank, grid, order):
    return coords(rank, grid, "xyz")


def coords_by_axis_of_the_order(rank, grid, order):
    x, y, z, data = coords(rank, grid, order)
    return y, x, z, data


def coords_data_fastest(rank, grid, order):
    found = []
    for size in reversed(grid):
        rank, at = divmod(rank, size)
        found.append(at)
    return tuple(reversed(found))


def coords_of_three(rank, grid, order):
    return coords(rank, grid, order)[:3]


# --- axonn_piece ---


def _piece(weight, shape, grid, rank, exchange=False, whole=False, all_of_block=False, swap=False):
    x, y, z, _ = grid
    at = {"x": (rank % x, x), "y": (rank // x % y, y)}
    rows, columns = ("x", "y") if (weight in ("qkv", "up")) != exchange else ("y", "x")
    cuts = [
        (k * size // n, (k + 1) * size // n) for size, (k, n) in zip(shape, (at[rows], at[columns]))
    ]
    numbers, k = shape[0] * shape[1] // (1 if whole else x * y), rank // (x * y) % z
    own = (0, numbers) if all_of_block else (k * numbers // z, (k + 1) * numbers // z)
    return (*cuts[swap], *cuts[1 - swap], *own)


def piece(weight, shape, grid, rank):
    return _piece(weight, shape, grid, rank)


def piece_always_first(weight, shape, grid, rank):
    return _piece("up", shape, grid, rank)


def piece_of_the_whole(weight, shape, grid, rank):
    return _piece(weight, shape, grid, rank, whole=True)


def piece_not_cut(weight, shape, grid, rank):
    return _piece(weight, shape, grid, rank, all_of_block=True)


def piece_transposed(weight, shape, grid, rank):
    return _piece(weight, shape, grid, rank, swap=True)


def piece_only_block(weight, shape, grid, rank):
    return _piece(weight, shape, grid, rank)[:4]


# --- axonn_wire_bytes ---


def wire(k, n, tokens, grid, transposed, itemsize):
    x, y, z, data = grid
    if transposed:
        x, y = y, x
    over_x = 2 * (x - 1) / x * tokens * k / (z * y)
    over_y = 2 * (y - 1) / y * tokens * n / (z * x)
    found = [
        over_x,
        over_y,
        2 * (z - 1) / z * k * n / (x * y),
        2 * (data - 1) / data * k * n / (x * y * z),
    ]
    if transposed:
        found[:2] = found[1::-1]
    return tuple(itemsize * part for part in found)


def wire_never_transposed(k, n, tokens, grid, transposed, itemsize):
    return wire(k, n, tokens, grid, False, itemsize)


def wire_gather_alone(*sizes):
    x, y, z, data = wire(*sizes)
    return x, y, z / 2, data


def wire_all_tokens(k, n, tokens, grid, transposed, itemsize):
    x, y, z, data = wire(k, n, tokens, grid, transposed, itemsize)
    return x * grid[2], y * grid[2], z, data


def wire_of_payloads(k, n, tokens, grid, transposed, itemsize):
    x, y, z, _ = grid
    block = k * n / (x * y)
    over_y, over_x = tokens * n / (z * x), tokens * k / (z * y)
    found = (over_x, over_y, block, block / z)
    return tuple(itemsize * part * (size > 1) for part, size in zip(found, grid))


def wire_data_of_blocks(k, n, tokens, grid, transposed, itemsize):
    x, y, z, data = wire(k, n, tokens, grid, transposed, itemsize)
    return x, y, z, data * grid[2]


def wire_exchanged(*sizes):
    x, y, z, data = wire(*sizes)
    return y, x, z, data


def wire_not_exchanged_back(*sizes):
    x, y, z, data = wire(*sizes)
    return (y, x, z, data) if sizes[4] else (x, y, z, data)


def wire_in_numbers(*sizes):
    return tuple(part / sizes[-1] for part in wire(*sizes))


def wire_summed(*sizes):
    return sum(wire(*sizes))


# --- axonn_special ---


def special(scheme, ranks, node):
    root = round(ranks**0.5)
    return {
        "Megatron-LM": (ranks, 1, 1, 1),
        "FSDP": (1, 1, ranks, 1),
        "DDP": (1, 1, 1, ranks),
        "HSDP": (1, 1, node, ranks // node),
        "2D": (root, root, 1, 1),
        "Megatron-LM + DDP": (node, 1, 1, ranks // node),
    }[scheme]


def _but(wrong, scheme, ranks, node):
    return wrong.get(scheme, special)(scheme, ranks, node)


special_reversed = partial(_but, {"Megatron-LM": lambda s, n, node: (1, n, 1, 1)})
special_fsdp_by_node = partial(_but, {"FSDP": lambda s, n, node: (1, 1, node, n // node)})
special_hsdp_turned = partial(_but, {"HSDP": lambda s, n, node: (1, 1, n // node, node)})
special_two_d_by_node = partial(_but, {"2D": lambda s, n, node: (node, n // node, 1, 1)})
special_ddp_of_a_node = partial(_but, {"DDP": lambda s, n, node: (1, 1, 1, node)})
special_two_d_deep = partial(_but, {"2D": lambda s, n, node: (1, 32, 1, 0.5)})
special_too_many = partial(_but, {"DDP": lambda s, n, node: (1, 1, n, n)})
special_too_flat = partial(_but, {"2D": lambda s, n, node: (n, 1, 1, 1)})
special_too_deep = partial(_but, {"FSDP": lambda s, n, node: (1, n, 1, 1)})


# --- axonn_grid_for ---


def grid_for(cluster, workload, least):
    import tpviz as tv

    best = None
    for s in tv.AxoNN.space(workload, cluster.size):
        try:
            s.check(workload)
        except ValueError:
            continue
        seconds = s.communication(workload, cluster)
        if s.x * s.y * s.z >= least and (best is None or seconds < best[0]):
            best = seconds, (s.x, s.y, s.z, s.data)
    return best[1]


def grid_all_z(cluster, workload, least):
    """Right for a large batch only; z must divide the batch."""
    z = min(cluster.size, workload.batch)
    return cluster.size // z, 1, z, 1


def grid_all_data(cluster, workload, least):
    return 1, 1, 1, cluster.size


def grid_like_megatron(cluster, workload, least):
    """x in all of a model's ranks; Frontier's nodes have eight."""
    return 16, 1, 1, cluster.size // 16


def grid_in_plane(cluster, workload, least):
    return 2, 8, 1, cluster.size // 16


def grid_without_data(cluster, workload, least):
    return grid_for(cluster, workload, least)[:3]


def grid_forgotten(cluster, workload, least):
    grid_like_megatron(cluster, workload, least)


RIGHT = {
    "axonn_coords": [coords],
    "axonn_piece": [piece],
    "axonn_wire_bytes": [wire],
    "axonn_special": [special],
    "axonn_grid_for": [grid_for],
}

WRONG = {
    "axonn_coords": [
        (coords_always_xyz, 'order=.yxz.: that is order "xyz". In order "yxz" y is innermost'),
        (coords_by_axis_of_the_order, "the right numbers for other axes"),
        (coords_data_fastest, "you let data run fastest.*rank 1 is one step along x"),
        (coords_of_three, r"the answer is \(\d, \d, \d, \d\); you returned \(\d, \d, \d\)"),
    ],
    "axonn_piece": [
        (piece_always_first, r"(out|down) \[.*: x and y are swapped. A first layer"),
        (piece_of_the_whole, "you split the whole weight into z shards. First x and y"),
        (piece_not_cut, "that is the whole block, which exists only while it is used"),
        (piece_transposed, "rows and columns are exchanged"),
        (piece_only_block, r"the answer is \((\d+, ){5}\d+\); you returned"),
    ],
    "axonn_wire_bytes": [
        (wire_never_transposed, "in a transposed layer x and y are swapped"),
        (wire_gather_alone, "over z there are two collectives: the gather"),
        (wire_all_tokens, "are split over the z = 2 ranks along z: each all-reduces only its own"),
        (wire_of_payloads, r"these are payloads. A ring of m ranks sends 2 \(m-1\)/m"),
        (
            wire_exchanged,
            "you swapped the bytes of x and y. The inputs are sharded over y here: forward "
            "all-reduces over y, ",
        ),
        (
            wire_not_exchanged_back,
            "The inputs are sharded over x here: forward all-reduces over x, and backward",
        ),
        (wire_in_numbers, "these are counts of numbers, each of which has [248] bytes"),
        (wire_data_of_blocks, "1/z of the block|of the rank.s shard|the bytes over data should be"),
        (wire_summed, "returned (float|int), not a tuple of 4 numbers"),
    ],
    "axonn_special": [
        (special_reversed, "with y alone every first layer all-reduces .*: 2.5 times the bytes"),
        (special_fsdp_by_node, "All ranks share one copy .* sends 1 x all_reduce on data"),
        (special_hsdp_turned, "Weights are sharded within a node.* A step on your grid sends "),
        (special_two_d_deep, r"a grid is four sizes \(x, y, z, data\)"),
        (special_too_many, r"the grid \(1, 1, (\d+), \1\) does not have \1 ranks"),
        (special_ddp_of_a_node, r"the grid \(1, 1, 1, \d\) does not have \d+ ranks"),
        (special_two_d_by_node, "2D on 16 ranks, [28] a node: Every weight is sharded along both"),
        (special_too_flat, "Every weight is sharded along both dims.* sends .*, 10 x all_reduce"),
        (special_too_deep, "All ranks share one copy of the weights.* sends 19 x all_reduce on y"),
    ],
    "axonn_grid_for": [
        (grid_all_z, "takes 452 ms a step, 346 ms is possible. 370 ms of it are on z, for we"),
        (grid_all_data, r"is none of the \d+ grids \(x, y, z, data\) of (32|64) ranks with x y z"),
        (grid_like_megatron, r"\(16, 1, 1, 2\) is none of the 20 grids"),
        (grid_in_plane, "takes 629 ms a step, .* 493 ms of it are on y, for activations"),
        (grid_without_data, r"is none of the \d+ grids"),
        (grid_forgotten, r"returned NoneType, which is not a grid \(x, y, z, data\): one of"),
    ],
}
