"""tpviz: see, run and check how neural networks are split over many devices.

    import tpviz as tv
    trace = tv.run(tv.Megatron(tp=4), tv.GPT())

Names load when first used, so ``import tpviz`` needs neither torch nor a plotting library.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "tpviz.workload": ["GPT"],
    "tpviz.mesh": ["Mesh"],
    "tpviz.cluster": ["Cluster", "Device", "Dimension", "Level"],
    "tpviz.labels": ["label"],
    "tpviz.matrix": ["communication_matrix"],
    "tpviz.strategy": ["Strategy", "strategies"],
    "tpviz.schemes.megatron": ["Megatron"],
    "tpviz.schemes.atp": ["ATP"],
    "tpviz.schemes.axonn": ["AxoNN"],
    "tpviz.schemes.merak": ["Merak"],
    "tpviz.schemes.t3": ["T3"],
    "tpviz.schemes.data": ["DataParallel"],
    "tpviz.trace": ["Trace", "Event", "Ledger"],
    "tpviz.trace.chrome": ["load_trace"],
    "tpviz.runtime.launch": ["launch", "restart", "shutdown", "progress"],
    "tpviz.runtime.recorder": ["record"],
    "tpviz.verbs.predict": ["predict", "Prediction"],
    "tpviz.verbs.search": ["search"],
    "tpviz.verbs.run": ["run"],
    "tpviz.verbs.verify": ["verify"],
    "tpviz.verbs.compare": ["compare", "Comparison"],
    "tpviz.verbs.calibrate": ["Calibration", "calibrate"],
    "tpviz.verbs.capture": ["capture"],
    "tpviz.verbs.simulate": ["simulate"],
    "tpviz.simulation.faults": ["Faults"],
    "tpviz.parallel": ["Pair", "Trainer", "TrainingArguments", "parallelize",
                       "verify_parallel"],
    "tpviz.widgets": ["explore", "BlocksView", "GridView", "Timeline", "MeshView",
                      "MicroscopeView", "ScheduleView", "TileView"],
    "tpviz.widgets.partition": ["PartitionView"],  # by itself: it works on torch's graphs
    "tpviz.collectives.observe": ["microscope"],
    "tpviz.exercises": ["Guess", "check", "exercise", "hint"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ["clusters"]
__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name):
    if name in _MODULES:
        return import_module(f"tpviz.{name}")
    if name not in _HOME:
        known = ", ".join(__all__)
        raise AttributeError(f"module 'tpviz' has no attribute {name!r}; it has {known}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return __all__
