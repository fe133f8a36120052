"""The partition explorer: the stages of a traced model, and the tensors that cross the cuts.

>>> plan = tv.parallelize(model, tv.Merak(pp=4), {"input_ids": ids})      # doctest: +SKIP
>>> view = PartitionView(plan.report.partition)                           # doctest: +SKIP
"""

import ipywidgets

from tpviz.modules.partition import Partition, partition_of, shard
from tpviz.modules.partition.division import BALANCES
from tpviz.views.figures import partition as figure

from .base import Film, Framed, named
from .knobs import WRAPPED, control


class PartitionView(Framed):
    """A user's model in stages: its shards in order, their balance, and what stages send.
    Columns are stages, rows the shards between which the traced graph may be cut, with the paths
    of the original modules. Knobs cut the same graph again without tracing.

    Parameters
    ----------
    partition : `Partition`, as ``tv.parallelize(model, tv.Merak(...), ...).report.partition`` of a
        call outside of ranks, or as `tpviz.modules.partition.partition_of` gives it.
    autoplay : start playing (never where the reader prefers reduced motion).

    ``partition`` is the one shown, ``step`` the selected stage, from 0, ``error`` says why the
    current knobs cannot be shown, or is "". Raises ValueError on what is no Partition, above 16
    stages or 160 shards; TypeError on an argument that does not exist.
    """

    picture: "PartitionSteps"  # pyright: ignore[reportIncompatibleVariableOverride]

    @named()
    def __init__(self, partition: Partition, *, autoplay: bool = False):
        if not isinstance(partition, Partition):
            raise ValueError(
                "PartitionView shows what tv.parallelize(model, tv.Merak(pp=2), "
                "inputs).report.partition is, outside of ranks, not "
                f"{partition!r}"
            )
        self.partition = self._given = partition
        self._pieces = {False: partition.shards, True: shard(partition.graph, "finest")}
        picture = PartitionSteps(autoplay)
        picture.show(partition)
        count, most = len(partition.ranges), max(map(len, self._pieces.values()))
        most, rule = max(min(most, figure.MAX_STAGES), 2), partition.balance
        even = "the quantity to balance over the stages"
        finer = "cut wherever one tensor crosses, with parameters between"
        boxes = [
            control("stages", count, "of the pipeline", 1, most),
            control("even by", rule, even, choices=[*BALANCES, *{rule} - {*BALANCES}]),
            control("finer cuts", False, finer),
        ]
        super().__init__(ipywidgets.Box(boxes, layout=WRAPPED), picture)
        for box in boxes:
            self.hear(box.description, box)  # pyright: ignore[reportAttributeAccessIssue]

    def _read(self):
        partition = self._cut(*(box.value for box in self.controls.values()))
        figure.check(len(partition.ranges), len(partition.shards))
        self.partition = partition
        return (partition,)

    def _cut(self, stages: int, balance: str, finer: bool):
        if balance not in BALANCES:  # seconds of the pieces, which only that partition knew
            if (stages, finer) != (len(self._given.ranges), False):
                raise ValueError(
                    f"even by {balance}: known for the {len(self._given.ranges)} "
                    f"stages given alone; use {', '.join(BALANCES)}"
                )
            return self._given
        here, finest = (len(self._pieces[cuts]) for cuts in (finer, True))
        if stages > here:
            more = f", or finer cuts, which give {finest}" if finest > here else ""
            raise ValueError(
                f"{stages} stages are too many for {here} shards: use at most {here} stages{more}"
            )
        return partition_of(self._given.graph, stages, self._pieces[finer], balance)


class PartitionSteps(Film):
    """The picture of `PartitionView`: `show` gives it a `Partition`; ``step`` is the stage."""

    kind, _figure = "partition", Partition
    _scene_of = staticmethod(lambda partition: figure.partition_scene(partition.scene()))

    def _words(self):
        p = self.subject
        return (
            f"{p.graph.model} in {len(p.ranges)} stages of {len(p.shards)} shards, even by "
            f"{p.balance}, {self.scene['captions'][self.step]}"
        )
