"""Fake tensors by recipe, in a fraction of the time that torch's own cache of them takes.

What an operator gives depends on the metadata of its arguments alone. Its first result for some
metadata is torch's; the next are made from that one's, if a tensor so made differs in nothing.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from .operations import flat

_VALUES = {
    *(type(None), bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
_NESTED, _SAME = {tuple, list}, "an argument"
_recipes: dict[tuple[Any, ...], Any] = {}  # of a call, by metadata; False: torch is asked each time


class _NoRecipe(Exception):
    """A result depends on more than metadata, or cannot be made from it."""


class QuickFakes(FakeTensorMode):
    """`FakeTensorMode` without symbolic sizes, that remembers what operators give."""

    def __init__(self):
        super().__init__()
        self.cache_enabled = False  # torch's

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # under this mode nothing is compiled, and each skip takes 3 µs

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        key = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        try:
            self._describe(args, key)
            for item in kwargs.items():
                self._describe(item, key)
        except _NoRecipe:
            return super().__torch_dispatch__(func, types, args, kwargs)
        recipe = _recipes.get(key := tuple(key))
        if recipe:
            return self._made(recipe, args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if recipe is None:
            usual = func.namespace == "aten" and torch.Tag.inplace_view not in func.tags
            _recipes[key] = usual and not flat([*kwargs.values()]) and self._learnt(args, result)
        return result

    def _describe(self, values: Sequence[Any], key: list[Any]):
        """Append to ``key`` what an operator may know of some arguments."""
        for a in values:
            kind = type(a)
            if kind is FakeTensor and a.constant is None and a.fake_mode is self:
                key += (kind, a.dtype, a.shape, a.stride(), a.storage_offset(), a.requires_grad)
                keys, storage = torch._C._dispatch_keys(a), a.untyped_storage()
                key += (a.fake_device, keys.raw_repr(), storage.nbytes())
            elif kind in _VALUES:
                key += (kind, a)
            elif kind in _NESTED:
                key += (kind, len(a))
                self._describe(a, key)
            else:
                raise _NoRecipe

    def _learnt(self, args: Sequence[Any], result: Any):
        """The recipe of a result, False where there is none."""
        holders: dict[int, int | None] = {}  # storage: the one argument on it, None of several
        for i, a in enumerate(args):
            for t in flat(a):
                storage = id(t.untyped_storage())
                holders[storage] = i if t is a and storage not in holders else None
        try:
            return self._recipe(args, result, holders)
        except _NoRecipe:
            return False

    def _recipe(self, args: Sequence[Any], result: Any, holders: dict[int, int | None]):
        if result is None or type(result) in _NESTED:
            return type(result), *(self._recipe(args, r, holders) for r in result or ())
        for i, a in enumerate(args):
            if a is result:
                return _SAME, i
        if type(result) is not FakeTensor:
            raise _NoRecipe
        storage, expected, found = result.untyped_storage(), [], []
        holder = holders.setdefault(id(storage), -1)
        if holder == -1:
            holders[id(storage)] = None  # its own, which no other result may have
        freed = not storage.nbytes() and result.numel()  # a view by recipe would fill it again
        if holder is None or freed:
            raise _NoRecipe
        place = result.fake_device, result.shape, result.stride(), result.storage_offset()
        looks = {name: value for name, value in vars(result).items() if name != "fake_mode"}
        recipe = FakeTensor, holder, result.dtype, *place, looks
        self._describe([result], expected)
        self._describe([self._made(recipe, args)], found)
        if expected != found:
            raise _NoRecipe
        return recipe

    def _made(self, recipe: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """A result by its recipe."""
        kind, *what = recipe
        if kind is _SAME:
            return args[what[0]]
        if kind is not FakeTensor:
            return kind(self._made(part, args) for part in what) if kind in _NESTED else None
        holder, dtype, device, shape, stride, offset, looks = what
        if holder < 0:
            meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            meta = torch.empty(0, dtype=dtype, device="meta")
            meta.set_(args[holder].untyped_storage(), offset, shape, stride)
        made = torch.Tensor._make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        vars(made).update(looks, fake_mode=self)
        return made
