"""Views for notebooks: timeline, mesh, and `explore`, which joins them with knobs and a run."""

from .explore import Explore, explore
from .mesh import MeshView
from .microscope import MicroscopeView
from .timeline import Timeline

__all__ = ["Explore", "MeshView", "MicroscopeView", "Timeline", "explore"]
