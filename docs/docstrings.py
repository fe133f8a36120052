"""Our docstrings as reStructuredText, for Sphinx: ``name : text`` is an entry of a list, and
``Parameters`` over dashes a small heading."""

import ast
import inspect
import re
from dataclasses import MISSING
from doctest import DocTestParser
from types import ModuleType
from typing import Any

from sphinx.util.inspect import signature, stringify_signature

_ENTRY = re.compile(r"( *)(\S.*?) : ?(.*)")
_NAMES = re.compile(r"\*{0,2}\w+(\([\w, ]*\))?(, \*{0,2}\w+(\([\w, ]*\))?)*")


def restructured(lines: list[str]) -> list[str]:
    """The lines of a docstring with its entries as definition lists, in which Sphinx reads no type.

    >>> restructured(["Sums.", "", "x : rows,", "    at least one.", "dim : of the sum."])
    ['Sums.', '', '', '**x**', '    rows,', '    at least one.', '', '**dim**', '    of the sum.']
    >>> restructured(["Raises", "------", "ValueError : no rows."])
    ['.. rubric:: Raises', '', '', '**ValueError**', '    no rows.']
    """
    made: list[str] = []
    entry: str | None = None  # the indentation of the entry whose text goes on
    code = False
    for line, below in zip(lines, [*lines[1:], ""]):
        code = line.lstrip().startswith(">>>") or (code and bool(line.strip()))
        found = None if code else _ENTRY.fullmatch(line)
        if re.fullmatch(r" *-{3,}", line):
            made.append("")
        elif re.fullmatch(r" *-{3,}", below):
            made.append(line.replace(line.strip(), f".. rubric:: {line.strip()}"))
        elif found and _NAMES.fullmatch(found[2]):
            entry, names, text = found.groups()
            names = names.replace("*", r"\*")
            made += ["", f"{entry}**{names}**", f"{entry}    {text}"]
        else:
            beside = entry is not None and line.startswith(entry) and line[len(entry) :][:1] > " "
            made.append(f"    {line}" if beside and not code else line)
        entry = entry if line.strip() else None
    return made


def imported(lines: list[str], module: ModuleType | None) -> list[str]:
    """The lines of a docstring whose first example imports what it takes from its module, where a
    test finds it without.

    >>> import tpviz.core.mesh as module
    >>> imported([">>> Mesh({'tp': 2}).size"], module)
    ['>>> from tpviz.core.mesh import Mesh', ">>> Mesh({'tp': 2}).size"]
    """
    examples = DocTestParser().get_examples("\n".join(lines))
    code = ast.parse("".join(example.source for example in examples))
    names = [node for node in ast.walk(code) if isinstance(node, ast.Name)]
    here = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    here |= {a.asname or a.name for n in ast.walk(code) for a in getattr(n, "names", ())}
    taken = sorted({node.id for node in names} & {*vars(module or object)} - here)
    if not taken or module is None:
        return lines
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith(">>>"))
    indent = lines[first].partition(">>>")[0]
    words = f"{indent}>>> from {module.__name__} import {', '.join(taken)}"
    return [*lines[:first], words, *lines[first:]]


def docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's event ``autodoc-process-docstring``."""
    lines[:] = restructured(imported(lines, inspect.getmodule(thing)))


def arguments(
    app: Any, what: str, name: str, thing: Any, options: Any, given: str | None, returns: Any
) -> tuple[str, None] | None:
    """Sphinx's event ``autodoc-process-signature``: traitlets' ``__new__`` hides those of views,
    and of a default that is no expression, such as a dataclass's ``<factory>``, Sphinx reads
    nothing and shows names with their markup."""
    hidden = (given or "").startswith("(*args")
    if what != "class" or not (hidden or "<factory>" in (given or "")):
        return None
    taken = signature(thing.__init__, bound_method=True)
    made = {
        field.name: field.default_factory()
        for field in getattr(thing, "__dataclass_fields__", {}).values()
        if field.default_factory is not MISSING
    }
    each = [p.replace(default=made.get(n, p.default)) for n, p in taken.parameters.items()]
    return stringify_signature(
        taken.replace(parameters=each), unqualified_typehints=True, show_return_annotation=False
    ), None
