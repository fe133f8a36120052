"""Write docs/gallery.html: what the views show, in one file to look at without installation.

Run by ``make gallery``.
"""

from pathlib import Path

import tpviz as tv
from tpviz.views.figures.page import document
from tpviz.views.gallery import SECTIONS, section, thumbnails

PATH = Path(__file__).parent / "gallery.html"


def main() -> None:
    """Draw all sections, and write the page."""
    hero, *others = SECTIONS.items()
    body = (
        "<p class='facts'>Each GPU, a rank, sees a part of the data; then all agree on one "
        "gradient. Nobody is in charge.</p>"
    )
    _, (draw, words) = hero
    body += f"<section id='{draw.__name__}'>{draw()}<p>{words}</p></section>{thumbnails()}"
    for title, (draw, words) in others:
        body += section(title, words, draw(), draw.__name__)
    PATH.write_text(document("How one model trains on many GPUs", body), encoding="utf-8")
    tv.shutdown()
    print(f"{PATH.relative_to(Path.cwd())}: {PATH.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
