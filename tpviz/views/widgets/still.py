"""What stands where a live view was: its picture, in a notebook that was saved, exported, sent on.

A view is shown as two outputs: its picture, and the widget, of which a page without kernel has an
error or nothing. So has a page whose server lacks anywidget's half for the browser, as a Voila that
is installed apart. CSS alone hides the picture where the widget lives, and the widget where it does
not. The picture brings it, and the widget too: a page that cleans what it shows, as Voila's classic
template, drops the picture's. It knows outputs of JupyterLab, Notebook and Voila (nbconvert's lab
template) and of classic pages; anywhere else both show.
"""

from html import escape
from secrets import token_hex
from typing import Any

from tpviz.views.figures.svg import image

_LIVES = "tpv-lives"
_FAILED = ".jupyter-widgets-error-widget"  # in place of what the page cannot draw
_OUTPUTS = (".jp-OutputArea-child", ".output_area")
# A live view comes some 0.1 s after its picture, which keeps its place until then, unseen.
STYLE = (
    "".join(
        f"{output}:has(.tpv-still):has(+ {output} .{_LIVES}):not(:has(+ {output} {_FAILED})),"
        f"{output}:has(.tpv-still) + {output}:not(:has(.{_LIVES})),"
        f"{output}:has(.tpv-still) + {output}:has({_FAILED}){{display:none}}"
        for output in _OUTPUTS
    )
    + "@media screen{.tpv-still{animation:tpv-still .5s}}"
    "@keyframes tpv-still{from,99%{visibility:hidden}}"
)


class Still:
    """Mixin of a widget that is shown with a static twin. It has ``to_svg`` and ``describe``."""

    _place = ""  # of the twin among the outputs of the notebook, once it is shown

    def _still(self: Any) -> str:
        """The twin as HTML."""
        svg = self.to_svg()
        return image(svg, self.describe()) if svg else f"<p>{escape(self.describe())}</p>"

    def _ipython_display_(self: Any):
        from IPython.display import publish_display_data

        show = self._repr_mimebundle_  # None in a closed widget
        if not show:
            publish_display_data({"text/html": self._still()})
            return
        self.add_class(_LIVES)
        self._place = self._place or token_hex(8)
        self._draw_still(update=False)
        bundle = show()
        publish_display_data(*(bundle if isinstance(bundle, tuple) else (bundle,)))

    def _draw_still(self: Any, update: bool = True):
        """Show the twin, or, where it is shown, the one of what has come of the view since."""
        from IPython.display import publish_display_data

        if self._place:
            html = f"<div class='tpv-still'><style>{STYLE}</style>{self._still()}</div>"
            at = {"display_id": self._place}
            publish_display_data({"text/html": html}, transient=at, update=update)
