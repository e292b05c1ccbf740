"""Tensor parallelism: a graph divided among ranks, each of which has a part of every large weight and of the caches.

In: a graph of plain ops, and which rank of how many. Out: that rank's graph, with `all_reduce` and `all_gather` where
ranks exchange values. Begin with `partitioner`; `rules` has what each op lets through, `cuts` who gets what of an axis.
"""

from octavo.graph.shard.partitioner import SMALL, shard

__all__ = ["SMALL", "shard"]
