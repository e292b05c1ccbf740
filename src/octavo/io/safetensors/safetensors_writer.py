"""Writes a safetensors file tensor by tensor: the header first, as shapes say where each tensor will lie."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from octavo.errors import FileError, shown
from octavo.formats.spec import AnyArray
from octavo.io.atomic import failures_of
from octavo.io.safetensors.safetensors_file import ITEM_BYTES

ALIGNMENT = 8  # where the data begin: the header is filled up with spaces


@dataclass(frozen=True)
class TensorHead:
    """What the header says of a tensor; `dtype` as in "BF16"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def write_safetensors(
    path: str | os.PathLike[str],
    heads: Sequence[TensorHead],
    data: Iterable[AnyArray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file of these tensors; `data` gives the values of each in turn, and is asked for one when it is written.

    `metadata` is kept beside the format's own. The file is not flushed, nor is it whole before this returns. Raises
    FileError where it can't be written.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    start = 0
    for head in heads:
        if head.name in header:
            raise FileError(f"tensor {shown(head.name)} is there twice", file=path, allowed="each name once")
        offsets = [start, start + head.nbytes]
        header[head.name] = {"dtype": head.dtype, "shape": list(head.shape), "data_offsets": offsets}
        start += head.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with failures_of(path), open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for head, values in zip(heads, data, strict=True):
            assert values.nbytes == head.nbytes
            file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
