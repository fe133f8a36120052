"""Views for notebooks: timeline, mesh, and `explore`, which joins them with knobs and a run."""

from .blocks import BlocksView
from .explore import Explore, explore
from .grid import GridView
from .layouts import LayoutView
from .mesh import MeshView
from .microscope import MicroscopeView
from .schedule import ScheduleView
from .tiles import TileView
from .timeline import Timeline

__all__ = [
    "BlocksView",
    "Explore",
    "GridView",
    "LayoutView",
    "MeshView",
    "MicroscopeView",
    "ScheduleView",
    "TileView",
    "Timeline",
    "explore",
]
