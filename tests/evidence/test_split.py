"""The split: by whole groups, by a rule that anybody can repeat, and frozen."""

from collections import defaultdict
from hashlib import sha256

from tpviz.evidence.published.rows import FILES, group_of, table
from tpviz.evidence.published.split import FEW, FIXED, TEST_ONLY, digest, split

KINDS = FILES[:3]
LATER = (
    "nemo_bridge_gptoss",
    "nemo_bridge_qwen3",
    "nemo_2407_fp8",
    "dgxc_grok1",
    "dgxc_nemotron4_1f6d9f4",
    "primus_amd",
    "maxtext_tpu_tiering",
)


def shipped():
    """{group: the parts its rows have}."""
    found = defaultdict(set)
    for kind in KINDS:
        for row in table(kind):
            found[group_of(row)].add(row["part"])
    return found


def test_the_split_has_not_moved():
    """Whatever was fitted, was fitted on these rows; if this fails, no test row is one any more.
    Sources of 2026 came later, with groups of their own, and moved none."""
    parts = split(shipped())
    assert digest(parts) == "a851d40a1544"
    first = {g: part for g, part in parts.items() if not g[0].startswith(LATER)}
    assert digest(first) == "5c0d5df1ded5"


def test_the_rows_shipped_have_the_part_that_the_rule_gives():
    parts = split(shipped())
    assert {group: {part} for group, part in parts.items()} == shipped()


def test_rule_by_hand():
    groups = [("paper", f"m{i}", 8 * i) for i in range(10)]
    order = sorted(groups, key=lambda g: sha256("|".join(map(str, g)).encode()).hexdigest())
    parts = split(groups)
    assert [g for g in order if parts[g] == "fit"] == order[:4]  # 40 % of 10
    assert split(groups[: FEW - 1]) == dict.fromkeys(groups[: FEW - 1], "test")
    assert split(reversed(groups)) == parts


def test_exceptions_are_as_said():
    parts = split(shipped())
    for group, part in parts.items():
        assert part == FIXED.get(group[:2], part)
        assert part == "test" or group[0] not in TEST_ONLY
    assert not any(part == "fit" for g, part in parts.items() if g[0] == "megatron_sc21_table1")


def test_the_hash_sees_every_move():
    parts = split(shipped())
    seen = {digest(parts)}
    for group in [*parts][:20]:
        seen.add(digest(parts | {group: "fit" if parts[group] == "test" else "test"}))
    assert len(seen) == 21
