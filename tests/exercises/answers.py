"""The answer key, docs/teacher/answers.md, from the right answers here: `make answers` writes it."""

import ast
import inspect
import re
from pathlib import Path

import solutions

from tpviz.exercises import exercises

KEY = Path(__file__).parents[2] / "docs" / "teacher" / "answers.md"
HEAD = """# Answer key

For teachers: one right answer to each exercise, the shortest of those that the tests grade. Others may be right as well:
`tv.check` judges what the code does. This file is made by `make answers` from `tests/exercises`; neither it nor the answers
are in the package.
"""


def code_of(fn, name):
    """The function, called ``name``, below what it needs of its module."""
    module = inspect.getmodule(fn)
    tree = ast.parse(inspect.getsource(module))
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
    lines = inspect.getsource(module).splitlines()
    parts = [
        "\n".join(lines[n.lineno - 1 : n.end_lineno]) for n in sorted(nodes, key=lambda n: n.lineno)
    ]
    code = re.sub(rf"\b{fn.__name__}\b", name, "\n\n\n".join(parts))
    return "\n".join([*map(_imported, imports.values()), "\n", code]).strip()


def _imported(found):
    node, alias = found
    words = f"import {alias.name}" + f" as {alias.asname}" * bool(alias.asname)
    return f"from {node.module} {words}" if isinstance(node, ast.ImportFrom) else words


def answer(name):
    """The shortest right answer to an exercise, as code to paste."""
    found = [code_of(fn, name) for fn in solutions.RIGHT[name] if inspect.isfunction(fn)]
    return min(found, key=len)


def text():
    """The whole key."""
    parts, notebook = [HEAD], None
    for task in exercises():
        if task.notebook != notebook:
            notebook = task.notebook
            parts.append(f"## {notebook}\n")
        stars = f"{task.topic}, difficulty {task.difficulty} of 3, about {task.minutes} minutes"
        parts.append(f"### `{task.name}`: {task.title}\n\n{stars}. {task.success}\n")
        parts.append(f"```python\n{answer(task.name)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    KEY.parent.mkdir(exist_ok=True)
    KEY.write_text(text())
    print(KEY)
