"""Sphinx's settings of the documentation, whose source is the whole repository: ``make docs``."""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS / "teacher")]

from docstrings import arguments, docstring
from pages import executed, without_views

import tpviz
from tpviz.views.figures.assets import stylesheet

project, release, copyright = "tpviz", tpviz.__version__, "The tpviz maintainers"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["[CR]*.md", "docs/**", "notebooks/*.ipynb"]
suppress_warnings = ["myst.header"]  # the glossary is one flat list

default_role = "py:obj"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_excludepatterns = ["notebooks/*"]  # `outputs` has run them
nb_execution_raise_on_error = nb_merge_streams = True
nb_execution_timeout = 300
nb_ipywidgets_js = {}  # widgets' scripts would come from elsewhere, and no view is live here

# Where the site is built from: the hosted workflow knows, a clone does not.
REPOSITORY, REVISION = (os.environ.get(f"GITHUB_{name}", "") for name in ("REPOSITORY", "REF_NAME"))
html_theme = "furo"
ADDRESS = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{REPOSITORY}/"
if REPOSITORY:
    html_theme_options = {"source_repository": ADDRESS, "source_branch": REVISION}
html_title = f"tpviz {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sphinx = False
html_math_renderer = "mathml"
_gallery = re.search(r"<main>(.*)</main>(.*)</body>", (DOCS / "gallery.html").read_text(), re.S)
html_context = {"gallery": f"<style>{stylesheet()}</style>{_gallery[1]}{_gallery[2]}"}
html_additional_pages = {"index": "gallery.html"}
templates_path = ["_templates"]


def execute(app: Sphinx) -> None:
    """Run the notebooks side by side: Sphinx would give nearly all of them to one process."""
    with ThreadPoolExecutor(app.parallel) as pool:
        list(pool.map(executed, sorted((DOCS.parent / "notebooks").glob("*.ipynb"))))


def outputs(app: Sphinx, name: str, source: list[str]) -> None:
    """Notebooks are stored without outputs: here they get them, and pictures for live views. Where
    the repository is known, they open in Binder, and the first page leads to it."""
    if REPOSITORY and name == root_doc:
        source[0] += f"\nThis site was built from [{REPOSITORY}]({ADDRESS}).\n"
    if name.startswith("notebooks/"):
        book = without_views(executed(DOCS.parent / f"{name}.ipynb"))
        for cell in book.cells:
            for file, data in cell.pop("attachments", {}).items():
                [(kind, text)] = data.items()
                picture = f"data:{kind};base64,{''.join(text.split())}"
                cell.source = cell.source.replace(f"attachment:{file}", picture)
        if REPOSITORY:
            path = f"{REPOSITORY}/{REVISION}?urlpath=lab/tree/{name}.ipynb"
            book.cells[0].source += f"\n\n[Open in Binder](https://mybinder.org/v2/gh/{path})"
        source[0] = nbformat.writes(book)


def mathml(page: HTML5Translator, node: nodes.Element) -> None:
    """A formula without scripts or fonts."""
    page.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect what is ours."""
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", arguments)
    app.connect("builder-inited", execute)
    app.connect("source-read", outputs)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
