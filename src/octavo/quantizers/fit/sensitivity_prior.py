"""What an error in a weight costs where nothing was measured: a guess from where the weight stands."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.graph.names import split_layer

KINDS = {"attn_v": 2.0, "attn_output": 1.0, "ffn_down": 1.0}
"""By kind of weight, next to those that write to the residual stream; attn_v serves several heads at once."""
OTHERS = 0.5
ENDS = 4.0
"""More of it in the first and the last eighth of the layers, which llama.cpp's mixes give more bits too."""


def guessed_slopes(names: Iterable[str], layers: int) -> dict[str, float]:
    """The relative squared error of a model's output for a relative squared error of 1 in each weight.

    An error of the output matrix (of the embedding, where it is the output too) goes to the output whole. Each of the
    2 N products of N layers that add to the residual stream is taken to bring in an equal part of it.
    """
    names = list(names)
    last = "output.weight" if "output.weight" in names else "token_embd.weight"
    return {name: 1.0 if name == last else _share(name, layers) / (2 * layers) for name in names}


def _share(name: str, layers: int) -> float:
    layer, within = split_layer(name)
    if layer is None:
        return OTHERS
    share = next((share for kind, share in KINDS.items() if within.startswith(kind)), OTHERS)
    eighth = max(1, layers // 8)
    return share * (1.0 if eighth <= layer < layers - eighth else ENDS)
