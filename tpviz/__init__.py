"""tpviz: see, run and check how neural networks are split over many devices.

    import tpviz as tv
    trace = tv.run(tv.Megatron(tp=4), tv.GPT())

Names load when first used, so ``import tpviz`` needs neither torch nor a plotting library.
"""

import sys
from importlib import import_module

from .core import moved
from .core.here import has_torch
from .core.shield import shielded
from .core.show import drawn_by, formats

__version__ = "0.1.0"

_HOMES = {
    "tpviz.core.workload": ["GPT"],
    "tpviz.core.routing": ["Routing"],
    "tpviz.core.mesh": ["Mesh"],
    "tpviz.cluster": ["Cluster", "Device", "Dimension", "Level"],
    "tpviz.core.labels": ["label"],
    "tpviz.views.matrix": ["communication_matrix"],
    "tpviz.verbs.expert_loads": ["expert_loads"],
    "tpviz.schemes.strategy": ["Strategy"],
    "tpviz.schemes": ["strategies"],
    "tpviz.schemes.megatron.strategy": ["Megatron"],
    "tpviz.schemes.atp.strategy": ["ATP"],
    "tpviz.schemes.axonn.strategy": ["AxoNN"],
    "tpviz.schemes.merak.strategy": ["Merak"],
    "tpviz.schemes.t3.strategy": ["T3"],
    "tpviz.schemes.pipeline.strategy": ["Pipeline"],
    "tpviz.schemes.zero.strategy": ["DataParallel"],
    "tpviz.schemes.context.strategy": ["Context"],
    "tpviz.schemes.diloco.strategy": ["DiLoCo"],
    "tpviz.schemes.experts.strategy": ["Experts"],
    "tpviz.schemes.context.sequence": ["SequenceCut"],
    "tpviz.schemes.custom": ["Custom"],
    "tpviz.schemes.gpt.own": ["reference_model"],
    "tpviz.core.trace": ["Trace", "Event", "Ledger"],
    "tpviz.files.load": ["load_trace"],
    "tpviz.files.names": ["COMM_KERNELS"],
    "tpviz.ranks.launch": ["launch", "restart", "shutdown", "progress", "use"],
    "tpviz.ranks.rank_errors": ["RankError", "RankTimeoutError"],
    "tpviz.ranks.frames": ["RankFailure", "RankFrame"],
    "tpviz.ranks.debugger": ["breakpoint"],
    "tpviz.ranks.recorder": ["record"],
    "tpviz.verbs.predict": ["predict", "Prediction"],
    "tpviz.verbs.room": ["Training"],
    "tpviz.verbs.search": ["search"],
    "tpviz.verbs.run": ["run"],
    "tpviz.verbs.verify": ["verify"],
    "tpviz.verbs.gradient_error": ["gradient_error"],
    "tpviz.verbs.compare": ["compare", "Comparison"],
    "tpviz.verbs.calibrate": ["Calibration", "calibrate"],
    "tpviz.verbs.capture": ["capture"],
    "tpviz.verbs.simulate": ["simulate"],
    "tpviz.verbs.slow_motion": ["in_slow_motion"],
    "tpviz.cluster.clock.injected_faults": ["Faults"],
    "tpviz.modules": ["Pair", "Trainer", "TrainingArguments", "parallelize", "verify_parallel"],
    "tpviz.views.widgets": [
        "explore",
        "BlocksView",
        "ContextView",
        "ExpertsView",
        "GridView",
        "LayoutView",
        "Timeline",
        "MeshView",
        "MicroscopeView",
        "ScheduleView",
        "TileView",
    ],
    "tpviz.views.widgets.guess": ["Guess"],
    "tpviz.views.widgets.partition": ["PartitionView"],  # by itself: it works on torch's graphs
    "tpviz.views.collectives.observe": ["microscope"],
    "tpviz.evidence.study": ["Study", "study"],
    "tpviz.evidence.claims": ["Claims", "claims"],
    "tpviz.evidence.published.rows": ["published"],
    "tpviz.evidence.published.validate": ["Validation", "validate"],
    "tpviz.course": ["check", "exercise", "hint"],
    "tpviz.course.leaderboard": ["leaderboard"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
drawn_by(
    {
        "tpviz.cluster.description.Cluster": "tpviz.views.figures.cluster",
        "tpviz.views.collectives.result.Microscope": "tpviz.views.figures.microscope",
        "tpviz.verbs.expert_loads.ExpertLoads": "tpviz.views.figures.expert_loads",
        "tpviz.views.matrix.CommunicationMatrix": "tpviz.views.figures.matrix",
        "tpviz.evidence.report.Report": "tpviz.views.figures.report",
        "tpviz.verbs.calibrate.Calibration": "tpviz.views.figures.calibration",
        "tpviz.verbs.compare.Comparison": "tpviz.views.figures.comparison",
        "tpviz.verbs.ranking.Search": "tpviz.views.figures.report",
    }
)
formats({"chrome": "tpviz.files.chrome", "hta": "tpviz.files.hta"})
moved.install()
_MODULES = {
    "clusters": "tpviz.cluster.clusters",
    "exercises": "tpviz.course",
    "limits": "tpviz.core.limits",
    "models": "tpviz.core.models",
}
_ON_RANKS = "run", "verify", "verify_parallel", "compare", "calibrate", "microscope", "check"
__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name):
    if name in _MODULES:
        return _load(_MODULES[name])
    if name not in _HOME:
        known = ", ".join(__all__)
        raise AttributeError(f"module 'tpviz' has no attribute {name!r}; it has {known}")
    if name in _ON_RANKS and "torch" not in sys.modules and has_torch():
        shielded(_load("tpviz.ranks.launch").start_server)  # loads torch while we do
    value = getattr(_load(_HOME[name]), name)
    globals()[name] = value
    return value


def _load(module):
    """Import a module whole: torch cannot be imported again where an interrupt cut its import."""
    found = sys.modules.get(module)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found
    if _importing():  # another thread would wait for the modules that this one is loading
        return import_module(module)
    return shielded(lambda: import_module(module))


def _importing():
    """Whether this thread is inside the import of some module."""
    frame = sys._getframe()
    while frame and frame.f_code.co_name != "_find_and_load":
        frame = frame.f_back
    return frame is not None


def __dir__():
    return __all__
