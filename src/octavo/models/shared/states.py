"""Models of which some layers have attention, and the others a state of each sequence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.spec import F32, AnyArray
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.shared.hparams import RMS_EPS, HyperparamReader, Hyperparams, vocabulary_size
from octavo.models.shared.remaking import rows_moved
from octavo.models.shared.rope import Rope
from octavo.models.shared.weights import Expected

NO_ATTENTION = ("attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_count")
"""Fields that are 0 or missing in models whose layers have neither attention nor a feed-forward."""
CONTEXT = 1 << 20
"""What a file of such a model says where config.json names no length, as converters do."""


@dataclass(frozen=True, kw_only=True)
class Hybrid(Hyperparams):
    """attends is whether each layer has attention; the others have a state of `layer_state` numbers."""

    attends: tuple[bool, ...]

    @property
    def layer_state(self) -> int:
        raise NotImplementedError

    def kv_heads(self, layer: int) -> tuple[int, int]:
        return self.n_head_kv * self.attends[layer], self.head_dim

    @property
    def state_values(self) -> int:
        return self.attends.count(False) * self.layer_state


def without_attention(r: HyperparamReader, *, ff: int = 0, eps: str = RMS_EPS) -> Hyperparams:
    """Those of a model of NO_ATTENTION. Raises ModelError or GGUFError naming the key that is wrong.

    ff   the width of what its layers have in place of a feed-forward
    eps  the field that says what norms add
    """
    for field in NO_ATTENTION:
        r.whole(field, 0, ff if field == "feed_forward_length" else 0)
    return Hyperparams(
        arch=r.arch, n_layer=r.size("block_count"), n_embd=r.size("embedding_length"), n_ff=ff, n_head=0, n_head_kv=0,
        head_dim=0, n_vocab=vocabulary_size(r), n_ctx_train=r.size("context_length", CONTEXT),
        eps=r.real(eps, 1e-5, high=1.0), rope=Rope(dims=0, base=10000.0, interleaved=False),
    )


def taps_of(weight: Node) -> F32:
    """The taps [K, C] of a convolution whose weight is [C, K]."""
    taps: F32 = dequantize(weight.tensor).T
    return taps


def reordered(tensor: LazyTensor, order: AnyArray) -> LazyTensor:
    """A tensor with these of its rows, or of a vector's values, in this order."""
    return rows_moved(tensor, lambda rows: rows[order], len(order))


def without_middle(tensor: LazyTensor) -> LazyTensor:
    """The weight of a convolution, [C, 1, K] in a checkpoint, as [C, K] in F32."""
    plain, shape = by_name("F32"), (tensor.shape[0], tensor.shape[-1])
    return LazyTensor(
        tensor.name, plain, shape,
        lambda: quantize_reference(dequantize(tensor.load()).reshape(shape), plain, tensor.name),
    )


def in_shape(
    tensor: LazyTensor, shape: tuple[int, ...], change: Callable[[F32], F32] = lambda values: values
) -> LazyTensor:
    """What a function makes of a tensor's values, in F32, in a shape that has other axes of 1; the tensor itself where
    other axes differ too."""
    if not Expected(shape, ones=True).fits(tensor.shape):
        return tensor
    plain = by_name("F32")
    return LazyTensor(
        tensor.name, plain, shape,
        lambda: quantize_reference(change(dequantize(tensor.load())).reshape(shape), plain, tensor.name),
    )


def of_values(tensor: LazyTensor, change: Callable[[F32], F32]) -> LazyTensor:
    """What a function makes of a tensor's values, in F32."""
    plain = by_name("F32")
    return LazyTensor(
        tensor.name, plain, tensor.shape,
        lambda: quantize_reference(change(dequantize(tensor.load())), plain, tensor.name),
    )


def flat(tensor: LazyTensor) -> LazyTensor:
    """A tensor as a vector, in F32."""
    plain, shape = by_name("F32"), (math.prod(tensor.shape),)
    return LazyTensor(
        tensor.name, plain, shape,
        lambda: quantize_reference(dequantize(tensor.load()).reshape(shape), plain, tensor.name),
    )
