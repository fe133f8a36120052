"""The workload: a GPT by its sizes, and the text it is trained on. No torch here.

The model is GPT-2's (Radford et al., 2019): learned positions, LayerNorm before each part, GELU.
Text is what Python itself ships (`pydoc_data.topics`), read as bytes, so every machine trains on
the same data offline.

>>> GPT().num_parameters
118528
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from .checks import divides, one_of, settle, whole_number

MOST = {
    "layers": 1024,
    "hidden": 10**6,
    "heads": 10**6,
    "seq": 10**9,
    "batch": 10**9,
    "mlp_ratio": 10**3,
    "vocab": 10**9,
}  # of each size; FLOPs and bytes of a step stay finite
DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2}  # bytes per element


@dataclass(frozen=True)
class GPT:
    """A decoder-only transformer and the batch of one training step.

    Parameters
    ----------
    layers, hidden, heads, vocab : sizes of the model; ``heads`` divides ``hidden``.
    seq, batch : tokens per sequence, sequences per step (over all ranks).
    tied : the output head uses the token embedding's matrix.
    mlp_ratio : width of the MLP over ``hidden``.
    dtype : "float32", "float64" or "bfloat16".
    seed : of the initial parameters and of the choice of text.

    Raises ``ValueError`` with the sizes that clash and the nearest that work.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    seq: int = 32
    batch: int = 4
    vocab: int = 256
    tied: bool = True
    mlp_ratio: int = 4
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self):
        for name, most in MOST.items():
            settle(self, name, whole_number, 1 + (name == "vocab"), most)
        settle(self, "seed", whole_number, 0)
        settle(self, "tied", one_of, (True, False))
        settle(self, "dtype", one_of, tuple(DTYPES))
        divides("hidden", self.hidden, "heads", self.heads)

    @property
    def short(self) -> str:
        """As its code would be written: the sizes of model and batch, and what else is not at its
        default."""
        words = [
            f"{f.name}={value!r}"
            for i, f in enumerate(fields(self))
            if (value := getattr(self, f.name)) != f.default or i < 5
        ]
        return f"GPT({', '.join(words)})"

    @property
    def words(self) -> str:
        """In short words, for titles."""
        return f"GPT of {self.layers} layer{'s' * (self.layers > 1)}, hidden size {self.hidden}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element of ``dtype``."""
        return DTYPES[self.dtype]

    def with_batch(self, batch: int) -> "GPT":
        """The same workload with another batch: made once, for costs ask often."""
        return _with_batch(self, batch)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of every parameter, in the order of use; weights are (out, in).

        The rows of ``qkv`` are grouped by head (q, k and v of head 0, then of head 1, ...), so that
        a contiguous slice of rows holds whole heads.
        """
        h, f = self.hidden, self.mlp_ratio * self.hidden
        shapes: dict[str, tuple[int, ...]] = {
            "embed.token.weight": (self.vocab, h),
            "embed.position.weight": (self.seq, h),
        }
        for i in range(self.layers):
            part = {
                "norm1.weight": (h,),
                "norm1.bias": (h,),
                "attention.qkv.weight": (3 * h, h),
                "attention.qkv.bias": (3 * h,),
                "attention.out.weight": (h, h),
                "attention.out.bias": (h,),
                "norm2.weight": (h,),
                "norm2.bias": (h,),
                "mlp.up.weight": (f, h),
                "mlp.up.bias": (f,),
                "mlp.down.weight": (h, f),
                "mlp.down.bias": (h,),
            }
            shapes |= {f"blocks.{i}.{name}": shape for name, shape in part.items()}
        shapes |= {"norm.weight": (h,), "norm.bias": (h,)}
        return shapes if self.tied else shapes | {"head.weight": (self.vocab, h)}

    @property
    def num_parameters(self) -> int:
        """V h + s h + L ((4 + 2r) h^2 + (9 + r) h) + 2h, and V h more if untied."""
        return sum(int(np.prod(shape)) for shape in self.parameter_shapes().values())

    @property
    def step_flops(self) -> int:
        """FLOPs of one forward and backward over the whole batch (derived; 2 per multiply-add).

        3 (forward, and twice that for backward) x tokens x [L ((8 + 4r) h^2 + 4 s h) + 2 h V]: the
        GEMMs alone, attention counted without its causal half, nothing recomputed (the "model
        FLOPs" of MFU).
        """
        h, per_layer = self.hidden, (8 + 4 * self.mlp_ratio) * self.hidden + 4 * self.seq
        return 3 * self.batch * self.seq * h * (self.layers * per_layer + 2 * self.vocab)

    def tokens(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets) of training step ``step``: int64 arrays (batch, seq), the same on every
        call.

        Windows of the text start at random places drawn from (seed, step); targets are the inputs
        shifted by one. With a vocabulary of 256 or more, a token is a byte. With a smaller one, the
        most frequent vocab - 1 bytes keep a token each, in order of frequency, and the last token
        stands for the rest.
        """
        step = whole_number("step", step, low=0)
        data = _corpus(self.vocab)
        if self.seq + 1 > len(data):
            raise ValueError(f"seq={self.seq} is longer than the text: at most {len(data) - 1}")
        rng = np.random.default_rng((self.seed, step))
        starts = rng.integers(0, len(data) - self.seq, size=self.batch)
        windows = data[starts[:, None] + np.arange(self.seq + 1)]
        return windows[:, :-1].copy(), windows[:, 1:].copy()


@lru_cache(maxsize=1024)
def _with_batch(workload: GPT, batch: int):
    return replace(workload, batch=batch)


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
