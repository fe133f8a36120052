"""Pure functions from a trace or a mesh to a picture: scene (a plain dict), then SVG, table, words or a page."""
