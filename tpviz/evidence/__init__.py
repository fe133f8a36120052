"""Labs: one function for each experiment of a notebook, which returns its numbers and chart."""
