"""Abbreviations in views: each is written out in the view itself, or stands in the glossary."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from test_legible import CHARTS, PICTURES, VIEWS

from tpviz.views.figures.terms import TERMS, explained

DOCS = Path(__file__).resolve().parents[2] / "docs"
_spec = spec_from_file_location("link_terms", DOCS / "link_terms.py")
link_terms = module_from_spec(_spec)
_spec.loader.exec_module(link_terms)
ENTRIES = link_terms.terms((DOCS / "glossary.md").read_text()).values()
GLOSSARY = {form.lower() for forms in ENTRIES for form in forms}
NAMES = {"ATP", "AxoNN", "GPT", "T3", "GPU", "A100", "H100", "SXM", "LM", "AI", "ColossalAI"}
NAMES |= {"MFU"}  # written out beside it
"""Of models, schemes, programs and devices; and the one word that everybody here knows."""
UNITS = {"B", "MB", "GB", "TB", "TFLOP", "TFLOPs"}
CAPITALS = re.compile(r"\b(?=\w*[A-Z]\w*[A-Z])[A-Za-z]\w*\b")
"""An abbreviation: a word with two capitals."""


def words_of(view):
    """What stands in a view's static picture: its texts, without what is seen where one points."""
    svg = view if isinstance(view, str) else getattr(view, "picture", view).to_svg()
    drawn = re.sub(
        r"<title>[^<]*</title>|<desc>[^<]*</desc>|<style>.*?</style>", " ", svg, flags=re.S
    )
    return " ".join(re.findall(r">([^<]+)<", drawn))


@pytest.mark.parametrize("name", [n for n in (*VIEWS, *PICTURES) if n not in CHARTS])
def test_every_abbreviation_is_explained(name):
    said = words_of({**VIEWS, **PICTURES}[name]())
    known = NAMES | UNITS | TERMS.keys() | GLOSSARY
    unknown = {
        word
        for word in CAPITALS.findall(said)
        if known.isdisjoint(
            {word, word.lower(), word.rstrip("s0123456789"), word.lstrip("kMGTP").rstrip("s")}
        )
    }
    assert unknown == set()


@pytest.mark.parametrize("name", ["schedule", "tiles", "blocks", "grid", "microscope"])
def test_a_film_says_what_its_abbreviations_mean(name):
    """With all else that stands behind "more", and in the static picture."""
    film = VIEWS[name]().picture if name != "microscope" else VIEWS[name]()
    lines = explained(film.scene | {"help": []})
    assert len(lines) >= 1 and {*lines} <= {*film.scene["help"]}
    flat = re.sub(r"\s+", " ", words_of(film))
    assert all(line.split(":")[0] + ":" in flat for line in lines)
