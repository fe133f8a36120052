"""Write docs/gallery.html: what the views show, in one file to look at without installation.

Run by ``make gallery``.
"""

from pathlib import Path

import tpviz as tv
from tpviz.views.figures.page import document
from tpviz.views.gallery import SECTIONS, section

PATH = Path(__file__).parent / "gallery.html"


def main() -> None:
    """Draw all sections, and write the page."""
    body = "<p class='facts'>Press Play, or move a slider. Nothing is loaded from a network.</p>"
    for title, (draw, words) in SECTIONS.items():
        body += section(title, words, draw())
    PATH.write_text(document("tpviz: the gallery", body), encoding="utf-8")
    tv.shutdown()
    print(f"{PATH.relative_to(Path.cwd())}: {PATH.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
