"""Tensors of a checkpoint as they can be loaded: floats as they lie, quantized modules as rows of one format.

compressed-tensors stores a linear layer called m as

    m.weight        int8 or e4m3 codes [N, K], or
    m.weight_packed int32 [N, K / 8], code + 8 of eight neighbours in a word, the first lowest, and
    m.weight_shape  N and K
    m.weight_scale  floats [N, 1] (or [N]), or [N, K / 128] where groups have scales

It has one level of scales. Two are derived from them here, as `ops.quantize_w4a8` would derive them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import ModelError, QuantFormatError, shown
from octavo.formats import BlockFormat, Planes, QTensor, by_name, channel_format, dequantize, pack
from octavo.formats.rows import GROUP, Scheme, two_levels
from octavo.formats.spec import F32, U8, AnyArray
from octavo.huggingface.schemes import packs, read_scheme
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint, StoredTensor
from octavo.io.safetensors.file import FLOATS
from octavo.models.config import Config

SCALE, PACKED, SHAPE = "weight_scale", "weight_packed", "weight_shape"
PER_WORD = 8
CODES = {"int": "I8", "float": "F8_E4M3"}
"""Dtypes of codes that are not packed, by the kind of a scheme."""
CHUNK_VALUES = 1 << 22


def stored_tensors(checkpoint: Checkpoint, config: Config, left_out: Callable[[str], bool]) -> dict[str, LazyTensor]:
    """The tensors by name, those of a quantized module as one that is called as its weight was.

    Nothing is read but the headers; shapes of codes and scales are compared. Raises ModelError for a quantized module
    that is incomplete or contradicts the scheme of config.json, and for tensors of other types.
    """
    scheme = read_scheme(config)
    tensors = {name: t for name, t in checkpoint.tensors.items() if not left_out(name)}
    made: dict[str, LazyTensor] = {}
    used: set[str] = set()
    for name in tensors:
        module, _, end = name.rpartition(".")
        if scheme is not None and end == SCALE:
            parts = _parts(tensors, module)
            used.update(t.name for t in parts.values())
            made[f"{module}.weight"] = _module(checkpoint, scheme, module, parts)
    for name, tensor in tensors.items():
        if name not in used:
            if tensor.dtype not in FLOATS:
                raise _fault(checkpoint, name, f"holds {tensor.dtype}", ", ".join(FLOATS))
            made[name] = LazyTensor(name, by_name(tensor.dtype), tensor.shape, tensor.load)
    return made


def _parts(tensors: dict[str, StoredTensor], module: str) -> dict[str, StoredTensor]:
    names = ("weight", PACKED, SHAPE, SCALE)
    return {part: tensors[f"{module}.{part}"] for part in names if f"{module}.{part}" in tensors}


@dataclass(frozen=True)
class _Module:
    """A quantized linear layer: `codes` are packed where there is a `shape`."""

    format: BlockFormat
    n: int
    k: int
    codes: StoredTensor
    scale: StoredTensor
    shape: StoredTensor | None

    def load(self) -> QTensor:
        """The rows of the module. Raises ModelError where the file's own shape is another one."""
        if self.shape is not None and self.shape.array().reshape(-1).tolist() != [self.n, self.k]:
            problem = f"says {self.shape.array().reshape(-1).tolist()[:4]}"
            raise ModelError(problem, file=self.shape.file, field=f"tensor {shown(self.shape.name)}",
                             allowed=f"{[self.n, self.k]}, as its words have it")  # fmt: skip
        raw, scales = self.codes.array(), dequantize(self.scale.load()).reshape(self.n, -1)
        out = np.empty((self.n, self.format.block_bytes), np.uint8)
        step = max(1, CHUNK_VALUES // self.k)
        for start in range(0, self.n, step):
            part = slice(start, start + step)
            out[part] = pack(row_planes(self.format, self._codes(raw[part]), scales[part]), self.format)
        return QTensor(self.format, (self.n, self.k), out, self.codes.name)

    def _codes(self, raw: AnyArray) -> U8:
        """Codes as planes have them, uint8 [N, K]."""
        if self.shape is not None:
            return _unpacked(raw)
        if self.format.number is not None:
            return raw.view(np.uint8)
        return raw.view(np.uint8) ^ np.uint8(0x80) if self.format.bits == 8 else _checked_nibbles(raw, self.codes)


def row_planes(fmt: BlockFormat, q: U8, scales: F32) -> Planes:
    """Planes of a format of rows: codes uint8 [N, K], and the scales that a checkpoint has for them."""
    if not fmt.folds:
        return Planes(q, d=scales)
    channel, groups = two_levels(scales, np.abs(q.view(np.int8) - fmt.offset).max(axis=-1))
    return Planes(q, d=channel, sc=groups)


def _module(checkpoint: Checkpoint, scheme: Scheme, module: str, parts: dict[str, StoredTensor]) -> LazyTensor:
    packed = PACKED in parts
    for missing in (p for p in ((PACKED, SHAPE) if packed else ("weight",)) if p not in parts):
        raise _fault(checkpoint, f"{module}.{missing}", "is missing", f"beside {SCALE}")
    codes, scale = parts[PACKED if packed else "weight"], parts[SCALE]
    wanted = "I32" if packed else CODES[scheme.kind]
    if codes.dtype != wanted or len(codes.shape) != 2 or 0 in codes.shape:
        raise _fault(checkpoint, codes.name, f"is {codes.dtype} {list(codes.shape)}", f"{wanted} of two dimensions")
    n, k = codes.shape[0], codes.shape[1] * (PER_WORD if packed else 1)
    try:
        fmt = channel_format(scheme.format, k)
    except QuantFormatError as error:
        raise _fault(checkpoint, codes.name, str(error), None) from None
    if packed and not packs(scheme):
        raise _fault(checkpoint, codes.name, f"is packed, and {scheme.name} is not", f"{module}.weight")
    shapes = [(n, k // GROUP)] if fmt.folds else [(n, 1), (n,)]
    if scale.dtype not in FLOATS or scale.shape not in shapes:
        allowed = " or ".join(str(list(s)) for s in shapes)
        raise _fault(checkpoint, scale.name, f"is {scale.dtype} {list(scale.shape)}", f"floats {allowed}")
    shape = parts.get(SHAPE) if packed else None
    if shape is not None and (shape.dtype not in ("I64", "I32") or shape.shape != (2,)):
        raise _fault(checkpoint, shape.name, f"is {shape.dtype} {list(shape.shape)}", "I64 [2]")
    return LazyTensor(f"{module}.weight", fmt, (n, k), _Module(fmt, n, k, codes, scale, shape).load)


def _unpacked(words: AnyArray) -> U8:
    """int32 [N, K / 8] as codes 0 to 15, uint8 [N, K]."""
    both = np.ascontiguousarray(words.astype("<i4", copy=False)).view(np.uint8)
    return np.stack([both & 15, both >> 4], axis=-1).reshape(len(words), -1)


def _checked_nibbles(raw: AnyArray, codes: StoredTensor) -> U8:
    if raw.min() < -8 or raw.max() > 7:
        problem = f"has codes from {raw.min()} to {raw.max()}"
        raise ModelError(problem, file=codes.file, field=f"tensor {shown(codes.name)}", allowed="-8 to 7")
    return (raw + np.int8(8)).view(np.uint8)


def _fault(checkpoint: Checkpoint, name: str, problem: str, allowed: Any) -> ModelError:
    return ModelError(problem, file=checkpoint.folder, field=f"tensor {shown(name)}", allowed=allowed)
