"""The browser half of the views, ready to embed: ES modules and CSS that load nothing else.

The hand-written modules in ``widgets/`` import from each other by name; `module` joins a view with
what it imports into one text: Jupyter (anywidget) and a plain HTML page run the very same code.
"""

import re
from functools import lru_cache
from pathlib import Path

from .tokens import css_rules, css_variables

FOLDER = Path(__file__).resolve().parent.parent / "widgets"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)


@lru_cache
def module(name: str) -> str:
    """One self-contained ES module: ``widgets/<name>.js`` and what it imports, each once."""
    parts, order = {}, []

    def visit(file):
        if file in parts:
            return
        parts[file] = text = (FOLDER / file).read_text(encoding="utf-8")
        for needed in _IMPORT.findall(text):
            visit(needed)
        order.append(file)

    visit(f"{name}.js")
    *inner, last = (_IMPORT.sub("", parts[file]) for file in order)
    return "\n".join([*(re.sub(r"^export ", "", text, flags=re.MULTILINE) for text in inner), last])


@lru_cache
def stylesheet() -> str:
    """The CSS of every view, with the palette's colours and the classes of Python's pictures."""
    variables = css_variables(":is(.tpv, .tpv-framed, .tpv-ground)")
    return variables + css_rules() + (FOLDER / "view.css").read_text(encoding="utf-8")
