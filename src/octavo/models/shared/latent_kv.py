"""Older files of latent attention: of these one matrix, `attn_kv_b`, makes heads' keys and values.

They are read as converters write them since: `attn_k_b` and `attn_v_b`, and sizes of the cache's one head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from octavo.errors import ModelError
from octavo.formats import DeferredQTensor, QTensor, by_name, dequantize, quantize_reference
from octavo.io.gguf import GGUFFile, PlainMetadata, TensorInfo
from octavo.io.gguf.metadata import Metadata
from octavo.models.shared.reader import LIMITS

PART = ".attn_kv_b.weight"
FLOATS = ("F32", "BF16")
"""Types whose keys keep them; those of others become F16, as their columns are no longer blocks."""


class SplitFile(GGUFFile):
    """A file in whose place of each `attn_kv_b` there are `attn_k_b` [heads, rank, n] and `attn_v_b` [heads, v, rank].

    heads, n, v  of all layers; n counts the values of a head's keys without rope
    """

    def __init__(self, file: GGUFFile, heads: int, n: int, v: int) -> None:
        self.path, self.version, self.alignment, self.metadata = file.path, file.version, file.alignment, file.metadata
        self._sources, self._file, self._heads, self._n, self.tensors = {}, file, heads, n, {}
        self._parts: dict[str, Callable[[], QTensor]] = {}
        for name, info in file.tensors.items():
            if not name.endswith(PART):
                self.tensors[name] = info
                continue
            rows, rank = info.shape if len(info.shape) == 2 else (0, 0)
            if rows != heads * (n + v):
                allowed = f"{heads * (n + v)} rows, as the keys say"
                raise ModelError(
                    f"has shape {list(info.shape)}", file=file.path, field=f"tensor {name}", allowed=allowed
                )
            self._add(info, "attn_k_b", (heads, rank, n), self._keys)
            self._add(info, "attn_v_b", (heads, v, rank), self._values)

    @property
    def made(self) -> frozenset[str]:
        """Names of tensors that are parts of others in the file itself."""
        return frozenset(self._parts)

    def _add(self, info: TensorInfo, part: str, shape: tuple[int, ...], make: Callable[[str], QTensor]) -> None:
        name = info.name.replace("attn_kv_b", part)
        fmt = self._file.tensor(info.name).format
        if part == "attn_k_b" and fmt.name not in FLOATS:
            fmt = by_name("F16")
        nbytes = int(np.prod(shape[:-1])) * fmt.row_bytes(shape[-1])
        self.tensors[name] = TensorInfo(name, shape, fmt.gguf or 0, info.offset, nbytes, info.file)
        load = partial(make, info.name)
        self._parts[name] = lambda: DeferredQTensor(fmt, shape, load, name)

    def _keys(self, name: str) -> QTensor:
        stored = self._file.tensor(name)
        values = dequantize(stored).reshape(self._heads, -1, stored.shape[1])[:, : self._n]
        fmt = stored.format if stored.format.name in FLOATS else by_name("F16")
        return quantize_reference(np.ascontiguousarray(values.swapaxes(1, 2)), fmt, name)

    def _values(self, name: str) -> QTensor:
        stored = self._file.tensor(name)
        rows = stored.data.reshape(self._heads, stored.shape[0] // self._heads, -1)[:, self._n :]
        return QTensor(stored.format, (*rows.shape[:2], stored.shape[1]), np.ascontiguousarray(rows), name)

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        if name not in self._parts:
            return self._file.tensor(name, copy=copy)
        tensor = self._parts[name]()
        return QTensor(tensor.format, tensor.shape, tensor.data, name) if copy else tensor


def split(file: GGUFFile, value_length: int | None = None) -> tuple[GGUFFile, Metadata]:
    """The file as it is written today, and its metadata; those of a file that is are its own.

    value_length  of a file that does not say it, which with None it must

    Raises ModelError for sizes that do not go together.
    """
    if not any(name.endswith(PART) for name in file.tensors) or "blk.0.attn_k_b.weight" in file.tensors:
        return file, file.metadata
    arch = file.metadata.get_str("general.architecture")

    def size(field: str, usual: int | None = None) -> int:
        key, most = f"{arch}.{field}", LIMITS["attention.key_length"]
        number = file.metadata.get_int(key) if usual is None else file.metadata.get_int(key, usual)
        if not 1 <= number <= most:
            raise ModelError(
                f"{number} is out of range", file=file.path, field=f"{arch}.{field}", allowed=f"1 to {most}"
            )
        return number

    heads, key = size("attention.head_count"), size("attention.key_length")
    value = size("attention.value_length", value_length)
    rank, rotary = size("attention.kv_lora_rank"), size("rope.dimension_count")
    if key <= rotary:
        allowed = f"over {rotary}, the dimensions of rope"
        raise ModelError(f"is {key}", file=file.path, field=f"{arch}.attention.key_length", allowed=allowed)
    own = {name: file.metadata[name] for name in file.metadata if name.startswith(f"{arch}.")}
    changed = {
        "head_count_kv": 1, "key_length": rank + rotary, "value_length": rank, "key_length_mla": key,
        "value_length_mla": value,
    }
    metadata = PlainMetadata(file.path, own | {f"{arch}.attention.{field}": n for field, n in changed.items()})
    return SplitFile(file, heads, key - rotary, value), metadata
