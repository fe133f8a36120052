"""The mesh as a widget: choose a rank, see its groups and the blocks it owns.

>>> from tpviz import Mesh
>>> MeshView(Mesh({"dp": 2, "tp": 2}))
<MeshView dp 2 x tp 2, 4 ranks, rank 0>
"""

from collections.abc import Sequence
from typing import Any

import traitlets

from tpviz.core.mesh import Mesh
from tpviz.views.figures import mesh as figure

from .base import View, named


class MeshView(View):
    """Grid of ranks; click one (or use the arrow keys) and its group along each axis lights up.

    Parameters
    ----------
    mesh : Mesh, or None for an empty view to be filled with `show`.
    ownership : rows as in ``trace.meta["ownership"]``: which block of each parameter a rank owns.
    title, badge : words for the headline.

    ``rank`` is the rank chosen, ``parameter`` the name of the parameter shown ("" without
    ownership). Above 256 ranks the inner axes are collapsed: a square is a block of ranks. Raises
    ValueError above 16,384 ranks or for a split over an axis that the mesh does not have, TypeError
    on an argument that does not exist.
    """

    kind = "mesh"
    parameter = traitlets.Unicode("").tag(sync=True)

    @named()
    def __init__(
        self,
        mesh: Mesh | None = None,
        ownership: Sequence[dict[str, Any]] = (),
        title: str = "",
        badge: str = "",
    ):
        super().__init__()
        if mesh is not None:
            self.show(mesh, ownership, title, badge)

    def show(
        self, mesh: Mesh, ownership: Sequence[dict[str, Any]] = (), title: str = "", badge: str = ""
    ) -> None:
        """Draw another mesh; the rank and the parameter chosen stay where they still exist."""
        scene = figure.mesh_scene(mesh, ownership, title, badge)
        names = [p["name"] for p in scene["parameters"]]
        parameter = self.parameter if self.parameter in names else ""
        if names and not parameter:
            parameter = figure.find_parameter(scene)["name"]
        rank = self.rank if self.rank < mesh.size else 0
        self.publish(scene=scene, rank=rank, parameter=parameter, error="")

    def _draw(self, **options):
        chosen = {"rank": self.rank, "parameter": self.parameter or None}
        return figure.mesh_svg(self.scene, **{**chosen, **options})

    def to_table(self) -> list[list[str]]:
        """Rows of strings: each parameter, its sharding, and the share of a rank."""
        return figure.to_table(self.scene) if self.scene else [["parameter"]]

    def describe(self) -> str:
        """The mesh and the groups of the chosen rank in words."""
        return figure.describe(self.scene, self.rank) if self.scene else "Mesh view without a mesh."

    def _words(self):
        return f"{self.scene['title']}, rank {self.rank}"
