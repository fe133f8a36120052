"""Knobs: the fields of a strategy that people turn, and what several strategies have.

>>> from tpviz import Megatron
>>> Megatron(tp=0)
Traceback (most recent call last):
ValueError: tp=0 is too small: the least that works is 1
"""

from collections.abc import Callable
from dataclasses import MISSING, field, fields, replace
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import number, one_of, settle, some_of, whole_number

if TYPE_CHECKING:
    from tpviz.core.workload import GPT


def knob(
    default: Any,
    *,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
    own: Callable[..., Any] | None = None,
    where: Callable[[Any], bool] | None = None,
) -> Any:
    """A field of a strategy that people turn: default, one line of help, and bounds or choices.

    ints with ``low``/``high`` become sliders, ``choices`` become menus, bools check boxes. Where
    the default is a tuple, any number of ``choices`` may be chosen. own : function (name, value,
    choices) that checks values beside the choices, and gives them as plain ones. where : whether it
    has an effect, of an object with the other knobs' values; controls of others are not shown.
    """
    bounds = {"help": help, "low": low, "high": high, "choices": choices, "own": own}
    return field(default=default, metadata={**bounds, "where": where})


def knob_of(
    cls: type, name: str, default: Any = None, where: Callable[[Any], bool] | None = None
) -> Any:
    """The knob that another strategy has, perhaps with another default, or an effect elsewhere."""
    same = cls.__dataclass_fields__[name]  # pyright: ignore[reportAttributeAccessIssue]
    metadata = {**same.metadata, "where": where or same.metadata["where"]}
    return field(default=same.default if default is None else default, metadata=metadata)


def accumulation_knob() -> Any:
    """The knob ``accumulation``: a step's microbatches, run one after another on each rank."""
    return knob(1, help="microbatches of which gradients add up", low=1, high=1024)


RECOMPUTE = ("none", "selective", "full")
MICRO = 8
"""Rows of the largest microbatch that `search` tries, where a step has several."""


def microbatches(rows: int) -> list[int]:
    """The numbers of microbatches that give 1 to `MICRO` of a rank's ``rows`` each; and 1.

    >>> microbatches(12)
    [1, 2, 3, 4, 6, 12]
    """
    return sorted({1, *(rows // n for n in range(min(MICRO, rows), 0, -1) if rows % n == 0)})


def recompute_knob() -> Any:
    """The knob ``recompute``: backward repeats attention's core ("selective"), or whole blocks.

    Korthikanti et al. 2022 (arXiv 2205.05198), sections 4.1 and 5. "selective" drops what lies
    between the features of queries, keys and values and attention's output. Our attention is fused
    and never keeps scores, so this frees little: log-sum-exps, and the copies that rotary
    positions and shared keys need; it computes attention's core again all the same. "full" keeps a
    block's input; its forward runs again, with all its collectives.
    """
    return knob(
        "none",
        help="what backward recomputes: attention's core (selective), or every block (full)",
        choices=RECOMPUTE,
    )


def offload_knob() -> Any:
    """The knob ``offload``: so many blocks, the first ones, keep on the host what backward needs of
    them (`tpviz.schemes.gpt.offload`); the last block of all keeps its own on the device."""
    return knob(
        0, help="blocks, from the first, whose activations wait on the host", low=0, high=1024
    )


def check_offload(strategy: Any, workload: "GPT") -> None:
    """Raise ``ValueError`` unless a block is left that keeps its own activations, and the bytes of
    the others are known: those of experts' rows are so to a few per cent only."""
    count, blocks = strategy.offload, workload.layers
    if count and count >= blocks:
        works = f"offload={blocks - 1} or less" if blocks > 1 else "offload=0"
        raise ValueError(
            f"offload={count} of {blocks} blocks leaves none on the device, where the last one's "
            f"backward follows its forward: use {works}"
        )
    if count and workload.experts and strategy.recompute != "full":
        raise ValueError(
            f"offload={count} with experts={workload.experts} is possible where a block keeps its "
            "input alone: use recompute='full', or offload=0"
        )


def settle_between(outer: Any, name: str, default: Any, to_inner: bool = False) -> None:
    """A knob that a factor and its ``inner`` both have is one of the two's; from the other it comes
    there. Raises ``ValueError`` where both have set it, unlike, or ``inner`` has no such knob."""
    own, inner = getattr(outer, name), getattr(outer.inner, name)
    if default not in (own, inner) and own != inner:
        raise ValueError(
            f"{name}={own!r} around {name}={inner!r} is not possible: give one of the two "
            "strategies the other's, or none"
        )
    if own != default and name not in outer.inner.__dataclass_fields__:
        raise ValueError(f"{outer.inner.short} has no knob {name!r}: use {name}={default!r}")
    value = inner if own == default else own
    mine, its = (default, value) if to_inner else (value, default)
    object.__setattr__(outer, name, mine)
    if inner != its:
        object.__setattr__(outer, "inner", replace(outer.inner, **{name: its}))


def settle_knobs(owner: Any) -> None:
    """Check the fields of a frozen dataclass that `knob` made, and keep them as plain values.

    Raises ``ValueError`` for one that is not of its kind, or out of its bounds or choices.
    """
    for f in fields(owner):
        bounds = f.metadata
        if not bounds or f.default is MISSING:
            continue
        if bounds["choices"] is not None:
            check = bounds["own"] or (some_of if isinstance(f.default, tuple) else one_of)
            settle(owner, f.name, check, bounds["choices"])
        elif isinstance(f.default, bool):
            settle(owner, f.name, one_of, (True, False))
        elif isinstance(f.default, (int, float)):
            kind = whole_number if isinstance(f.default, int) else number
            settle(owner, f.name, kind, bounds["low"], bounds["high"])
