"""Which numbers of a program with a fault are wrong."""


def wrong(errors):
    """Names of those off by more than rounding."""
    return [name for name, error in errors.items() if error > 1e-10]
