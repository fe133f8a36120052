"""The command line: ``tpviz doctor``, ``tpviz run "Megatron(tp=4)"``, ``tpviz lab`` and others.

    tpviz run "Megatron(tp=2) * DataParallel(dp=2)" --gpt "layers=2, hidden=64" --chrome step.json
    tpviz predict "AxoNN(x=2, z=4)" --cluster "nvswitch(8)"
    tpviz search --cluster "nvlink_pairs(pairs=2)" --gpt "batch=8"

Strategies, workloads and clusters are written as in Python, with plain values only.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_MODEL = """of the model: "layers=2, hidden=64", or a preset: "llama3('8B', batch=8)\""""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Bad input is one line on standard error, and code 2."""
    chosen = _parser().parse_args(arguments)
    try:
        return chosen.run(chosen)
    except (ValueError, TypeError) as error:
        print(f"tpviz {chosen.command}: {error}", file=sys.stderr)
        return 2


def _parser():
    about = "See, run and check how neural networks are split over many devices."
    parser = argparse.ArgumentParser(prog="tpviz", description=about)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    def command(name, run, help, strategy=True, cluster=True):
        own = commands.add_parser(name, help=help, description=help)
        own.set_defaults(run=run)
        if strategy:
            own.add_argument("strategy", help='such as "Megatron(tp=2) * DataParallel(dp=2)"')
        if cluster:
            own.add_argument("--cluster", default="nvswitch(8)", help="a preset: %(default)s")
        own.add_argument("--gpt", default="", help=_MODEL)
        return own

    own = command("run", _run, "train on real ranks of this machine", cluster=False)
    own.add_argument("--steps", type=int, default=3)
    own.add_argument("--chrome", type=Path, help="write a trace for Perfetto: *.json, *.json.gz")
    own.add_argument("--html", type=Path, help="write the timeline as a page without network")
    command("predict", _predict, "the time of a step by formula")
    command("simulate", _simulate, "the time of a step by simulation of the program")
    own = command("search", _search, "which strategies are fastest on a cluster", strategy=False)
    own.add_argument("strategies", nargs="*", help="classes to try: ATP AxoNN; by default all")
    own.add_argument("--seconds", type=float, default=9.0, help="at most so long: %(default)s")
    own = commands.add_parser("lab", help="copy the notebooks and open them in JupyterLab")
    own.add_argument("folder", nargs="?", type=Path, default=Path("tpviz-notebooks"))
    own.add_argument("--no-open", action="store_true", help="copy only")
    own.add_argument("--no-browser", action="store_true", help="serve, and open no browser")
    own.add_argument("--port", type=int, help="by default the first free one from 8888")
    own.set_defaults(run=_lab)
    own = commands.add_parser("demo", help="train a small GPT on 4 ranks, check it, write a page")
    own.add_argument("--steps", default="30", help="training steps of each run: %(default)s")
    own.add_argument("--out", default="out/demo", help="folder for pictures: %(default)s")
    own.set_defaults(run=_demo)
    own = commands.add_parser("leaderboard", help="grade entries of the public leaderboard")
    own.add_argument("files", nargs="*", type=Path, help="entries; by default all of --tasks")
    own.add_argument("--tasks", type=Path, default=Path("docs/leaderboard"), help="%(default)s")
    own.add_argument("--new", action="store_true", help="their dates must be of these days")
    own.set_defaults(run=_leaderboard)
    own = commands.add_parser("doctor", help="check what this machine, or several, can do")
    own.add_argument("--hosts", help="of several: names or addresses of the others, A,B:PORT")
    own.add_argument("--listen", metavar="ADDRESS[:PORT]", help="let another host examine this one")
    own.add_argument("--master-port", type=int, default=29500, help="of rank 0: %(default)s")
    own.set_defaults(run=_doctor)
    own = commands.add_parser("mcp", help="offer predict, search, verify and ledgers to agents")
    own.set_defaults(run=_mcp)
    _cluster_parser(commands)
    return parser


def _cluster_parser(commands):
    about = "start an engine on each of several hosts, see what they have, stop them"
    actions = commands.add_parser("cluster", help=about, description=about).add_subparsers(
        dest="action", required=True, metavar="start|stop|status"
    )
    own = actions.add_parser("start", help="start engines; says how a notebook uses them")
    how = own.add_mutually_exclusive_group(required=True)
    how.add_argument("--hosts", metavar="A,B", help="by SSH and keys: [USER@]HOST[:PORT]")
    how.add_argument("--local", type=int, metavar="N", help="on this machine, as if N hosts")
    how.add_argument("--mpi", type=int, metavar="N", help="by mpiexec, on N hosts")
    how.add_argument("--slurm", type=int, metavar="N", help="by sbatch, on N hosts")
    own.add_argument("--ip", help="of this machine, by which engines reach it")
    own.add_argument("--python", default=sys.executable, help="of the hosts: %(default)s")
    own.add_argument("--options", default="", help="more for ssh, mpiexec or sbatch")
    own.add_argument("--seconds", type=float, default=120, help="for engines to come: %(default)s")
    ways = {action: actions.add_parser(action) for action in ("stop", "status")}
    for one in (own, *ways.values()):
        one.add_argument("--name", default=None if one is ways["status"] else "tpviz")
        one.set_defaults(run=_engines)


# -- commands --------------------------------------------------------------------------------------
def _run(options):
    import tpviz as tv

    from .views.figures.page import write_page

    if options.steps < 1:
        raise ValueError(f"--steps {options.steps}: use 1 or more")
    trace = tv.run(*_plan(options), steps=options.steps)
    _print_step(trace)
    if options.chrome:
        print(trace.to_chrome(options.chrome))
    if options.html:
        write_page(options.html, trace)
        print(options.html)
    tv.shutdown()
    return 0


def _predict(options):
    import tpviz as tv

    print(tv.predict(*_plan(options), _written().cluster(options.cluster)).describe())
    return 0


def _simulate(options):
    import tpviz as tv

    _print_step(tv.simulate(*_plan(options), _written().cluster(options.cluster)))
    return 0


def _plan(options):
    return _written().strategy(options.strategy), _written().workload(options.gpt)


def _written():
    from .verbs import written  # late: with it come strategies and clusters

    return written


def _print_step(trace):
    print(f"{trace.badge}: {trace.step_time * 1e3:.4g} ms a step\n{trace.ledger()}")


def _search(options):
    import tpviz as tv

    found = tv.search(
        _written().workload(options.gpt),
        _written().cluster(options.cluster),
        options.strategies or None,
        seconds=options.seconds,
    )
    print(found.describe())
    return 0


def _lab(options):
    from .course.lab import copy_notebooks, open_lab

    copy_notebooks(options.folder)
    return 0 if options.no_open else open_lab(options.folder, options.port, not options.no_browser)


def _demo(options):
    from .views import demo

    return demo.main(["--steps", options.steps, "--out", options.out])


def _leaderboard(options):
    from .course.contest import grade_all

    return grade_all(options.files, options.tasks, options.new)


def _doctor(options):
    if options.listen is not None:
        from .ranks.doctor_hosts import listen

        return 0 if listen(options.listen) else 1
    if options.hosts is not None:
        from .ranks import doctor_hosts

        found = doctor_hosts.doctor_hosts(options.hosts.split(","), options.master_port)
        return 1 if any(finding.blocks for finding in found) else 0
    from .ranks.doctor import doctor

    return 1 if doctor()["launch"]["error"] else 0


def _mcp(options):
    try:
        from .views import agents
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise ValueError("it needs mcp, version 2: pip install 'tpviz[mcp]'") from None
    agents.serve()
    return 0


def _engines(options):
    from .ranks import cluster_command

    if options.action == "stop":
        return cluster_command.stop(options.name) or 0
    if options.action == "status":
        return 0 if cluster_command.status(options.name) else 1
    hosts = options.hosts.split(",") if options.hosts is not None else []
    counts = {"local": options.local, "mpi": options.mpi, "slurm": options.slurm}
    how, n = next(((k, v) for k, v in counts.items() if v is not None), ("ssh", len(hosts)))
    more = options.ip, options.python, options.options, options.seconds
    return cluster_command.start(options.name, how, n, hosts, *more) or 0


if __name__ == "__main__":
    sys.exit(main())
