"""Which published rows coefficients may be fitted on, and which only test them.

Rows are split by whole groups (source, model, n_gpus): layouts that are ranked against each other
are all fitted on, or all tested on. The rule was fixed before any coefficient was fitted:

* of a source with five groups or more, 40 % of the groups are to fit on: those whose SHA-256 of
  "source|model|n_gpus" is smallest;
* a source with fewer groups is tested on whole, so that nothing of SC21, of NeMo / Bridge or of
  torchtitan is fitted on;
* three exceptions, in `FIXED` and `TEST_ONLY`: the many layouts of one 182B model on 384 GPUs are
  tested on, as they are the ranking test; of the only runs on B200 the four-layer Llama 3 405B is
  to fit on (two steps, and peaks of memory) and the rest tests; two figures that repeat runs of the
  Ultra-Scale grid without their batch are tested on.

Rows of memory are split by the same rule; a case of Megatron-LM's CI is a group of its own. Peaks
of GEMMs and bandwidths of collectives are no training steps: all of them may be fitted on.

>>> sorted(split([("paper", f"model {i}", 8) for i in range(5)]).values())
['fit', 'fit', 'test', 'test', 'test']
>>> split([("paper", "model 0", 8)])
{('paper', 'model 0', 8): 'test'}
"""

from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256

Group = tuple[str, str, int]
"""(source, model, number of GPUs)."""

SHARE, FEW = 0.4, 5
FIXED = {
    ("bigscience_a100_384", "gpt-182B"): "test",
    ("simumax_b200_real", "llama3-405b-4layers"): "fit",
}
TEST_ONLY = ("ultrascale_playbook_tp", "ultrascale_playbook_dp")


def split(groups: Iterable[Group]) -> dict[Group, str]:
    """{group: "fit" or "test"} of all groups of the data, by the rule above."""
    by_source: dict[str, set[Group]] = defaultdict(set)
    for group in groups:
        by_source[group[0]].add(group)
    parts = {}
    for source, its in sorted(by_source.items()):
        fixed = {group: FIXED[group[:2]] for group in its if group[:2] in FIXED}
        free = sorted(its - set(fixed), key=lambda group: sha256(_key(group)).hexdigest())
        few = len(its) < FEW or source in TEST_ONLY
        count = 0 if few else round(SHARE * len(its))
        parts |= fixed | {group: "fit" if i < count else "test" for i, group in enumerate(free)}
    return parts


def digest(parts: dict[Group, str]) -> str:
    """The first 12 hex digits of the SHA-256 of a split: it changes if any group moves."""
    lines = sorted(_key(group) + part.encode() for group, part in parts.items())
    return sha256(b"\n".join(lines)).hexdigest()[:12]


def _key(group: Group):
    return "|".join(map(str, group)).encode()
