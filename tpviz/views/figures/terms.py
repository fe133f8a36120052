"""Abbreviations that pictures use, each written out: a view says those that it shows.

>>> explained({"title": "1f1b on pp 4", "captions": []})
['1f1b: after its first forwards each stage runs one forward, one backward.', \
'pp: pipeline parallelism.']
"""

import json
import re
from typing import Any

TERMS = {
    "1f1b": "after its first forwards each stage runs one forward, one backward",
    "zb_h1": "zero bubble: gradients of the weights fill idle time",
    "tp": "tensor parallelism",
    "dp": "data parallelism",
    "pp": "pipeline parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "GEMM": "a product of matrices",
    "T3-MCA": "T3 whose memory serves the GEMM before messages",
    "tracker": "counts the updates of each tile, and sends it after the last",
    "QKV": "queries, keys and values",
    "LN": "LayerNorm",
    "MLP": "the layers up and down, with an activation between",
    "busbw": "bytes that a ring would send, over the time",
    "algbw": "bytes of the payload, over the time",
    "FLOP": "a floating-point operation; kFLOP a thousand, MFLOP a million",
    "kB": "1,000 bytes",
}
"""{abbreviation: what it means}."""
_WORD = re.compile(
    rf"(?<![A-Za-z0-9_])[kMGTP]?({'|'.join(map(re.escape, TERMS))})(?:s|\d)?(?![A-Za-z0-9_-])"
)


def shown(scene: dict[str, Any]) -> str:
    """All that the scene of a film says, and its drawings' words."""
    return re.sub(r"<[^>]*>", " ", json.dumps(scene, ensure_ascii=False))


def explained(scene: dict[str, Any]) -> list[str]:
    """A line for each abbreviation that a scene shows, in the order of `TERMS`."""
    there = {found[1] for found in _WORD.finditer(shown(scene))}
    return [f"{term}: {means}." for term, means in TERMS.items() if term in there]
