"""Models of which some layers have attention, and the others a state of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.spec import F32, AnyArray
from octavo.graph.node import Node
from octavo.io.gguf import LazyTensor
from octavo.models.hparams import Hyperparams
from octavo.models.remaking import rows_moved


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
    )  # fmt: skip


def of_values(tensor: LazyTensor, change: Callable[[F32], F32]) -> LazyTensor:
    """What a function makes of a tensor's values, in F32."""
    plain = by_name("F32")
    return LazyTensor(
        tensor.name, plain, tensor.shape,
        lambda: quantize_reference(change(dequantize(tensor.load())), plain, tensor.name),
    )  # fmt: skip
