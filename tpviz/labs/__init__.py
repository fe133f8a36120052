"""Labs: one function for each experiment of a notebook, which gives its numbers and its chart."""
