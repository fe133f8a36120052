"""The virtual clock: replays captured programs on a cluster. NumPy alone, no torch."""
