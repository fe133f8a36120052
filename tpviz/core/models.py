"""Models that people train, each as a `tpviz.GPT`: published sizes, one sequence a step, bfloat16.

Any field of the workload may be given besides: ``llama2("70B", batch=1024, seq=8192)``. What a GPT
of ours has not is said of each. For time, memory and bytes the two stand-ins that are used, rotary
positions for ALiBi and GELU for squared ReLU, are as large as what they stand for. A vocabulary
that does not split over the ranks is to be padded, as frameworks do: ``gpt3(vocab=51200)``. Of
mixtures of experts ``ffn`` is the width of one; their losses that balance loads are left out.

>>> llama2("7B").num_parameters
6738415616
>>> llama3("8B", layers=2, batch=4).short
"GPT(layers=2, hidden=4096, heads=32, seq=8192, batch=4, vocab=128256, tied=False, \
dtype='bfloat16', ffn=14336, kv_heads=8, gated=True, norm='rms', rotary=True, bias=False)"
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checks import one_of
from .workload import GPT

_FACTS = json.loads(Path(__file__).with_suffix(".json").read_text())
COLUMNS = tuple(_FACTS["columns"])
"""Of `SIZES`. Where they are not said, ``ffn`` is 4 ``hidden`` and every head has its own key."""
SIZES: dict[str, dict[str, tuple[int | None, ...]]] = {
    family: {name: tuple(sizes) for name, sizes in table.items()}
    for family, table in _FACTS["sizes"].items()
}
"""{family: {size: `COLUMNS`}} of `models.json`; the presets name the sources."""
_LLAMA = {"tied": False, "gated": True, "norm": "rms", "rotary": True, "bias": False}
_BIASED = _LLAMA | {"router": "sigmoid", "bias_balance": 0.001}


def gpt3(size: str = "175B", **changes: Any) -> GPT:
    """GPT-3 (Brown et al. 2020, arXiv 2005.14165, table 2.1).

    13B has 40 heads of 128, so 5120 features (the table says 5140); 1.3B has 16 heads (the table's
    24 do not divide 2048). Not modelled: sparse attention in every second layer.
    """
    return _gpt("gpt3", size, changes, seq=2048, vocab=50257)


def llama(size: str = "65B", **changes: Any) -> GPT:
    """Llama 1 (Touvron et al. 2023, arXiv 2302.13971, table 2; MLP widths as released)."""
    return _gpt("llama", size, changes, seq=2048, vocab=32000, **_LLAMA)


def llama2(size: str = "70B", **changes: Any) -> GPT:
    """Llama 2 (Touvron et al. 2023, arXiv 2307.09288; MLP widths of the released weights, for 34B
    Code Llama's, Roziere et al. 2023, arXiv 2308.12950)."""
    return _gpt("llama2", size, changes, seq=4096, vocab=32000, **_LLAMA)


def llama3(size: str = "8B", **changes: Any) -> GPT:
    """Llama 3 and 3.1 (Grattafiori et al. 2024, arXiv 2407.21783, table 3); 1B and 3B are Llama
    3.2 (configurations of the released weights), whose head has the embedding's matrix.

    Rotary positions have our base (10,000, not 500,000), which changes no cost.
    """
    more = _LLAMA | {"tied": size in ("1B", "3B")}
    return _gpt("llama3", size, changes, seq=8192, vocab=128256, **more)


def mistral(size: str = "7B", **changes: Any) -> GPT:
    """Mistral 7B (Jiang et al. 2023, arXiv 2310.06825, table 1) and Mistral Large 2 (123B;
    configuration of the released weights).

    Without the sliding window of 7B, 4096 tokens: attention is over the whole sequence, by default
    4096.
    """
    vocab = 32768 if size == "123B" else 32000
    return _gpt("mistral", size, changes, seq=4096, vocab=vocab, **_LLAMA)


def qwen(size: str = "7B", **changes: Any) -> GPT:
    """Qwen 2.5 (Yang et al. 2024, arXiv 2412.15115, table 1; MLP widths and padded vocabularies of
    the released weights). Without the biases of queries, keys and values, its only ones."""
    small = size in ("0.5B", "1.5B", "3B")
    more = _LLAMA | {"tied": small, "vocab": 151936 if small else 152064}
    return _gpt("qwen", size, changes, seq=4096, **more)


def qwen3(size: str = "8B", **changes: Any) -> GPT:
    """Qwen 3 (Yang et al. 2025, arXiv 2505.09388, tables 1 and 2; widths and padded vocabulary of
    the released weights); the last two are mixtures of experts. Without the norms of queries and
    keys."""
    more = _LLAMA | {"tied": size in ("0.6B", "1.7B", "4B")}
    return _gpt("qwen3", size, changes, seq=4096, vocab=151936, **more)


def gpt_oss(size: str = "20B", **changes: Any) -> GPT:
    """gpt-oss (OpenAI 2025, arXiv 2508.10925, section 2, and configurations of the released
    weights), in 16 bits.

    Without the biases of router and experts, the learned denominators of attention (sinks), and the
    window of 128 tokens of every second block: attention is over the whole sequence, whose scores
    thus count twice as much. SwiGLU stands for the gate's bounded form.
    """
    return _gpt("gpt_oss", size, changes, seq=4096, vocab=201088, **_LLAMA | {"bias": True})


def mpt(size: str = "7B", **changes: Any) -> GPT:
    """MPT (MosaicML 2023; configurations of llm-foundry, MIT-licensed code: no biases, vocabulary
    padded to 50368). Rotary positions stand for ALiBi."""
    return _gpt("mpt", size, changes, seq=2048, vocab=50368, rotary=True, bias=False)


def bloom(size: str = "176B", **changes: Any) -> GPT:
    """BLOOM (BigScience 2022, arXiv 2211.05100, table 3). Rotary positions stand for ALiBi; the
    LayerNorm after the embedding is left out."""
    return _gpt("bloom", size, changes, seq=2048, vocab=250880, rotary=True)


def nemotron4(size: str = "15B", **changes: Any) -> GPT:
    """Nemotron-4 15B (Parmar et al. 2024, arXiv 2402.16819) and 340B (NVIDIA 2024, arXiv
    2406.11704, table 1). GELU stands for squared ReLU. The published LayerNorm has a bias; this one
    has none, like all layers of a `GPT` without biases."""
    more = {"tied": False, "rotary": True, "bias": False}
    return _gpt("nemotron4", size, changes, seq=4096, vocab=256000, **more)


def mixtral(size: str = "8x7B", **changes: Any) -> GPT:
    """Mixtral 8x7B (Jiang et al. 2024, arXiv 2401.04088, table 1) and 8x22B (Mistral AI 2024,
    configuration of the released weights, first version). The softmax is over all experts, not the
    two chosen: the same weights, as they are scaled to add up to 1."""
    return _gpt("mixtral", size, changes, seq=4096, vocab=32000, **_LLAMA)


def dbrx(size: str = "132B", **changes: Any) -> GPT:
    """DBRX (Databricks 2024, configuration of the released weights): LayerNorm without biases.
    Queries, keys and values are not clipped."""
    return _gpt("dbrx", size, changes, seq=4096, vocab=100352, **_LLAMA | {"norm": "layer"})


def grok1(size: str = "314B", **changes: Any) -> GPT:
    """Grok-1 (xAI 2024, sizes in ``run.py`` of the released code). SiLU stands for the gate's GELU.
    Without the norms behind attention and MLP, and the bound of attention's scores."""
    return _gpt("grok1", size, changes, seq=8192, vocab=131072, **_LLAMA | {"tied": True})


def olmoe(size: str = "7B", **changes: Any) -> GPT:
    """OLMoE 1B-7B (Muennighoff et al. 2024, arXiv 2409.02060): 7 billion parameters, of which a
    token meets 1. Without the norms of queries and keys; the weights of the chosen experts are
    scaled to add up to 1, in the released model they are not."""
    return _gpt("olmoe", size, changes, seq=4096, vocab=50304, **_LLAMA)


def llama4(size: str = "109B", **changes: Any) -> GPT:
    """Llama 4 Scout (109B) and Maverick (400B): their text models (Meta 2025; configurations of the
    released weights, as Hugging Face's ``configuration_llama4.py`` has Scout's, and public scripts
    for Megatron-LM Maverick's, whose ``--moe-layer-freq`` is ([0,1]*24)). A token goes to one
    expert and a shared one; blocks without experts have a dense MLP of twice the width.

    Without the norms of queries and keys, the images, and chunks of 8192 tokens: attention is over
    the whole sequence in every block, and positions are rotary in all.
    """
    return _gpt("llama4", size, changes, seq=8192, vocab=202048, router="sigmoid", **_LLAMA)


def deepseek_v2(size: str = "236B", **changes: Any) -> GPT:
    """DeepSeek-V2 (DeepSeek-AI 2024, arXiv 2405.04434, section 3.1.2; widths, vocabulary and the
    weights' scale of the released configurations), and V2-Lite (16B; the same, appendix B).

    Groups of experts are chosen by their best two scores, as V3 does, where V2 takes the best one.
    """
    scale = {"236B": 16.0}.get(size, 1.0)
    more = _LLAMA | {"norm_top_k": False, "routed_scale": scale}
    return _gpt("deepseek_v2", size, changes, seq=4096, vocab=102400, **more)


def deepseek_v3(size: str = "671B", **changes: Any) -> GPT:
    """DeepSeek-V3 (DeepSeek-AI 2024, arXiv 2412.19437, section 4.2; vocabulary and the weights'
    scale of the released configuration).

    Without multi-token prediction, a block and a head more in training, 11.5 billion parameters;
    without the balance loss of sequences, and in 16 bits, not 8.
    """
    return _gpt("deepseek_v3", size, changes, seq=4096, vocab=129280, **_BIASED, routed_scale=2.5)


def kimi_k2(size: str = "1T", **changes: Any) -> GPT:
    """Kimi K2 (Moonshot AI 2025, arXiv 2507.20534, table 2; widths, vocabulary and the weights'
    scale of the released configuration, the last recalled), which is DeepSeek-V3's network without
    groups of experts. The rate of the biases is V3's, as its own is not known to us."""
    return _gpt("kimi_k2", size, changes, seq=4096, vocab=163840, **_BIASED, routed_scale=2.827)


def presets() -> dict[str, Callable[..., GPT]]:
    """{family: function} of all presets, for menus; each works without arguments."""
    made = (gpt3, llama, llama2, llama3, mistral, qwen, qwen3, gpt_oss, mpt, bloom, nemotron4)
    made += (mixtral, dbrx, grok1, olmoe, llama4, deepseek_v2, deepseek_v3, kimi_k2)
    return {preset.__name__: preset for preset in made}


def names() -> list[str]:
    """ "llama2 70B" and so on: every size of every family."""
    return [f"{family} {size}" for family in presets() for size in SIZES[family]]


def spelled(name: str) -> str | None:
    """The name as in `names`, whatever its case and hyphens; None if it is unknown.

    >>> spelled("llama2-70b"), spelled("gpt-oss-20b"), spelled("llama9 70B")
    ('llama2 70B', 'gpt_oss 20B', None)
    """
    plain = lambda name: name.lower().replace("-", " ").replace("_", " ").split()
    return next((one for one in names() if plain(one) == plain(name)), None)


def _gpt(family: str, size: str, changes: dict[str, Any], **fields: Any) -> GPT:
    """Raises ``ValueError`` for a size that the family has not, ``TypeError`` for a field that a
    `GPT` has not."""
    table = SIZES[family]
    sizes = dict(zip(COLUMNS, table[one_of("size", size, tuple(table))]))
    given: dict[str, Any] = {"batch": 1, "dtype": "bfloat16", **fields, **sizes, **changes}
    return GPT(**given)
