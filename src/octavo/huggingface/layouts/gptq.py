"""GPTQ: `qweight`, `qzeros`, `scales`, `g_idx`, as AutoGPTQ and GPTQModel write them.

    qweight  I32 [K * bits / 32, N]   a column is a stream of codes along K
    qzeros   I32 [groups, N * bits / 32], zero points along N: less 1 in files of format "gptq", not in "gptq_v2"
    scales   floats [groups, N]
    g_idx    I32 [K], the group of each value of a row, or absent: value // group_size

With a `pack_dtype` of 16 or 8 bits words are I16 or I8. Format "gptq_p" has codes in planes
(`planar_codes_of`) of words of 32 bits, of 5 to 7 bits too, and true zero points.

w = scale * (code - zero). Where groups are not contiguous (activation order), columns are sorted by group, and
`order` [K] says which values of an activation go with them.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats import Planes
from octavo.formats.spec import U8, AnyArray
from octavo.huggingface.layouts import writer_keys
from octavo.huggingface.layouts.bits import codes_of, planar_codes_of
from octavo.huggingface.layouts.match import Pattern
from octavo.huggingface.layouts.module import HALVES, Kind, Module, Part
from octavo.huggingface.layouts.quant_settings import QuantSettings, brief
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor

log = logging.getLogger("octavo")

BITS = (2, 3, 4, 8)
PLANAR = "gptq_p"
FORMATS = ("gptq", "gptq_v2", PLANAR)
WORDS = {"int32": "I32", "int16": "I16", "int8": "I8"}
USED = (
    "quant_method", "method", "bits", "group_size", "sym", "checkpoint_format", "format", "pack_dtype", "dynamic",
    "desc_act",
)


@dataclass(frozen=True)
class _GptqKind:
    """What the configuration says: `group` None for a whole row, `words` the type of packed words."""

    bits: int
    group: int | None
    sym: bool
    format: str | None
    words: str


class Gptq:
    """The layout, and what the configuration says of some modules."""

    def __init__(self, settings: QuantSettings) -> None:
        if rotation := settings.values.get("rotation"):
            problem = f"is {brief(rotation)}: what goes into down_proj is turned in each step, which is not computed"
            raise settings.error("rotation", problem, "null")
        settings.only(USED, writer_keys.AUTO_ROUND, writer_keys.GPTQ)
        settings.one_of("method", ("gptq", None), None)
        words = WORDS[settings.one_of("pack_dtype", (*WORDS, None), None) or "int32"]
        said = settings.one_of("checkpoint_format", (*FORMATS, None), None)
        if said is None and settings.values.get("format") in FORMATS:
            said = settings.values["format"]
        if said == PLANAR:
            settings.one_of("pack_dtype", ("int32", None), None)
        self._kind = _kind(settings, _GptqKind(0, None, True, said, words))
        self._dynamic: list[tuple[Pattern, _GptqKind | None]] = []
        dynamic = settings.values.get("dynamic") or {}
        for pattern, value in QuantSettings.of(settings.config, f"{settings.path}.dynamic", dynamic).values.items():
            at = settings.part("dynamic").part(pattern, value)
            at.only(USED, writer_keys.AUTO_ROUND, writer_keys.GPTQ)
            kind = None if pattern.startswith("-:") else _kind(at, self._kind)
            self._dynamic.append((Pattern.of(at, re.sub("^[+-]:", "", pattern)), kind))

    def read(self, module: Module) -> list[LazyTensor]:
        if "qweight" not in module:
            return []
        kind = next((kind for pattern, kind in self._dynamic if pattern.matches(module.name)), self._kind)
        if kind is None:
            raise module.error("qweight", "is there, and the configuration's `dynamic` leaves this module out")
        return _weight(module, kind)


def _kind(settings: QuantSettings, base: _GptqKind) -> _GptqKind:
    """What an object says of modules, `base` where it says nothing."""
    bits = settings.one_of("bits", range(2, 9) if base.format == PLANAR else BITS, base.bits or ...)
    group = settings.values.get("group_size", base.group or -1)
    group = None if group == -1 and type(group) is int else settings.size("group_size", group)
    return replace(base, bits=bits, group=group, sym=settings.flag("sym", base.sym))


def _weight(module: Module, kind: _GptqKind) -> list[LazyTensor]:
    """A module's weight, and the order of its columns where they do not lie by group. Shapes are checked."""
    codes, size = module.take("qweight", (kind.words,), (None, None)), int(kind.words[1:])
    n, k = codes.shape[1], codes.shape[0] * size // kind.bits
    group = kind.group or k
    whole = 32 if kind.format == PLANAR else 1
    if codes.shape[0] * size % kind.bits or k % group or n * kind.bits % size or k % whole or n % whole:
        problem = f"is {kind.words} {list(codes.shape)} for codes of {kind.bits} bits in groups of {group}"
        raise module.error("qweight", problem, "whole words and groups")
    zeros = module.take("qzeros", (kind.words,), (k // group, n * kind.bits // size))
    scales = module.take("scales", HALVES, (k // group, n))
    order = order_of(module, "g_idx", k, group) if "g_idx" in module else None

    def load() -> Part:
        words, d, points = codes.array(), scales.floats(), _zero_points(zeros, kind)

        def planes(part: slice) -> Planes:
            q = _codes(np.ascontiguousarray(words[:, part].T), kind)
            m = None if kind.sym else np.ascontiguousarray(points[:, part].T)
            return Planes(q if order is None else q[:, order], d=np.ascontiguousarray(d[:, part].T), m=m)

        return planes

    rows = module.rows(n, k, Kind(kind.bits, group, scales.dtype, "offset" if kind.sym else "zero"), load)
    return [rows] if order is None else [rows, module.vector("order", lambda: order.astype(np.float32), k)]


def _codes(words: AnyArray, kind: _GptqKind) -> U8:
    return (planar_codes_of if kind.format == PLANAR else codes_of)(words, kind.bits)


def _zero_points(zeros: StoredTensor, kind: _GptqKind) -> U8:
    """Zero points uint8 [groups, N]. Raises ModelError for a symmetric file with others than one in the middle."""
    words, bits = zeros.array(), kind.bits
    words = words.view(f"u{words.itemsize}")
    if kind.sym:
        stored, middle = _codes(words, kind), 1 << (bits - 1)
        if not ((stored == middle).all() or (stored == middle - 1).all()):
            found = sorted(set(np.unique(stored).tolist()))[:4]
            problem = f"has zero points {', '.join(map(str, found))} in a symmetric checkpoint"
            raise ModelError(problem, file=zeros.file, field=f"tensor {shown(zeros.name)}",
                             allowed=f"all {middle - 1} (gptq) or all {middle} (gptq_v2)")
        return stored
    if kind.format in ("gptq_v2", PLANAR):
        return _codes(words, kind)
    if bits == 3:
        return codes_of(words, bits) + np.uint8(1) & np.uint8(7)
    _warn_of_lost(words, bits, zeros.name)
    # 1 for each code of a word: GPTQModel subtracts that from whole words, so adding it with carries takes it back
    ones = words.dtype.type(sum(1 << i for i in range(0, 8 * words.itemsize, bits)))
    return codes_of(words + ones, bits)


def _warn_of_lost(words: AnyArray, bits: int, name: str) -> None:
    """AutoGPTQ's packer sets all bits above a zero point of 0: what was there is lost."""
    top = words.dtype.type((1 << bits) - 1)
    fields = words[..., None] >> np.arange(0, 8 * words.itemsize, bits, dtype=words.dtype) & top
    ones = fields == top
    lost = int((ones[..., -2:].all(axis=-1) & (ones.sum(axis=-1) >= 2)).sum())
    if lost:
        log.warning(
            "tensor %s: the zero points of %d words may have been lost by the program that wrote it", name, lost
        )


def order_of(module: Module, end: str, k: int, group: int) -> AnyArray | None:
    """The columns sorted by group, in order within it, of the groups that a tensor gives; None where they lie so."""
    groups = module.take(end, ("I32", "I64"), (k,)).array()
    if (groups == np.arange(k) // group).all():
        return None
    if groups.min() < 0 or groups.max() >= k // group:
        raise module.error(end, f"has groups {groups.min()} to {groups.max()}", f"0 to {k // group - 1}")
    sizes = np.bincount(groups, minlength=k // group)
    if (sizes != group).any():
        raise module.error(end, f"has groups of {sizes.min()} to {sizes.max()} values", f"{group} in each")
    return np.argsort(groups, kind="stable")
