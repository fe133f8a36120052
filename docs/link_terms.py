"""Link the first use of each term in a notebook to docs/glossary.md: ``make glossary``.

Old links are removed first, so a second run changes nothing and a text may be moved about.
Headings, code, formulas, and what is a link already stay as they are.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

DOCS = Path(__file__).parent
NOTEBOOKS = DOCS.parent / "notebooks"
PAGE = "../docs/glossary.md"
_LINK = re.compile(r"\[([^\]]*)\]\(" + re.escape(PAGE) + r"#[^)]*\)")
_KEPT = re.compile(  # in this order: a fence holds anything, inline code holds dollars
    r"(```.*?```|^#.*?$|^\*\*(?:Before|Next).*?$|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]+\$"
    r"|!?\[[^\]]*\]\([^)]*\)|<[^>\n]+>|https?://\S+)",
    re.S | re.M,
)


def terms(glossary: str) -> dict[str, list[str]]:
    """Every entry's anchor, as GitHub makes it, with its term and its other forms ("Also: ...")."""
    found = {}
    for entry in glossary.split("\n### ")[1:]:
        term, _, text = entry.partition("\n")
        anchor = re.sub(r"[^\w -]", "", term.lower()).replace(" ", "-")
        found[anchor] = [term, *_listed("Also", text)]
    return found


def other_senses(glossary: str) -> list[str]:
    """The phrases ("Not: ...") in which a term means something else, so that none is a link."""
    return _listed("Not", glossary)


def _listed(mark, text):
    found = re.findall(rf"{mark}: ([^.\"]+)\.", text)
    return [form for words in found for form in words.replace("\n", " ").split(", ")]


def pattern(forms: Iterable[str]) -> str:
    """A regular expression for any form, with its endings; capitals in a form have to be there."""
    return "|".join(
        (r"(?<![\w-])" if any(letter.isupper() for letter in form) else r"(?i:(?<![\w-])")
        + re.sub(r"[ -]", "[ -]", form)
        + r"(?:e?s|e?d|ing)?(?![\w-])"
        + ("" if any(letter.isupper() for letter in form) else ")")
        for form in forms
    )


def linked(cells: Iterable[str], glossary: str) -> Iterator[str]:
    """The Markdown cells of one notebook, with the first use of every term linked."""
    entries = [*terms(glossary).items(), (None, other_senses(glossary))]
    known = sorted(
        ((form, anchor) for anchor, forms in entries for form in forms),
        key=lambda pair: -len(pair[0]),  # "rank correlation" before "rank"
    )
    anchors = {f"t{i}": anchor for i, (_, anchor) in enumerate(known)}
    every = re.compile(
        "|".join(f"(?P<t{i}>{pattern([form])})" for i, (form, _) in enumerate(known))
    )
    done = set()

    def link(match):
        anchor = anchors[match.lastgroup]
        if anchor is None or anchor in done:
            return match[0]
        done.add(anchor)
        return f"[{match[0]}]({PAGE}#{anchor})"

    for cell in cells:
        parts = _KEPT.split(_LINK.sub(r"\1", cell))
        parts[::2] = [every.sub(link, part) for part in parts[::2]]  # every second one is kept
        yield "".join(parts)


def relink(path: Path, glossary: str) -> str:
    """The text of a notebook's file with its links made anew."""
    book = json.loads(path.read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "markdown"]
    for cell, text in zip(cells, linked(["".join(cell["source"]) for cell in cells], glossary)):
        whole = isinstance(cell["source"], str)
        cell["source"] = text if whole else text.splitlines(keepends=True)
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Rewrite the notebooks whose links have changed, and name them."""
    glossary = (DOCS / "glossary.md").read_text()
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text = relink(path, glossary)
        if text != path.read_text():
            path.write_text(text)
            print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
