"""A plan by its knobs, and its pictures; without widgets, so that a page has them too."""
