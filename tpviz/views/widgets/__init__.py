"""Views for notebooks: timeline, mesh, and `explore`, which joins them with knobs and a run."""

from .blocks import BlocksView
from .context import ContextView
from .experts import ExpertsView
from .explore import Explore
from .grid import GridView
from .layouts import LayoutView
from .mesh import MeshView
from .microscope import MicroscopeView
from .planner import Planner, explore
from .schedule import ScheduleView
from .tiles import TileView
from .timeline import Timeline

__all__ = [
    "BlocksView",
    "ContextView",
    "ExpertsView",
    "Explore",
    "GridView",
    "LayoutView",
    "MeshView",
    "MicroscopeView",
    "Planner",
    "ScheduleView",
    "TileView",
    "Timeline",
    "explore",
]
