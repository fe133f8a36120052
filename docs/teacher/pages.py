"""Handouts and slides of executed notebooks: ``make handouts``, ``make slides``.

Each is one HTML file with its pictures inside, which needs no network; of a handout there is a PDF
too, where Chromium is installed. A notebook is executed once, into out/executed; both are made of
that. Live views are left out: each has left its picture.
"""

import re
import subprocess
import sys
from html import escape
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out"
CHROMIUM = Path("/usr/bin/chromium")
LONG = 900  # characters of text and code that fit on a slide
GREEK = {"alpha": "α", "beta": "β", "kappa": "κ", "cdot": "·", "times": "×", "le": "≤", "ge": "≥"}
LOOK = """
body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:60rem;margin:2rem auto;
padding:0 1rem} img,svg{max-width:100%;height:auto} table{border-collapse:collapse;margin:1em 0}
td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left} .formula{margin:1em 2em;font:italic
1.1em serif} pre{font-size:.85em;white-space:pre-wrap;overflow-wrap:anywhere} .anchor-link,.prompt
{display:none} .highlight pre,.input pre{background:#f6f6f6;padding:.6em;border-radius:4px}
@media print{body{max-width:none;margin:0} img,tr{break-inside:avoid}}
"""
SLIDES = """
body{margin:0;max-width:none;padding:0;font-size:1.3rem} section{display:none;box-sizing:border-box;
height:100vh;overflow:auto;padding:2rem 6vw} section.shown{display:block} #at{position:fixed;right:
1rem;bottom:.5rem;color:#666;font-size:1rem} img{max-height:75vh}
@media print{section{display:block;height:auto;min-height:90vh;break-after:page} #at{display:none}}
"""
KEYS = """
const all = [...document.querySelectorAll("section")], at = document.querySelector("#at");
const show = (i) => { const to = Math.max(0, Math.min(all.length - 1, i));
  all.forEach((one, j) => one.classList.toggle("shown", j === to));
  at.textContent = `${to + 1} / ${all.length}`; history.replaceState(0, "", `#${to + 1}`); };
const now = () => all.findIndex((one) => one.classList.contains("shown"));
const steps = { ArrowRight: 1, " ": 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };
addEventListener("keydown", ({ key }) => { if (steps[key]) show(now() + steps[key]);
  if (key === "Home") show(0); if (key === "End") show(all.length); });
show((parseInt(location.hash.slice(1)) || 1) - 1);
"""


def executed(path: Path, folder: Path = OUT / "executed") -> NotebookNode:
    """The notebook with its outputs, run unless ``folder`` has it. Raises a cell's error."""
    copy = folder / path.name
    if copy.exists() and copy.stat().st_mtime > path.stat().st_mtime:
        return nbformat.read(copy, as_version=4)
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, copy)
    return book


def plain(tex: str) -> str:
    """A formula in TeX as HTML: fractions on one line, Greek letters, subscripts and exponents.

    >>> plain(r"2\\\\frac{n-1}{n}\\\\,\\\\alpha_1")
    '2 (n-1)/n α<sub>1</sub>'
    """
    while (flat := re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", _fraction, tex)) != tex:
        tex = flat
    tex = escape(re.sub(r"\\(?:[,;!] ?|quad|[bB]igg?[lr]?|left|right)", " ", tex))
    tex = re.sub(r"\\([a-zA-Z]+) ?", lambda m: GREEK.get(m[1], m[1]), tex)
    tex = re.sub(r"([_^])(?:\{([^{}]*)\}|(\w))", _raised, tex)
    return " ".join(re.sub(r"[{}\\]", "", tex).split())


def _fraction(match):
    return "/".join(f" ({part})" if re.search(r"[^\w]", part) else part for part in match.groups())


def _raised(match):
    tag = "sub" if match[1] == "_" else "sup"
    return f"<{tag}>{match[2] or match[3]}</{tag}>"


def still(book: NotebookNode) -> NotebookNode:
    """A copy without live parts: pictures stay, formulas are HTML, links lead to other handouts."""
    book = without_views(book)
    for cell in book.cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"\$\$(.*?)\$\$", _formula, cell.source, flags=re.S)
            text = re.sub(r"\]\(\.\./docs/(\w+)\.md", r"](\1.html", text)
            cell.source = re.sub(r"\]\((\w+)\.ipynb", r"](\1.html", text)
    return book


def without_views(book: NotebookNode) -> NotebookNode:
    """A copy in which each live view is the picture that it has left."""
    book = NotebookNode(nbformat.from_dict(book.copy()))
    book.metadata.pop("widgets", None)
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if data.pop("application/vnd.jupyter.widget-view+json", None):
                data.clear()  # its picture is the output before
            if "text/html" in data:
                data["text/html"] = re.sub(r"<style>.*?</style>", "", data["text/html"], flags=re.S)
        if "outputs" in cell:
            cell.outputs = [one for one in cell.outputs if one.get("data", True)]
    return book


def _formula(match):
    return f'\n\n<div class="formula">{plain(match[1])}</div>\n\n'


def page(title: str, body: str, look: str = "", script: str = "") -> str:
    """One HTML file."""
    style = LOOK + HtmlFormatter().get_style_defs(".highlight") + look
    script = script and f"<script>{script}</script>"
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}{script}</body></html>\n'


def body(cells: list[NotebookNode]) -> str:
    """HTML of some cells, without a head."""
    exporter = HTMLExporter(template_name="basic", anchor_link_text="")
    return exporter.from_notebook_node(nbformat.v4.new_notebook(cells=cells))[0]


def handout(book: NotebookNode) -> str:
    """The whole notebook as one page."""
    book = still(book)
    return page(title(book), body(book.cells))


def title(book: NotebookNode) -> str:
    """The first heading."""
    return book.cells[0].source.partition("\n")[0].lstrip("# ")


def with_slide_types(book: NotebookNode) -> NotebookNode:
    """A copy whose cells are cut at headings and have the slide metadata of nbconvert: a new slide
    at a heading, a new one below it where the text gets long or a second cell of code comes."""
    cells, filled, code = [], 0, 0
    for cell in book.cells:
        is_code = cell.cell_type == "code"
        parts = [cell.source] if is_code else re.split(r"\n(?=##)", cell.source)
        for part in parts:
            one = cell.copy() if len(parts) == 1 else nbformat.v4.new_markdown_cell(part)
            one.metadata, one.source = NotebookNode(), part
            if part.startswith(("# ", "## ")) and not is_code:
                kind, filled, code = "slide", 0, 0
            elif (part.startswith("###") and not is_code) or (
                filled and (filled + len(part) > LONG or (is_code and code))
            ):
                kind, filled, code = "subslide", 0, 0
            else:
                kind = "-"
            filled, code = filled + len(part), code + is_code
            one.metadata.slideshow = NotebookNode(slide_type=kind)
            cells.append(one)
    return nbformat.v4.new_notebook(cells=cells, metadata=book.metadata)


def slides(book: NotebookNode) -> str:
    """The notebook as slides in one page: arrow keys and Space turn them, printing prints them."""
    grouped = []
    for cell in with_slide_types(still(book)).cells:
        if cell.metadata.slideshow.slide_type != "-" or not grouped:
            grouped.append([])
        grouped[-1].append(cell)
    sections = "".join(f"<section>{body(cells)}</section>" for cells in grouped)
    return page(title(book), f'{sections}<div id="at"></div>', SLIDES, KEYS)


def pdf(source: Path) -> Path | None:
    """Print a page beside itself, or nothing where there is no Chromium."""
    if not CHROMIUM.exists():
        return None
    done = source.with_suffix(".pdf")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    command = [str(CHROMIUM), *flags, f"--print-to-pdf={done}", source.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return done


def main(kind: str, *paths: str) -> None:
    """Write ``kind``, "handouts" or "slides", of the notebooks named, or of all."""
    make = {"handouts": handout, "slides": slides}[kind]
    folder = OUT / kind
    folder.mkdir(parents=True, exist_ok=True)
    for path in map(Path, paths or sorted(map(str, (ROOT / "notebooks").glob("*.ipynb")))):
        done = folder / f"{path.stem}.html"
        done.write_text(make(executed(path)))
        print(done, (kind == "handouts" and pdf(done)) or "")
    for source in ("glossary", "claims"):  # what notebooks link to
        text = (ROOT / f"docs/{source}.md").read_text().replace("../notebooks/", "")
        cell = nbformat.v4.new_markdown_cell(text.replace(".ipynb", ".html"))
        (folder / f"{source}.html").write_text(page(source, body([cell])))


if __name__ == "__main__":
    main(*sys.argv[1:])
