"""AutoRound's modules of floating-point numbers, which `data_type` and `bits` tell.

    mx_fp, 4 bits   weight_packed U8 [N, K / 2] of E2M1, weight_scale U8 [N, K / 32], exponents
    mx_fp, 8 bits   weight F8_E4M3 [N, K], weight_scale U8 [N, K / 32], exponents
    mx_int, 4 bits  weight_packed U8 [N, K / 2], signed quarters, weight_scale U8 [N, K / 32], exponents
    nv_fp, 4 bits   weight_packed U8 [N, K / 2] of E2M1, weight_scale F8_E4M3 [N, K / 16], weight_global_scale [1], by
                    which it is divided
    fp, 8 bits      weight F8_E4M3 [N, K], weight_scale [N] or [1]; for blocks of 128 x 128 weight_scale_inv
                    [N / 128, K / 128]; input_scale [1] where activations are static

Rounding may be named behind the type (mx_fp_rceil, nv_fp4_with_static_gs): it says how codes were found.
https://github.com/intel/auto-round, auto_round/export/export_to_autoround
"""

from __future__ import annotations

import re

import numpy as np

from octavo.formats import Planes
from octavo.huggingface.layouts import float4, float8
from octavo.huggingface.layouts.bits import codes_of
from octavo.huggingface.layouts.module import HALVES, Kind, Module, Part
from octavo.huggingface.layouts.quant_settings import QuantSettings, brief
from octavo.io.gguf import LazyTensor

CODES, SCALE, SQUARE_SCALE, GLOBAL = "weight_packed", "weight_scale", "weight_scale_inv", "weight_global_scale"
MICRO = 32
"""Values that share a power of two."""
_TYPES: tuple[tuple[str, int, int | None], ...] = (
    ("(mx_fp)(4|4e2m1)?(_rceil)?", 4, MICRO),
    ("(mx_fp)(8|8e4m3)?(_rceil)?", 8, MICRO),
    ("(mx_int)4?", 4, MICRO),
    ("(nv_fp)4?(_with_static_gs)?", 4, 16),
    ("(fp)(8|8_e4m3)?", 8, None),
)
"""Expressions for types, their bits, and the values that share a scale; None where `group_size` tells it."""
NAMES = "mx_fp, mx_int, nv_fp, fp"


class Floats:
    """The layout of modules with settings, those of its module and of all put together."""

    def __init__(self, settings: QuantSettings) -> None:
        named = settings.values.get("data_type")
        bits = settings.one_of("bits", (4, 8))
        found = [
            (match[1], group)
            for kind, of, group in _TYPES
            if bits == of and isinstance(named, str) and (match := re.fullmatch(kind, named))
        ]
        if not found:
            raise settings.error(
                "data_type", f"is {brief(named)} with {bits} bits", f"int, or {NAMES}, of e2m1 or e4m3"
            )
        (self._family, group), self._bits = found[0], bits
        settings.one_of("sym", (True, None), None)
        settings.one_of("fmt", ("e4m3", None), None)
        blocks = [float8.SIDE, float8.SIDE]
        self._square = settings.one_of("group_size", (-1, 0, blocks) if group is None else (group,)) == blocks
        act_bits = settings.one_of("act_bits", (None, 4, 8, 16, 32), None)
        self._tokens = self._family == "fp" and act_bits == 8 and not self._square
        dynamic = settings.one_of("act_dynamic", (True, False, None), None) is not False
        self._static = self._tokens and not dynamic
        if self._static:
            settings.one_of("act_group_size", (0, None), None)
            settings.one_of("act_data_type", ("fp", "fp8", "fp8_e4m3", None), None)

    def read(self, module: Module) -> list[LazyTensor]:
        if not any(end in module for end in (SCALE, SQUARE_SCALE)):
            return []
        if self._family == "fp":
            return self._fp8(module)
        if "input_global_scale" in module:  # it is for activations, which stay floats here
            module.take("input_global_scale", HALVES)
        if self._family == "nv_fp":
            return float4.nvfp4(module, CODES, SCALE, GLOBAL, divides=True)
        if self._family == "mx_int":
            return [_integers(module)]
        return [float8.microscaled(module, SCALE) if self._bits == 8 else float4.mxfp4(module, CODES, SCALE)]

    def _fp8(self, module: Module) -> list[LazyTensor]:
        end, group = (SQUARE_SCALE, float8.SIDE) if self._square else (SCALE, None)
        weight = float8.weight(module, end, group, square=self._square, token_codes=self._tokens)
        return [weight, module.input_scale()] if self._static else [weight]


def _integers(module: Module) -> LazyTensor:
    """Codes of a sign and three bits: w = (-1)^sign * magnitude / 4 * 2^(exponent - 127)."""
    codes = module.take(CODES, ("U8",), (None, None))
    n, k = codes.shape[0], codes.shape[1] * 2
    if k % MICRO:
        raise module.error(CODES, f"has rows of {k} values", f"multiples of {MICRO}")
    scale = module.take(SCALE, ("U8", "F8_E8M0"), (n, k // MICRO))

    def load() -> Part:
        raw, d = codes.array(), float8.powers_of_two(module, SCALE, scale) * np.float32(0.25)

        def planes(part: slice) -> Planes:
            q = codes_of(raw[part], 4)
            return Planes(np.where(q & 8, 8 - (q & 7), 8 + q).astype(np.uint8), d=d[part])

        return planes

    return module.rows(n, k, Kind(4, MICRO, "F32", "offset"), load)
