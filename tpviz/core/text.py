"""The text that models are trained on: Python's own help topics, the same on every machine."""

from functools import lru_cache

import numpy as np


def windows(
    vocab: int, seq: int, batch: int, seed: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets), as of `tpviz.GPT.tokens`. seed : of the places where windows start."""
    data = _corpus(vocab)
    if seq + 1 > len(data):
        raise ValueError(f"seq={seq} is longer than the text: at most {len(data) - 1}")
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(data) - seq, size=batch)
    windows = data[starts[:, None] + np.arange(seq + 1)]
    return windows[:, :-1].copy(), windows[:, 1:].copy()


@lru_cache(maxsize=4)
def _corpus(vocab: int):
    """The text of Python's own help topics, as int64 tokens below ``vocab``."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    data = np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int64)
    if vocab >= 256:
        return data
    by_frequency = np.argsort(-np.bincount(data, minlength=256), kind="stable")
    token_of = np.empty(256, dtype=np.int64)
    token_of[by_frequency] = np.minimum(np.arange(256), vocab - 1)
    return token_of[data]
