"""Writes a GGUF file (version 3, little-endian) tensor by tensor, so that it appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import GGUFError, shown
from octavo.formats.qtensor import QTensor
from octavo.formats.spec import AnyArray, BlockFormat
from octavo.formats.table import by_name
from octavo.io.atomic import reason, replace_file
from octavo.io.gguf.header_limits import ALIGNMENT_RULE, MAX_DIMS, alignment_is_valid
from octavo.io.gguf.pairs import typed_pair
from octavo.io.gguf.values import TypedValue, ValueType

if TYPE_CHECKING:
    from gguf import GGUFWriter

_NAME_BYTES = 63  # llama.cpp's limit
_OURS = ("general.architecture", "general.alignment")  # written from arguments, or by GGUFWriter itself
_FLOATS = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}


@dataclass(frozen=True)
class LazyTensor:
    """A tensor to write that is made when its turn comes: `load` gives it in this format and shape.

    parts  gives the same, of which some can be read without the rest; None where all of it has to be made
    """

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    load: Callable[[], QTensor]
    parts: Callable[[], QTensor] | None = field(default=None, kw_only=True)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=np.int64)) * self.format.row_bytes(self.shape[-1])


Weight = QTensor | LazyTensor | AnyArray


def write_gguf(
    path: str | os.PathLike[str],
    arch: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Weight] | Iterable[QTensor | LazyTensor],
) -> None:
    """Write a GGUF file that llama.cpp can read.

    arch      general.architecture, as in "llama"
    metadata  see `typed_pair` for what a value may be; `{k: m.typed(k) for k in m}` copies another file's. Empty arrays
              are left out, as the gguf package leaves them out, and so are the keys `split.*`: this is one file.
    tensors   by name, or each with a name of its own; arrays are float32 or float16. Written in this order, one at a
              time: a LazyTensor is made when its turn comes and dropped after.

    The file is written under a temporary name in the same folder and takes its place at the end; after an error
    nothing is left of it. Raises GGUFError for a value or tensor that can't be written, and where writing fails.
    """
    weights = [_checked(name, weight) for name, weight in _named(tensors)]
    _check_names([w.name for w in weights])
    if not typed_pair("general.architecture", arch).value:
        raise GGUFError("empty", field="key 'general.architecture'", allowed="the name of an architecture")
    pairs = {k: typed_pair(k, v) for k, v in metadata.items() if not k.startswith("split.")}
    try:
        with replace_file(path) as temporary:
            _write(Path(temporary), arch, pairs, weights)
    except OSError as e:
        raise GGUFError(f"writing failed: {reason(e)}", file=path) from e


def _write(path: Path, arch: str, pairs: dict[str, TypedValue], weights: list[LazyTensor]) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    try:
        _add_pairs(writer, arch, pairs)
        for w in weights:
            assert w.format.gguf is not None
            kind = gguf.GGMLQuantizationType(w.format.gguf)
            writer.add_tensor_info(w.name, w.shape, np.dtype(np.float32), w.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for w in weights:
            writer.write_tensor_data(_bytes_of(w), tensor_endianess=gguf.GGUFEndian.LITTLE)
    finally:
        writer.close()


def _add_pairs(writer: GGUFWriter, arch: str, pairs: dict[str, TypedValue]) -> None:
    import gguf

    declared = pairs.get("general.architecture")
    if declared is not None and declared.value != arch.encode():
        raise GGUFError(f"{declared.value!r}", field="key 'general.architecture'", allowed=f"{arch!r}, as in `arch`")
    if "general.alignment" in pairs:
        alignment = pairs["general.alignment"].value
        if not (isinstance(alignment, int) and alignment_is_valid(alignment)):
            raise GGUFError(f"{alignment!r}", field="key 'general.alignment'", allowed=ALIGNMENT_RULE)
        writer.add_custom_alignment(alignment)
    for key, pair in pairs.items():
        if key in _OURS or (pair.type is ValueType.ARRAY and not pair.value):
            continue
        element = None if pair.element is None else gguf.GGUFValueType(pair.element)
        writer.add_key_value(key, pair.value, gguf.GGUFValueType(pair.type), sub_type=element)


def _named(tensors: Mapping[str, Weight] | Iterable[QTensor | LazyTensor]) -> Iterable[tuple[str, Weight]]:
    return tensors.items() if isinstance(tensors, Mapping) else ((t.name, t) for t in tensors)


def _checked(name: str, weight: Weight) -> LazyTensor:
    """`weight` under `name`, in a format and shape that GGUF has."""
    if isinstance(weight, np.ndarray):
        weight = _wrap(name, weight)
    fmt, shape = weight.format, weight.shape
    if fmt.gguf is None:
        raise _unfit(name, f"format {fmt.name}", "a format with a GGUF number")
    if not 1 <= len(shape) <= MAX_DIMS or 0 in shape or shape[-1] % fmt.block:
        raise _unfit(name, f"shape {list(shape)}", f"1 to {MAX_DIMS} dimensions, rows of whole {fmt.name} blocks")
    if isinstance(weight, LazyTensor):
        return LazyTensor(name, fmt, shape, weight.load)
    tensor = weight
    return LazyTensor(name, fmt, shape, lambda: tensor)


def _wrap(name: str, array: AnyArray) -> QTensor:
    if array.dtype not in _FLOATS:
        raise _unfit(name, f"an array of {array.dtype}", "float32 or float16, or a QTensor")
    if not array.ndim:
        raise _unfit(name, "shape []", f"1 to {MAX_DIMS} dimensions")
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return QTensor(by_name(_FLOATS[array.dtype]), array.shape, little.view(np.uint8), name)


def _check_names(names: list[str]) -> None:
    seen = set()
    for name in names:
        if not 1 <= len(name.encode("utf-8", "replace")) <= _NAME_BYTES or not name.isprintable():
            raise _unfit(name, "a name that llama.cpp does not read", f"1 to {_NAME_BYTES} printable bytes")
        if name in seen:
            raise _unfit(name, "duplicate tensor", "each name once")
        seen.add(name)


def _bytes_of(weight: LazyTensor) -> AnyArray:
    tensor = weight.load()
    if (tensor.format, tensor.shape) != (weight.format, weight.shape):
        raise _unfit(weight.name, f"was made as {tensor!r}", f"{weight.format.name} {list(weight.shape)}")
    return tensor.data


def _unfit(name: str, problem: str, allowed: str) -> GGUFError:
    return GGUFError(problem, field=f"tensor {shown(name)}", allowed=allowed)
