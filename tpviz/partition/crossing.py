"""Which values cross a place in the body of a graph, and which of them may do so in any number."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import ModelGraph

HOT = 5
"""A value that more operations use than this may cross a cut beside the one (the release's)."""


class Crossing:
    """Values made before a place and used behind it, or by the model's caller.

    hot : names of those needed in many places: by more than `HOT` operations (the release's rule),
    by several layers of one stack (a memory that all decoders attend to; ours, so that small
    models can be cut as large ones), or into which no parameter went.
    """

    def __init__(self, graph: "ModelGraph"):
        self.nodes = {node.name: node for node in graph.body}
        self.order = {name: k for k, name in enumerate(self.nodes)}
        users, self.last = {name: [] for name in self.nodes}, {}
        for k, node in enumerate(graph.body):
            for name in node.takes:
                if name in users:
                    users[name].append(node)
                    self.last[name] = k
        self.last |= {name: len(graph.body) for name in graph.results if name in self.nodes}
        self.hot = {name for name, of in users.items() if self._hot(self.nodes[name], of)}

    def _hot(self, node, users):
        layers = {layer for user in users if (layer := layer_of(user.path))}
        return (
            not node.learned
            or len(users) > HOT
            or len({stack for stack, _ in layers}) < len(layers)
        )

    def at(self, places: Iterable[int]) -> list[list[str]]:
        """[names, in the order they are made] of what crosses before each operation of ``places``,
        numbers in ascending order."""
        found, alive, made = [], {}, iter(self.order.items())
        ahead = next(made, None)
        for place in places:
            while ahead and ahead[1] < place:
                if ahead[0] in self.last:
                    alive[ahead[0]] = self.last[ahead[0]]
                ahead = next(made, None)
            alive = {name: last for name, last in alive.items() if last >= place}
            found.append(list(alive))
        return found

    def legal(self, names: Sequence[str], most: int) -> bool:
        """Whether a cut may be where these cross: ``most`` of them, hot ones aside."""
        return (
            bool(names)
            and sum(name not in self.hot for name in names) <= most
            and all(self.nodes[name].value for name in names)
        )


def layer_of(path: str) -> tuple[str, int] | None:
    """("h", 3) of "h.3.mlp.up": the outermost numbered place on a path; None without one."""
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", path)
    return (match[1] or "", int(match[2])) if match else None
