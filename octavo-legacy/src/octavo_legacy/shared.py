"""What several of these architectures share, and none of Octavo's own has."""

from dataclasses import dataclass

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared import layers
from octavo.models.shared.conversion import rows_moved
from octavo.models.shared.decoder import Attention
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Clipped(Hyperparams):
    """The greatest magnitude of values of q, k and v, 0 for any."""

    clip: float = 0.0


CLIP = Key("clip", "attention.clamp_kqv", default=0.0)


class ClippedAttention(Attention):
    """Attention whose q, k and v are cut off at a magnitude."""

    def project(self, g: GraphBuilder, hp: Clipped, b: Weights, h: Node) -> tuple[Node, Node, Node]:
        sizes = [heads * hp.head_dim for heads in (hp.n_head, hp.n_head_kv, hp.n_head_kv)]
        if self.joined:
            parts = g.columns(_clipped(g, layers.linear(g, b, "attn_qkv", h), hp.clip), *sizes)
        else:
            parts = [_clipped(g, layers.linear(g, b, f"attn_{n}", h), hp.clip) for n in "qkv"]
        q, k, v = map(g.split_heads, parts, (hp.n_head, hp.n_head_kv, hp.n_head_kv))
        return q, k, v


def _clipped(g: GraphBuilder, x: Node, most: float) -> Node:
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
