"""Where modules stood before the package had floors: pickles, traces and programs name them.

>>> import tpviz.trace.table, tpviz.core.trace.table
>>> tpviz.trace.table is tpviz.core.trace.table
True
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

_FLOORS = {
    "core": "workload models mesh step checks labels tables limits shield show schedules trace",
    "cluster": "clusters",
    "cluster.clock": "cost queues",
    "schemes": "strategy advice",
    "views": "figures films widgets collectives matrix gallery demo",
    "evidence": "peers",
}
_MOVED = {
    **{f"tpviz.{n}": f"tpviz.{to}.{n}" for to, names in _FLOORS.items() for n in names.split()},
    **{
        f"tpviz.trace.{name}": f"tpviz.files.{name}"
        for name in "chrome files foreign hta kineto kineto_across kineto_events load names".split()
    },
    **{f"tpviz.views.widgets.{n}": f"tpviz.views.plans.{n}" for n in ("fitting", "numbers")},
    "tpviz.simulation": "tpviz.cluster.clock",
    "tpviz.runtime": "tpviz.ranks",
    "tpviz.parallel": "tpviz.modules",
    "tpviz.partition": "tpviz.modules.partition",
    "tpviz.exercises": "tpviz.course",
    "tpviz.labs": "tpviz.evidence",
    "tpviz.validation": "tpviz.evidence.published",
    "tpviz.schemes.t3.hardware": "tpviz.evidence.t3_hardware",
    "tpviz.schemes.t3.gpu": "tpviz.evidence.t3_gpu",
}


def new_name(name: str) -> str | None:
    """Where a module of this old name stands now; None where none was moved."""
    part = name
    while part.startswith("tpviz."):
        if part in _MOVED:
            return _MOVED[part] + name[len(part) :]
        part = part.rpartition(".")[0]
    return None


class _Moved:
    """Imports the new module under its old name: one module, so that its classes are the same.
    Without the base classes of `importlib.abc`, whose import takes as long as all of ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if new_name(fullname) else None  # pyright: ignore[reportArgumentType]

    create_module = staticmethod(lambda spec: None)  # as Python does

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(str(new_name(module.__name__)))


def install() -> None:
    """Let imports by old names find the new modules; first, since a parent's path has them too."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
