"""What a rank sends for one attention over sequences that are cut, and how FLOPs are shared.

Ring attention: Liu et al. 2023, https://arxiv.org/abs/2310.01889. Balanced chunks and the
all-gather: Llama 3, https://arxiv.org/abs/2407.21783, section 3.3.2. Ulysses: Jacobs et al. 2023,
https://arxiv.org/abs/2309.14509. The papers' bodies were not read; what is below is derived.

n = cp ranks, S tokens a sequence, B sequences, h features, K of N heads have keys, e bytes a
number. Bytes that a rank sends forward, for one layer:

    ring, zigzag, all-gather   V = 2 B (S/n) (h K/N) (n - 1) e        (1)  grows to 2 B S h K/N e
    Ulysses                    V = B (S/n) (2 h + 2 h K/N) (n - 1)/n e  (2)  falls as 1/n

Chunks of c tokens have squares and triangles, half a square each, of c x c scores (`sequence`):

    ring     c = S/n: rank r has r + 1/2 squares, the last one n - 1/2, the mean n/2      (3)
    zigzag   c = S/(2 n): every rank has 2 n - 1 squares and two triangles, 2 n squares   (4)

Ulysses over u ranks inside a ring of n (Fang and Zhao 2024, https://arxiv.org/abs/2405.07719): (2)
with u n ranks' tokens and u exchanging, and (1) with n - 1 messages of the same u n ranks' tokens,
since a rank of the ring has u times as many tokens of 1/u of the heads.

>>> from tpviz import GPT
>>> w = GPT(hidden=8, heads=4, seq=16, batch=1)
>>> ring_bytes(w, 2), ulysses_bytes(w, 2)
(512, 512)
>>> ring_bytes(w, 4) / ulysses_bytes(w, 4), imbalance("ring", 4), imbalance("zigzag", 4)
(2.0, 1.75, 1.0)
>>> round(imbalance("zigzag", 4, (12, 2, 2)), 3)
1.684
"""

from typing import TYPE_CHECKING

from .sequence import SequenceCut

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


def ring_bytes(w: "GPT", n: int) -> int:
    """Bytes that each of ``n`` ranks sends forward for one layer, by (1)."""
    return 2 * w.batch * w.seq // n * w.num_kv_heads * w.head_size * (n - 1) * w.itemsize


def ulysses_bytes(w: "GPT", n: int) -> int:
    """Bytes that each of ``n`` ranks sends forward for one layer, by (2)."""
    features = w.qkv_features + w.query_features
    return w.batch * w.seq // n * features * (n - 1) // n * w.itemsize


def imbalance(kind: str, n: int, documents: tuple[int, ...] = ()) -> float:
    """FLOPs of the busiest of ``n`` ranks over the mean of all, by (3) and (4), or where documents
    of these lengths are packed; 1 is even."""
    cut = SequenceCut(n, kind)
    work = cut.work(documents or (2 * n,))
    return max(work) * cut.ring / sum(work)
