"""Models of which some layers have attention, and the others a state of each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.graph.node import Node
from octavo.models.shared.hparams import Hyperparams


@dataclass(frozen=True, kw_only=True)
class Hybrid(Hyperparams):
    """attends is whether each layer has attention; the others have a state of `layer_state` numbers."""

    attends: tuple[bool, ...] = ()

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
