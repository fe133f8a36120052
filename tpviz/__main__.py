"""The command line: ``python -m tpviz doctor``, or just ``tpviz doctor``."""

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    parser = argparse.ArgumentParser(prog="tpviz", description="Tensor parallelism you can see.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("doctor", help="say what this machine can do").set_defaults(run=_doctor)
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


def _doctor(_):
    from tpviz.runtime.doctor import doctor

    return 1 if doctor()["launch"]["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
