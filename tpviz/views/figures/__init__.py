"""Pure functions from a trace or a mesh to a scene (a plain dict), then SVG, table, words, page."""
