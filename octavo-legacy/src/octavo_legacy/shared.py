"""What several of these architectures share, and none of Octavo's own has."""

from __future__ import annotations

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.remaking import rows_moved


def clipped(g: GraphBuilder, x: Node, most: float) -> Node:
    """x, each value of a magnitude of `most` at most; x itself where that is 0."""
    return g.clamp(x, -most, most) if most else x


def by_kind(rows: AnyArray, groups: int, size: int) -> list[AnyArray]:
    """Of rows [N, B], `groups` of the queries, the key and the value of as many heads of `size`: q, k and v."""
    parts = rows.reshape(groups, -1, size, rows.shape[1])
    kinds = parts[:, :-2], parts[:, -2], parts[:, -1]
    return [np.ascontiguousarray(kind).reshape(-1, rows.shape[1]) for kind in kinds]


def unjoined_heads(name: str, tensor: LazyTensor, hp: Hyperparams) -> LazyTensor:
    """q, k and v of all heads, one after the other, where a checkpoint has those of heads with one key together."""
    if not name.endswith(("attn_qkv.weight", "attn_qkv.bias")):
        return tensor
    return rows_moved(tensor, lambda rows: np.concatenate(by_kind(rows, hp.n_head_kv, hp.head_dim)))
