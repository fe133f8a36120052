"""Pictures: figures and films are pure functions to SVG, widgets stand around them."""
