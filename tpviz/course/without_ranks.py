"""Notebooks where no ranks can be started, as in a page: a statement that needs torch or processes
is left out, with all that follow from it; the rest of its cell runs, and the cell says so.

`install` is called by ``startup.py``, which JupyterLite's kernel runs as it starts.
"""

import ast
import linecache
from collections.abc import Sequence
from traceback import walk_tb
from typing import Any

LACKING = "torch", "multiprocessing", "_multiprocessing", "cloudpickle", "plotly"
WHY = """real ranks (torch and several processes) are needed, which this Python has not.
To run it, open this notebook on a machine: pip install tpviz, then tpviz lab."""


class _Leaving:
    """IPython's handler of what is not there; ``names`` are those that are not bound as what would
    have done it was left out."""

    def __init__(self):
        self.names = set[str]()

    def __call__(self, shell: Any, kind: Any, error: Any, traceback: Any, tb_offset: Any = None):
        at = [
            (frame.f_code.co_filename, line)
            for frame, line in walk_tb(traceback)
            if frame.f_code.co_name == "<module>" and frame.f_locals is shell.user_ns
        ]
        if not at or not self._known(error):
            shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
            return
        file, line = at[-1]
        body = ast.parse("".join(linecache.getlines(file))).body
        statements = [s for s in body if (s.end_lineno or 0) >= line]
        left = self._rest(shell, file, statements)
        which = "this cell" if len(left) == len(body) else f"{_lines(left)} of this cell"
        print(f"Not run here: {which}, as {WHY}")

    def _known(self, error: Exception) -> bool:
        if isinstance(error, ModuleNotFoundError):
            return (error.name or "").split(".")[0] in LACKING
        return isinstance(error, NameError) and error.name in self.names

    def _rest(self, shell: Any, file: str, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Run those after the first; returns what is left out."""
        left = [statements[0]]
        self._leave(statements[0], shell.user_ns)
        for one in statements[1:]:
            try:
                used = _names(one, ast.Load) & self.names - shell.user_ns.keys()
                if not used:
                    last = one is statements[-1] and isinstance(one, ast.Expr)
                    tree = ast.Interactive([one]) if last else ast.Module([one], [])
                    exec(compile(tree, file, "single" if last else "exec"), shell.user_ns)
                    continue
            except Exception as error:
                if not self._known(error):
                    shell.showtraceback()
                    return left
            left.append(one)
            self._leave(one, shell.user_ns)
        return left

    def _leave(self, statement: ast.stmt, bound: dict[str, Any]):
        for name in _names(statement, ast.Store):
            self.names.add(name)
            bound.pop(name, None)  # of an earlier cell: what follows must not take that


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    """Names that a statement uses, or binds, or of whose value it sets an item."""
    found = set[str]()
    for node in ast.walk(statement):
        base = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(base, ast.Name) and isinstance(getattr(node, "ctx", None), context):
            found.add(base.id)
        if context is ast.Store and isinstance(node, ast.alias):
            found.add(node.asname or node.name.split(".")[0])
    if context is ast.Store and isinstance(statement, ast.FunctionDef | ast.ClassDef):
        found = {statement.name}
    return found


def _lines(statements: Sequence[ast.stmt]) -> str:
    """Where they stand in the cell; those side by side are one range."""
    ranges = list[list[int]]()
    for first, last in ((s.lineno, s.end_lineno or s.lineno) for s in statements):
        if ranges and first == ranges[-1][1] + 1:
            ranges[-1][1] = last
        else:
            ranges.append([first, last])
    several = ranges[0][0] < ranges[-1][1]
    told = (str(first) if first == last else f"{first} to {last}" for first, last in ranges)
    return f"line{'s' * several} {', '.join(told)}"


def install(shell: Any) -> None:
    """Let cells of an IPython shell leave out what needs ranks."""
    shell.set_custom_exc((ModuleNotFoundError, NameError), _Leaving())
