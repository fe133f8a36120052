"""The right formula with one thing changed in it: a term left out, a sign, a constant, a case.

Where no other cause is known, a wrong answer to all questions of a draw may be that of such a
formula. They are made from the code of an exercise's solution, so a formula needs no list of them.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from typing import Any

SWAPPED = {ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Add: ast.Sub, ast.Sub: ast.Add}
OTHER = {
    ast.Mult: "you divide by {right}, which is a factor",
    ast.Div: "you multiply by {right}, by which to divide",
    ast.Add: "you subtract {right}, which is to be added",
    ast.Sub: "you add {right}, which is to be subtracted",
}
WITHOUT_RIGHT = {
    ast.Mult: "you do not multiply by {right}",
    ast.Div: "you do not divide by {right}",
    ast.FloorDiv: "you do not divide by {right}",
    ast.Add: "{right} is not added",
    ast.Sub: "you do not subtract {right}",
    ast.Mod: "the remainder by {right} is not taken",
    ast.Pow: "the power {right} is not taken",
}
WITHOUT_LEFT = {
    ast.Mult: "you do not multiply by {left}",
    ast.Div: "{left} is not above the fraction",
    ast.Add: "{left} is not added",
}
NEXT = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
Change = tuple[str, ast.AST, ast.AST]
"""(words, node, what stands in its place)."""


@lru_cache(maxsize=128)
def changed(solution: Callable[..., Any]) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """(the change in words, the solution with it) of each; none of code that may not end."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(solution))).body[0]
    except (OSError, TypeError, SyntaxError):
        return ()
    if not isinstance(tree, ast.FunctionDef) or any(
        isinstance(n, ast.While) for n in ast.walk(tree)
    ):
        return ()
    tree.decorator_list, tree.returns = [], None
    for argument in (*tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    known = {argument.arg for argument in tree.args.args}
    nodes = [node for line in tree.body for node in ast.walk(line)]
    around = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    changes = [change for node in nodes for change in _changes(node, around, known)]
    return tuple((words, _made(solution, tree, node, other)) for words, node, other in changes)


def _made(solution, tree, node, other):
    """The function with another node in place of one."""
    copy = deepcopy(tree, {id(node): deepcopy(other)})
    space = dict(vars(inspect.getmodule(solution)))
    exec(compile(ast.fix_missing_locations(ast.Module([copy], [])), "<changed>", "exec"), space)
    return space[tree.name]


def _changes(node, around, known) -> Iterator[Change]:
    """Those of one node."""

    def text(part):
        names = {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        return f"`{ast.unparse(part)}`" if names <= known else "a part of the formula"

    if isinstance(node, ast.BinOp):
        parts = {"left": text(node.left), "right": text(node.right)}
        kind = type(node.op)
        for words, stays in ((WITHOUT_RIGHT, node.left), (WITHOUT_LEFT, node.right)):
            if kind in words:
                yield words[kind].format(**parts), node, stays
        if kind in SWAPPED:
            swapped = ast.BinOp(node.left, SWAPPED[kind](), node.right)
            yield OTHER[kind].format(**parts), node, swapped
    elif isinstance(node, ast.Constant) and type(number := node.value) in (int, float):
        whole = around.get(node)
        where = f" in {text(whole)}" if isinstance(whole, ast.BinOp) else ""
        yield from ((f"{words}{where}", node, one) for words, one in _near(number))
    elif isinstance(node, ast.IfExp):
        yield f"you have {text(node.body)} always, also where it is not due", node, node.body
        where = text(node.test)
        yield f"you have {text(node.orelse)} always, also where {where}", node, node.orelse
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in NEXT:
        other = ast.Compare(node.left, [NEXT[type(node.ops[0])]()], node.comparators)
        yield f"the limit is {text(node)}: where both are equal counts", node, other
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max"):
        name = {"min": "max", "max": "min"}[node.func.id]  # pyright: ignore[reportAttributeAccessIssue]
        called = ast.Call(ast.Name(name, ast.Load()), node.args, node.keywords)
        yield f"you take the `{name}` in place of {text(node)}", node, called
        for part in node.args if len(node.args) == 2 else ():
            yield f"you have {text(part)} alone, in place of {text(node)}", node, part


def _near(number: Any) -> Iterator[tuple[str, ast.Constant]]:
    for value in (number + 1, number - 1, 2 * number, number / 2):
        whole = int(value) if value == int(value) else value
        yield f"you have {value:g} in place of {number:g}", ast.Constant(whole)
