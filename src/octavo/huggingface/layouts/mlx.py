"""MLX: rows of groups with a scale and a bias, in the embedding and the output matrix too.

    weight  U32 [N, K * bits / 32], a stream of codes along a row
    scales  floats [N, K / G]; U8 for mxfp4, nvfp4 and mxfp8
    biases  floats [N, K / G], of the affine mode alone

w = scale * code + bias. Experts are stacked: all of these have a dimension more, [E, N, ...].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from octavo.formats import Planes, by_name
from octavo.formats.float8 import float8_format
from octavo.formats.scalars import e8m0_half_to_f32, ue4m3_half_to_f32
from octavo.huggingface.layouts.bits import codes_of
from octavo.huggingface.layouts.module import HALVES, Kind, Module, Part, as_experts
from octavo.huggingface.layouts.quant_settings import QuantSettings
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor

BITS = (2, 3, 4, 5, 6, 8)
MODES = {"affine": (None, None), "mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
"""Bits and group of each mode; those of the affine one are settings."""


USED = ("mode", "bits", "group_size")
OF_THE_WRITER = ("quant_method",)


@dataclass(frozen=True)
class _MlxKind:
    mode: str
    bits: int
    group: int


class Mlx:
    """The layout: settings for all modules, and others under the names of some; false there leaves one as it is."""

    def __init__(self, settings: QuantSettings) -> None:
        self._all = _read_arguments(settings, {})
        self._own: dict[str, _MlxKind | None] = {}
        for key, value in settings.values.items():
            if value is False:
                self._own[key] = None
            elif isinstance(value, dict):
                own = settings.part(key)
                own.only(USED)
                self._own[key] = _read_arguments(own, settings.values)
            elif key not in USED:
                settings.only(USED, OF_THE_WRITER)

    def read(self, module: Module) -> list[LazyTensor]:
        if "scales" not in module:
            return []
        said = self._own.get(module.name, self._all)
        if said is None:
            raise module.error("scales", "is there, and the configuration leaves the module as it is")
        stacked = len(module.take("weight", ("U32",)).shape) == 3
        if stacked:
            experts, module = module.parts["weight"].shape[0], _flattened(module)
        words = module.take("weight", ("U32",), (None, None))
        n, k = words.shape[0], words.shape[1] * 32 // said.bits
        if words.shape[1] * 32 % said.bits or k % said.group:
            raise module.error("weight", f"is U32 {list(words.shape)} for {said.bits} bits in groups of {said.group}")
        rows = (_affine if said.mode == "affine" else _floats)(module, said, n, k, words)
        return [as_experts(rows, rows.name, experts) if stacked else rows]


def _flattened(module: Module) -> Module:
    """The tensors of experts [E, N, ...] as those of one matrix with the rows of all."""
    parts = {
        end: replace(part, shape=(part.shape[0] * part.shape[1], part.shape[2])) if len(part.shape) == 3 else part
        for end, part in module.parts.items()
    }
    return Module(module.folder, module.name, parts, module.used)


def _read_arguments(settings: QuantSettings, otherwise: Any) -> _MlxKind:
    mode = settings.one_of("mode", MODES, otherwise.get("mode", "affine"))
    bits, group = MODES[mode]
    if bits is not None and group is not None:
        settings.one_of("bits", (bits,), bits)
        settings.one_of("group_size", (group,), group)
        return _MlxKind(mode, bits, group)
    bits = settings.one_of("bits", BITS, otherwise.get("bits", ...))
    return _MlxKind(mode, bits, settings.one_of("group_size", (32, 64, 128), otherwise.get("group_size", ...)))


def _affine(module: Module, said: _MlxKind, n: int, k: int, words: StoredTensor) -> LazyTensor:
    shape = n, k // said.group
    scales, biases = module.take("scales", HALVES, shape), module.take("biases", HALVES, shape)
    if scales.dtype != biases.dtype:
        raise module.error("biases", f"is {biases.dtype}", f"{scales.dtype}, as the scales are")

    def load() -> Part:
        raw, d, low = words.array(), scales.floats(), biases.floats()
        return lambda part: Planes(codes_of(raw[part], said.bits), d=d[part], dmin=-low[part])

    return module.rows(n, k, Kind(said.bits, said.group, scales.dtype, "minimum"), load)


def _floats(module: Module, said: _MlxKind, n: int, k: int, words: StoredTensor) -> LazyTensor:
    scales = module.take("scales", ("U8",), (n, k // said.group))
    if said.mode == "nvfp4" and k % 64:
        raise module.error("weight", f"has rows of {k} values", "multiples of 64")
    fmt = {"mxfp4": by_name("MXFP4"), "nvfp4": by_name("NVFP4"), "mxfp8": float8_format(32)}[said.mode]

    def load() -> Part:
        raw, bits = words.array(), scales.array()
        none = 0x7F if said.mode == "nvfp4" else 0xFF
        if (bits == none).any():
            raise module.error("scales", f"has scales of {none}, which are NaN")
        d = ue4m3_half_to_f32(bits) if said.mode == "nvfp4" else e8m0_half_to_f32(bits)
        if said.mode == "mxfp8":  # e4m3 numbers have no table of doubled values, which halved scales make up for
            d = d + d
        return lambda part: Planes(codes_of(raw[part], said.bits), d=d[part])

    return module.weight(fmt, n, k, load)
