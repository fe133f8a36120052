"""Films: a scheme's block, operation by operation, as frames that the views draw."""
