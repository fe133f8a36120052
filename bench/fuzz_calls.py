"""Public constructors, verbs and views called with wrong types, sizes of 10^40, NaN, nested things.

    python bench/fuzz_calls.py [SEED [CALLS]]

What constructors return goes into the verbs and the views. Every call must return or be refused in
words (see fuzzing.py), within 20 s of CPU time; ranks are never started. Exits with 1 otherwise.
"""

import random
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
from fuzzing import main

import tpviz as tv
from tpviz.cluster.clusters import presets
from tpviz.core.mesh import Mesh
from tpviz.core.trace import Event, Trace


class Thing:
    """An object that no argument takes."""


BAD = [
    None, True, False, 0, -1, 1, 2, 3, 4, 7, 8, 16, 10**6, 10**18, 10**40, -10**18, 1.0, 2.0, 0.5,
    -0.5, 1e-300, 1e308, float("nan"), float("inf"), -float("inf"), "", "2", "row", "float32",
    "float64", "<b>", "\x00", "\ud800", b"x", [], [1], [2, 2], (2, 2), (2,), (), {}, {"tp": 2},
    {"tp": 0}, {"tp": 10**18}, {2: "tp"}, {1, 2}, {0: 1.5}, {(1, 4): 1e9}, np.int64(2),
    np.float32(2), np.array(2), np.array([2, 2]), np.bool_(True), 2 + 0j, Fraction(4, 2),
    Decimal(2), Thing(), Thing, len, range(2), range(10**18), "x" * 10000, [[[]]], {"a": {"b": []}},
]  # fmt: skip

CONSTRUCTORS = {
    tv.GPT: {
        "layers": [1, 2, 4], "hidden": [16, 32, 64], "heads": [2, 4, 8], "seq": [8, 16],
        "batch": [2, 4, 8], "vocab": [32, 64], "dtype": ["float32", "float64", "bfloat16"],
        "tied": [True, False], "mlp_ratio": [2, 4], "seed": [0, 1], "ffn": [None, 40, 64],
        "kv_heads": [None, 1, 2], "gated": [True, False], "norm": ["layer", "rms"],
        "rotary": [True, False], "bias": [True, False]},
    tv.Mesh: {"axes": [{"tp": 2}, {"dp": 2, "tp": 2}]},
    tv.Megatron: {"tp": [1, 2, 4], "sp": [True, False], "chunks": [1, 2]},
    tv.ATP: {"mesh": [(2, 2), (1, 4), (4, 1)], "order": ["row", "column"], "chunks": [1, 2]},
    tv.AxoNN: {
        "x": [1, 2], "y": [1, 2], "z": [1, 2], "data": [1, 2], "clip": [0.0, 1.0],
        "overlap": [("oar",), ("oar", "ors", "oag"), ()], "recompute": [True, False],
        "gather": ["weight", "block"], "keep": [False, True]},
    tv.Merak: {
        "pp": [1, 2, 4], "tp": [1, 2], "dp": [1, 2], "microbatches": [1, 2, 4, 8],
        "schedule": ["1f1b", "gpipe", "shifted_critical_path", "last_no_recompute"],
        "recompute": ["none", "full", "stage_aware"], "subpipeline": [0, 1]},
    tv.T3: {"tp": [1, 2, 4], "mode": ["tile", "chunk"], "gather": ["consumer", "producer"]},
    tv.DataParallel: {"dp": [1, 2, 4], "zero": [0, 1, 2, 3], "bucket_mb": [1.0, 25.0]},
    tv.Device: {"flops": [{"float32": 1e12}], "memory": [1e9], "memory_bandwidth": [1e11],
                "name": ["d"]},
    tv.Level: {"name": ["n"], "units": [2, 4], "p2p": [1e9], "group": [None, 1e9],
               "latency": [1e-6], "nics": [None, 1], "direct": [True, False]},
    tv.Dimension: {"name": ["x"], "size": [2, 4], "bandwidth": [1e9], "latency": [1e-6],
                   "links": [1, 2]},
    tv.Faults: {"stragglers": [{0: 1.5}], "slow_links": [{1: 2.0}], "jitter": [0.0, 0.1],
                "seed": [0, 1]},
    Event: {"id": [-1, 3], "rank": [0, 1], "lane": ["compute", "comm/tp", "step"],
            "kind": ["compute", "comm", "wait", "step"], "name": ["mm", "all_reduce"],
            "phase": ["forward", ""], "step": [0], "start": [0.0, 1.0], "end": [1.0, 2.0],
            "bytes": [0, 8], "wire_bytes": [8.0], "axis": ["tp"], "members": ["0,1", "0..32:2"],
            "seq": [-1, 0], "waits_for": [-1, 0, 3]},
}  # fmt: skip
PRESETS = {
    "nvlink_pairs": {"pairs": [1, 2, 4], "rings": ["multi", "single"]},
    "nvswitch": {"gpus": [2, 8]},
    "nvswitch_nodes": {"nodes": [1, 2], "gpus": [2, 8], "nics": [1, 8]},
    "dgx": {"gpu": ["A100-SXM-80GB", "B200-SXM-180GB"], "gpus": [2, 8, 16], "nics": [4]},
    "laptop": {"ranks": [2, 4]},
    "torus": {"x": [1, 4], "y": [1, 2]},
    "perlmutter": {"nodes": [1, 2]},
    "frontier": {"nodes": [1, 2]},
}
META = {
    "badge": ["this machine, gloo"], "world_size": [2], "strategy": ["s"], "losses": [[1.0]],
    "mesh": [{"axes": {"tp": 2}}, {"axes": {"tp": 10**18}}, {"axes": 3}],
    "late": [{"seconds": 0.1}],
    "memory": [{0: {"time": [0.0], "parameters": [1]}}, {"x": {}}, {0: {"time": [1, 2], "a": [1]}}],
    "ownership": [[{"name": "w", "shape": [2], "notation": "w", "splits": []}]],
}  # fmt: skip


class Calls:
    """Draws calls; keeps what constructors made, by class."""

    def __init__(self, fuzz, seed):
        self.fuzz, self.random = fuzz, random.Random(seed)
        self.made = {
            cls: [cls(**{k: v[0] for k, v in good.items()})] for cls, good in CONSTRUCTORS.items()
        }
        self.made[tv.Cluster] = [make() for make in presets().values()]
        self.made[Trace] = [Trace.from_events([Event(), Event(rank=1, kind="comm", end=1.0)])]

    def draw(self, good, wrong=0.35):
        """One of the good values, or anything."""
        return self.random.choice(BAD if self.random.random() < wrong else good)

    def one(self, kind, wrong=0.08):
        """Something made earlier of this class, mostly."""
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return self.draw(self.made[self.random.choice(kinds)][-60:], wrong)

    def some(self, good, most=0.5):
        """Keyword arguments: some of those named, drawn."""
        return {k: self.draw(v) for k, v in good.items() if self.random.random() < most}

    def construct(self):
        """A constructor of the table, or a preset, with some arguments wrong."""
        cls = self.random.choice(list(CONSTRUCTORS))
        needed = {k: v[0] for k, v in CONSTRUCTORS[cls].items()}
        kwargs = self.some(CONSTRUCTORS[cls])
        made = self.fuzz.call(cls.__name__, cls, **{**needed, **kwargs})
        if made is not None:
            self.made[cls].append(made)

    def preset(self):
        """A cluster: a preset, one of parts, or a scale model of one."""
        name = self.random.choice(list(PRESETS))
        draws = [
            (name, presets()[name], self.some(PRESETS[name])),
            (
                "Cluster",
                tv.Cluster,
                {
                    "name": self.draw(["c"]),
                    "device": self.one(tv.Device),
                    "levels": self.draw([(self.one(tv.Level),)]),
                    "torus": self.draw([(), (self.one(tv.Dimension),)]),
                    **self.some(
                        {
                            "rings": ["multi"],
                            "algorithm": ["ring", "auto"],
                            "table": [{(1, 2): 1e9}],
                            "latencies": [{(1, 2): 1e-6}],
                            "hidden_scale": [2.0],
                            "slow_motion": [2.0],
                        },
                        0.2,
                    ),
                },
            ),
            (
                "scale_model",
                self.made[tv.Cluster][-1].scale_model,
                self.some({"hidden": [64, 8], "slow_motion": [1, 400], "dtype": ["", "bfloat16"]}),
            ),
        ]
        what, make, kwargs = self.random.choice(draws)
        made = self.fuzz.call(what, make, **kwargs)
        if isinstance(made, tv.Cluster):
            self.made[tv.Cluster].append(made)

    def strategy(self):
        """A strategy, with data parallelism around it at times."""
        kinds = (tv.Megatron, tv.ATP, tv.AxoNN, tv.Merak, tv.T3, tv.DataParallel)
        strategy = self.one(kinds)
        if self.random.random() < 0.3 and isinstance(strategy, tv.Strategy):
            return self.fuzz.call("*", strategy.__mul__, self.one(tv.DataParallel)) or strategy
        return strategy

    def verb(self):
        """A verb on what was made."""
        s, w, c = self.strategy(), self.one(tv.GPT), self.one(tv.Cluster)
        draws = {
            "predict": (tv.predict, (s, w, c), {}, 8),
            "ledger": (partial(_ledger, tv.predict), (s, w, c), {}, 2),
            "repr": (repr, (s,), {}, 2),
            "matrix": (_told, (tv.communication_matrix, c), self.some({"world_size": [2, 4]}), 2),
            "capture": (tv.capture, (s, w), self.some({"detail": ["kernels"]}, 0.2), 0.6),
            "simulate": (
                tv.simulate,
                (s, w, c),
                self.some(
                    {"steps": [1, 2], "faults": [self.one(tv.Faults)], "contention": [True]}, 0.2
                ),
                0.6,
            ),
            "search": (
                tv.search,
                (w, c),
                {
                    "top": 0,
                    **self.some(
                        {
                            "strategies": [["ATP"], [s]],
                            "top": [0, 2],
                            "objective": ["communication"],
                        }
                    ),
                },
                0.3,
            ),
            "compare": (tv.compare, (s, w, c), {"run": False}, 0.2),
            "from_json": (
                tv.Cluster.from_json,
                (self.draw(["{}", "[]", "3", '{"name": 3}']),),
                {},
                1,
            ),
            "bandwidth": (
                getattr(c, "bandwidth", repr),
                (self.one(tv.Mesh),) + ((self.draw(["tp"]),) if hasattr(c, "bandwidth") else ()),
                {},
                1,
            ),
            "tokens": (tv.GPT().tokens, (self.draw([0, 3]),), {}, 1),
        }
        name = self.random.choices(list(draws), [d[3] for d in draws.values()])[0]
        function, args, kwargs, _ = draws[name]
        self.fuzz.call(name, function, *args, **kwargs)

    def mesh(self):
        """A question to a mesh."""
        mesh = self.random.choice(self.made[Mesh][-60:])
        ask, args = self.random.choice(
            [("coords", [[0, 1]]), ("group", [[0, 1], ["tp", "dp"]]), ("groups", [["tp"]])]
        )
        self.fuzz.call(f"Mesh.{ask}", getattr(mesh, ask), *(self.draw(a) for a in args))
        self.fuzz.call("Mesh.rank", mesh.rank, **self.some({"tp": [0], "dp": [1]}, 0.8))

    def trace(self):
        """A trace of drawn events and meta, then a question to one."""
        events = [self.one(Event, 0.02) for _ in range(self.random.randrange(5))]
        made = self.fuzz.call(
            "from_events",
            Trace.from_events,
            self.draw([events], 0.1),
            self.draw([self.some(META, 0.3)], 0.1),
        )
        if made is not None:
            self.made[Trace].append(made)
        trace, path = self.random.choice(self.made[Trace][-60:]), "fuzz.json"
        ask, args, kwargs = self.random.choice(
            [
                ("ledger", [], {"rank": [0, None], "step": [None, 0]}),
                ("overlap", [[None, 0]], {}),
                ("exposed_communication", [[None, 0]], {}),
                ("bubble", [], {}),
                ("critical_path", [], {}),
                ("memory", [], {"rank": [0, None]}),
                ("to_chrome", [[path]], {}),
                ("select", [], {"rank": [0], "kind": ["comm"], "x": [0]}),
                ("rebased", [], {}),
                ("__repr__", [], {}),
                ("to_hta", [["hta"]], {}),
            ]
        )
        if ask in ("to_chrome", "to_hta") and self.random.random() < 0.8:
            args = [[*args[0]]]
            self.fuzz.call(f"Trace.{ask}", getattr(trace, ask), args[0][0])
        else:
            self.fuzz.call(
                f"Trace.{ask}",
                getattr(trace, ask),
                *(self.draw(a) for a in args),
                **self.some(kwargs),
            )

    def table(self):
        """Traces of columns and of traces, and files that are none."""
        columns = dict(self.random.choice(self.made[Trace][-60:]).columns)
        columns[self.random.choice(list(columns))] = self.draw([np.zeros(2)])
        self.fuzz.call("Trace", Trace, self.draw([columns], 0.2))
        self.fuzz.call(
            "merge",
            Trace.merge,
            self.draw([[self.one(Trace, 0.1) for _ in range(self.random.randrange(4))]], 0.2),
        )
        self.fuzz.call("load_trace", tv.load_trace, self.draw(["/nowhere.json", "."]))

    def view(self):
        """A view, and what it draws and says."""
        s, w, c = self.strategy(), self.one(tv.GPT), self.one(tv.Cluster)
        name, args, kwargs = self.random.choice(
            [
                ("Timeline", [self.one(Trace)], {"critical": [True, False], "autoplay": [False]}),
                (
                    "MeshView",
                    [self.one(tv.Mesh)],
                    {"ownership": [()], "title": ["t"], "badge": ["b"]},
                ),
                ("BlocksView", [s, w], {"rank": [0, 1]}),
                ("GridView", [s, w], {"rank": [0, 1]}),
                (
                    "ScheduleView",
                    [self.draw(["gpipe", s])],
                    {
                        "workload": [w],
                        "cluster": [c],
                        "against": ["gpipe"],
                        "stages": [2, 4],
                        "microbatches": [4],
                        "recompute": ["full"],
                    },
                ),
                (
                    "ContextView",
                    [self.draw([tv.Context(cp=2), tv.Context(cp=4, kind="ring")])],
                    {"against": ["none", "ulysses"], "phase": ["backward"]},
                ),
                ("ExpertsView", [self.draw([tv.Experts(ep=2), tv.Experts(ep=4)])], {}),
                ("TileView", [self.draw([(512, 512, 512)])], {"ranks": [2, 4], "mode": ["tile"]}),
            ]
        )
        view = self.fuzz.call(name, getattr(tv, name), *args, **self.some(kwargs, 0.3))
        if view is not None:
            self.fuzz.call(f"{name}.describe", view.describe)
            self.fuzz.call(f"{name}.to_table", view.to_table)
            self.fuzz.call(f"{name}.to_svg", view.to_svg)
            self.fuzz.call(
                f"{name}.to_svg",
                view.to_svg,
                **self.some({"theme": ["light", "dark"], "width": [500], "step": [0]}, 0.5),
            )


def _told(function, *args, **kwargs):
    matrix = function(*args, **kwargs)
    return matrix.describe(), matrix.to_table()


def _ledger(function, *args):
    prediction = function(*args)
    return prediction.ledger(), prediction.memory(), prediction.step_time, repr(prediction)


def run(fuzz, seed):
    """Yields once per call made; endless."""
    calls = Calls(fuzz, seed)
    kinds = {
        calls.construct: 10,
        calls.preset: 3,
        calls.verb: 8,
        calls.mesh: 1,
        calls.trace: 4,
        calls.table: 1,
        calls.view: 3,
    }
    while True:
        before = fuzz.tried
        calls.random.choices(list(kinds), list(kinds.values()))[0]()
        yield from range(fuzz.tried - before)


if __name__ == "__main__":
    main("public calls", run, 5000)
