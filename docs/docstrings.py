"""Our docstrings as reStructuredText, for Sphinx: ``name : text`` is an entry of a list, and
``Parameters`` over dashes a small heading."""

import re
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


def docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Sphinx's event ``autodoc-process-docstring``."""
    lines[:] = restructured(lines)


def arguments(
    app: Any, what: str, name: str, thing: Any, options: Any, given: str | None, returns: Any
) -> tuple[str, None] | None:
    """Sphinx's event ``autodoc-process-signature``: traitlets' ``__new__`` hides those of views."""
    if what != "class" or not (given or "").startswith("(*args"):
        return None
    taken = signature(thing.__init__, bound_method=True)
    return stringify_signature(
        taken, unqualified_typehints=True, show_return_annotation=False
    ), None
