"""Searches for scales as schemes need them: how products are rounded, and which ways are tried."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.calibrate.methods.channel_scales import METHODS, best_of
from octavo.calibrate.methods.rounding import (
    Rounding,
    as_they_are,
    tensor_fp8,
    tensor_int8,
    tokens_fp8,
    tokens_int8,
)
from octavo.calibrate.methods.scale_search import Search
from octavo.huggingface.scheme_weight import nearest, values_of
from octavo.huggingface.schemes import CheckpointScheme

ROUNDINGS = {
    "int8_token": tokens_int8, "fp8_token": tokens_fp8, "int8_static": tensor_int8, "fp8_static": tensor_fp8,
}
"""How activations are rounded, by their format."""
WORTH = 0.5
"""Scales are taken only if they leave at most this share of the error of nearest codes, where only weights are rounded
and their errors are made up for afterwards: beside that they gain little, and they are found with few tokens."""


def roundings(scheme: CheckpointScheme) -> tuple[Rounding, Rounding]:
    """How a scheme rounds weights and activations."""
    return lambda w: values_of(scheme, nearest(scheme, w)), ROUNDINGS.get(scheme.activation, as_they_are)


def search_of(name: str, scheme: CheckpointScheme, ways: Sequence[str]) -> Search:
    """The way to choose scales by its name in METHODS, or for "auto" the best one for each pair.

    ways  in which weights are made afterwards
    """
    if name != "auto":
        return METHODS[name]
    tried = {each: way for each, way in METHODS.items() if scheme.static or each != "rptq"}
    by_gptq = not scheme.tokens and len(ways) > 1
    return best_of(tried, WORTH if by_gptq else 1.0)
