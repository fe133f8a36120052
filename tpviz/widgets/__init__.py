"""Views for notebooks: timeline, mesh, and `explore`, which joins them with knobs and a run."""

from .blocks import BlocksView
from .explore import Explore, explore
from .mesh import MeshView
from .microscope import MicroscopeView
from .timeline import Timeline

__all__ = ["BlocksView", "Explore", "MeshView", "MicroscopeView", "Timeline", "explore"]
