"""What must work where there is no torch, no process and no thread's clock, as in a page.

python tests/in_a_page.py formulas    # prints what is found without them, and what is loaded
"""

import json
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

EMPTY = "fcntl", "resource", "termios"
"""What JupyterLite's kernel has as empty modules without a spec."""
BLOCKED = "torch", "multiprocessing", "_multiprocessing", "ipyparallel", *EMPTY
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "08_beat_the_cluster.ipynb"


class Lacking(PathFinder):
    """Finds what all others find, but for those modules, as if they were not installed."""

    others = list(sys.meta_path)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            return None
        specs = (other.find_spec(name, path, target) for other in cls.others)
        return next(filter(None, specs), None)


def block(kernel: bool = False) -> None:
    """From here on this Python is like one in a page, or in JupyterLite's ``kernel`` there."""
    sys.meta_path[:] = [Lacking]
    for name in [name for name in sys.modules if name.split(".")[0] in BLOCKED]:
        del sys.modules[name]
    if kernel:
        sys.modules.update({name: ModuleType(name) for name in EMPTY})
    del time.thread_time


def formulas() -> dict:
    """Predictions, ledgers, memory; searches; published rows; claims."""
    import tpviz as tv

    llama = tv.models.llama3("8B", batch=64)
    four = tv.clusters.nvlink_pairs(pairs=2)
    mixture = tv.GPT(experts=8, top_k=2, moe_ffn=64, batch=16, routing=tv.Routing(skew=1.5))
    box, cluster = tv.clusters.nvlink_pairs(pairs=4), tv.clusters.dgx("H100-SXM-80GB", 64)
    small = tv.GPT(batch=16)
    plain = {
        tv.Megatron(tp=4, sp=True) * tv.DataParallel(dp=2, zero=3): small,
        tv.ATP(mesh=(2, 2), chunks=2): small,
        tv.AxoNN(x=2, y=1, z=2, data=2): small,
        tv.T3(tp=4): small,
        tv.Context(cp=4, kind="zigzag"): small,
        tv.Experts(ep=4) * tv.DataParallel(dp=2): mixture,
        tv.DiLoCo(workers=2, sync_every=4) * tv.Megatron(tp=2): small,
    }
    merak = tv.Merak(tp=4, pp=2, dp=8, microbatches=4, schedule="1f1b")
    plans = {**{s: (w, box) for s, w in plain.items()}, merak: (llama, cluster)}
    found = {}
    for strategy, (workload, where) in plans.items():
        prediction = tv.predict(strategy, workload, where)
        memory = dict(prediction.memory())
        table = prediction.ledger().to_table()
        found[repr(strategy)] = [prediction.step_time, dict(prediction.parts), memory, table]
    best = tv.search(small, four, simulate=False, seconds=None, progress=False)
    found["search"] = [[repr(row.strategy), row.predicted] for row in best.rows]
    found["why"] = best.why_not(tv.Megatron(tp=4))
    found["told"] = best.describe()
    rows = tv.published(model="llama-3B", gpus=64)
    found["published"] = [[row.predicted, row.measured] for row in tv.validate(rows).rows]
    for key in ("atp", "axonn-peak"):  # one at a time: several are computed on ranks
        (row,) = tv.claims(key, sensitivity=False, progress=False).rows
        found[f"claim {key}"] = row.ours.figure
    found["matrix"] = tv.communication_matrix(box).to_table()
    return found


def linked() -> dict:
    """What the planner's page shows of an address, and the cell that makes it."""
    from tpviz.views.plans.planning import Planning

    said = {"model": "mixtral 8x7B", "GPUs": "60", "ep": "4", "GPU": "none", "strategy": "Merak"}
    scene = Planning().open(said)
    return {name: scene[name] for name in ("seconds", "facts", "said", "cell", "gave", "error")}


def views() -> dict:
    """Every view's picture, table and words."""
    import tpviz as tv

    workload, box = tv.GPT(batch=16), tv.clusters.nvlink_pairs(pairs=4)
    shown = {
        "explore": tv.explore(workload, box),
        "planner": tv.explore("llama2 70B", gpus=512),
        "blocks": tv.BlocksView(tv.ATP(mesh=(2, 2)), workload),
        "context": tv.ContextView(tv.Context(cp=4), workload),
        "experts": tv.ExpertsView(tv.Experts(ep=4), tv.GPT(experts=8, top_k=2, batch=16)),
        "grid": tv.GridView(tv.AxoNN(x=2, y=1, z=2, data=2), workload),
        "schedule": tv.ScheduleView(),
        "mesh": tv.MeshView(tv.Mesh({"tp": 2, "dp": 2})),
        "tiles": tv.TileView(),
        "layouts": tv.LayoutView("llama-3B", gpus=64),
    }
    return {name: [v.to_svg(), v.to_table(), v.describe()] for name, v in shown.items()}


def notebook() -> dict:
    """What the cells of notebook 08 find and print."""
    from io import StringIO

    cells, said = json.loads(NOTEBOOK.read_text())["cells"], StringIO()
    names = {"display": lambda *shown: print(*shown, file=said)}
    names["print"] = names["display"]
    for number, cell in enumerate(c for c in cells if c["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    check, asked = names["tv"].check, ("beat_regret", "beat_rule")
    graded = [check(name, names[name], seed=3).message for name in asked]
    return {"said": said.getvalue(), "graded": graded, "regrets": names["regrets"]}


def notebooks() -> dict:
    """{notebook: what its cells say in a kernel of a page, errors, lines that are not run}."""
    from contextlib import redirect_stdout
    from io import StringIO

    from IPython.core.interactiveshell import InteractiveShell

    from tpviz.course.without_ranks import install

    found = {}
    for path in sorted(NOTEBOOK.parent.glob("*.ipynb")):
        InteractiveShell.clear_instance()
        shell, errors, left, cells = InteractiveShell.instance(), [], 0, 0
        install(shell)
        shell._showtraceback = lambda kind, value, lines, errors=errors: errors.append(str(value))
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                with redirect_stdout(StringIO()) as said:
                    shell.run_cell("".join(cell["source"]))
                cells, left = cells + 1, left + ("Not run here" in said.getvalue())
        found[path.stem] = {"errors": errors, "whole": cells - left, "in part": left}
    return found


PARTS = {part.__name__: part for part in (formulas, linked, views, notebook, notebooks)}

if __name__ == "__main__":
    block(kernel=sys.argv[1].startswith("notebook"))
    found = PARTS[sys.argv[1]]()
    loaded = [n for n in BLOCKED if getattr(sys.modules.get(n), "__spec__", None)]
    json.dump({"found": found, "loaded": loaded}, sys.stdout)
