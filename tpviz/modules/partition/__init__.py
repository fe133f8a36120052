"""The automatic partitioner: a module is traced, cut into shards, and these into stages."""

from .division import Partition, partition_of
from .graph import ModelGraph
from .sharding import Shard, shard
from .tracing import trace

__all__ = ["ModelGraph", "Partition", "Shard", "partition_of", "shard", "trace"]
