"""The answer key, docs/teacher/answers.md, from the right answers here: `make answers`."""

import ast
import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import solutions
from batches import TABLES

from tpviz.course import Exercise, exercises

KEY = Path(__file__).parents[2] / "docs" / "teacher" / "answers.md"
OURS = re.compile("^from (solutions|misconceptions|otherwise)", re.M)
"""Answers that begin so stand in the tests only."""
HEAD = """# Answer key

For teachers: one right answer to each exercise, the plainest of those that the tests grade. Others
may be right as well: `tv.check` judges what the code does. This file is made by `make answers` from
`tests/course`; neither it nor the answers are in the package.
"""


def code_of(fn: Callable[..., Any], name: str) -> str:
    """The function, called ``name``, below what it needs of its module."""
    tree, lines = _parsed(inspect.getmodule(fn))
    defined, imported = {}, {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {(a.asname or a.name).split(".")[0]: (node, a) for a in node.names}
        for target in getattr(node, "targets", [node]):
            if isinstance(called := getattr(target, "id", getattr(target, "name", None)), str):
                defined[called] = node
    wanted, nodes, imports = [fn.__name__], [], {}
    for called in wanted:  # grows
        node = defined[called]
        nodes.append(node)
        used = dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        wanted += [n for n in used if n in defined and n not in wanted]
        imports |= {n: imported[n] for n in used if n in imported}
    parts = [
        "\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in sorted(nodes, key=lambda n: n.lineno)
    ]
    code = "\n\n\n".join(parts).replace(f"def {fn.__name__}(", f"def {name}(")
    return "\n".join([*sorted(map(_imported, imports.values())), "\n", code]).strip()


@cache
def _parsed(module):
    source = inspect.getsource(module)
    return ast.parse(source), source.splitlines()


def _imported(found):
    node, alias = found
    words = f"import {alias.name}" + f" as {alias.asname}" * bool(alias.asname)
    return f"from {node.module} {words}" if isinstance(node, ast.ImportFrom) else words


def answer(task: Exercise) -> str:
    """The shortest right answer to an exercise as code to paste: with the parameters of the task,
    if any has these."""
    fns = [fn for of in (solutions, *TABLES) for fn in of.RIGHT.get(task.name, ())]
    fns = [fn for fn in fns if inspect.isfunction(fn) and fn.__name__ != "<lambda>"]
    plain = [fn for fn in fns if list(inspect.signature(fn).parameters) == task.parameters]
    codes = [code_of(fn, task.name) for fn in plain or fns]
    return min(codes, key=lambda code: (bool(OURS.search(code)), len(code)))


def text() -> str:
    """The whole key."""
    parts, notebook = [HEAD], None
    for task in exercises():
        if task.notebook != notebook:
            notebook = task.notebook
            parts.append(f"## {notebook}\n")
        facts = f"{task.topic}, difficulty {task.difficulty} of 3, {task.minutes} minutes"
        parts.append(f"### `{task.name}`: {task.title}\n\n*{facts}.* {task.success}\n")
        parts.append(f"```python\n{answer(task)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    KEY.parent.mkdir(exist_ok=True)
    KEY.write_text(text())
    print(KEY)
