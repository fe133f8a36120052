"""A rank's standard output and error, as text streams on the descriptors 1 and 2."""

import sys
from typing import TextIO


def text_stream(descriptor: int) -> TextIO:
    """A descriptor's text stream, that writes line by line."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def flush_output() -> None:
    """Pass on what was printed; a stream that the rank's function closed is opened again."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        try:
            getattr(sys, name).flush()
        except (ValueError, AttributeError):
            setattr(sys, name, text_stream(descriptor))
