"""One safetensors file: a JSON header that says where each tensor lies, and the tensors.

The format (https://huggingface.co/docs/safetensors): the header's length as a little-endian u64, the header, the data.
The header maps a name to its dtype, shape and data_offsets, which count from the start of the data and leave no gap.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from octavo.errors import FileError, shown
from octavo.formats import QTensor, by_name
from octavo.formats.spec import F32, U8, AnyArray
from octavo.io.foreign import AGAIN, HEAD, foreign
from octavo.io.gguf.mapped_tensor import FileQTensor
from octavo.io.gguf.source import OpenFile
from octavo.io.regular_file import open_regular
from octavo.io.safetensors.json_file import parse_object

MAX_HEADER_BYTES = 100_000_000
"""As the format's own library has it: experts by the thousand take several MB."""
MAX_KEYS = 1_000_000
"""Of objects, four a tensor: a mixture in one file has some 100,000 tensors. Parsed, each takes 100 bytes or more."""
MAX_DIMS = 8
WANTED = "a safetensors file"
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}
"""Bytes of a value by the dtype's name."""
FLOATS = ("F32", "F16", "BF16", "F64")
"""Dtypes that are formats of the table too."""
NUMPY = {
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}
"""Types of arrays by the dtype's name; 8-bit floats as their bytes."""


_open_files: WeakValueDictionary[str, OpenFile] = WeakValueDictionary()
"""Files from which parts of tensors are read, by their paths."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file declares it; `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    file: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def load(self) -> QTensor:
        """The tensor, read into memory. Raises FileError for a dtype that is not a float, and for a file cut since."""
        if self.dtype not in FLOATS:
            raise _fault(self, f"holds {self.dtype}", ", ".join(FLOATS))
        if 0 in self.shape or not self.shape:
            raise _fault(self, f"has shape {list(self.shape)}", "sizes of 1 or more")
        return QTensor(by_name(self.dtype), self.shape, self.raw().reshape(*self.shape[:-1], -1), self.name)

    def parts(self) -> QTensor:
        """A tensor of floats that stays in its file until some of it is asked for. Raises FileError as `load` does."""
        if (file := _open_files.get(self.file)) is None:
            _open_files[self.file] = file = OpenFile(self.file, WANTED, FileError)
        return FileQTensor(by_name(self.dtype), self.shape, self.name, file, self.offset, f"tensor {shown(self.name)}")

    def array(self) -> AnyArray:
        """An integer tensor or one of 8-bit floats (as uint8), read into memory. Raises FileError as `load` does."""
        if self.dtype not in NUMPY:
            raise _fault(self, f"holds {self.dtype}", ", ".join(NUMPY))
        return self.raw().view(NUMPY[self.dtype]).reshape(self.shape)

    def floats(self) -> F32:
        """A tensor of floats of any shape, [] too, as float32. Raises FileError as `load` does."""
        if self.dtype not in FLOATS:
            raise _fault(self, f"holds {self.dtype}", ", ".join(FLOATS))
        values = by_name(self.dtype).code(self.raw().view(by_name(self.dtype).fields[0].dtype))
        return values.reshape(self.shape)

    def raw(self) -> U8:
        """The bytes of a tensor of any dtype. Raises FileError for a file cut since."""
        data = np.empty(self.nbytes, dtype=np.uint8)
        try:
            with open_regular(self.file, WANTED) as file:
                file.seek(self.offset)
                self._fill(file, data.data)
        except OSError as error:
            raise _fault(self, f"reading failed: {error.strerror}", None) from None
        return data

    def _fill(self, file: Any, wanted: memoryview) -> None:
        while wanted:
            n = file.readinto(wanted)
            if not n:
                raise _fault(self, "the file was truncated while being read", None)
            wanted = wanted[n:]


def _fault(tensor: StoredTensor, problem: str, allowed: str | None) -> FileError:
    return FileError(
        problem, file=tensor.file, offset=tensor.offset, field=f"tensor {shown(tensor.name)}", allowed=allowed
    )


class SafetensorsFile:
    """A file's tensors by name, in the order of their data. Everything in the header is checked when it is opened.

    `metadata` is text by name, as the file has it; values that are not text are left out.
    """

    def __init__(self, path: str, tensors: dict[str, StoredTensor], metadata: dict[str, str]) -> None:
        self.path, self.tensors, self.metadata = path, tensors, metadata

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SafetensorsFile:
        """Raises FileError naming file, offset and tensor."""
        name = os.fsdecode(path)
        size, header = _read_header(name)
        start = 8 + len(header)
        if header.count(b":") > MAX_KEYS or sum(map(header.count, (b",", b"[", b"{"))) > 4 * MAX_KEYS:
            raise FileError("has too many keys or values", file=name, field="header", allowed=f"{MAX_KEYS:,} keys")
        table = parse_object(header, name, "header")
        said = table.pop("__metadata__", None)
        metadata = {k: v for k, v in said.items() if isinstance(v, str)} if isinstance(said, dict) else {}
        tensors = [_tensor(name, key, entry, start) for key, entry in table.items()]
        tensors.sort(key=lambda t: (t.offset, t.nbytes))
        last = max(tensors, key=lambda t: t.offset + t.nbytes, default=None)
        if last is not None and last.offset + last.nbytes > size:
            problem = f"the file is incomplete: {size:,} of {last.offset + last.nbytes:,} bytes; {AGAIN}"
            raise FileError(problem, file=name, field=f"tensor {shown(last.name)} data_offsets")
        end = start
        for tensor in tensors:
            if tensor.offset != end:
                raise _fault(
                    tensor, f"starts at {tensor.offset}, and the one before ends at {end}", "no gap, no overlap"
                )
            end = tensor.offset + tensor.nbytes
        if end != size:
            problem = f"{size - end} bytes after the last tensor"
            raise FileError(problem, file=name, offset=end, allowed="nothing after the tensors")
        return cls(name, {tensor.name: tensor for tensor in tensors}, metadata)


def _read_header(name: str) -> tuple[int, bytes]:
    """The file's size and its header."""
    with open_regular(name, WANTED) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) == 8 and 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                return size, file.read(length)
            rest = file.read(HEAD - 8)
        except OSError as error:
            raise FileError(f"reading failed: {error.strerror}", file=name) from None
    what = foreign(first + rest)
    if what and rest[:1] != b"{":
        raise FileError(what, file=name)
    problem = f"the file ends after {size} bytes" if len(first) < 8 else f"a header of {length} bytes in {size} bytes"
    allowed = f"2 to {MAX_HEADER_BYTES} bytes of header, within the file"
    raise FileError(problem, file=name, offset=0, field="header length", allowed=allowed)


def _tensor(file: str, name: str, entry: Any, start: int) -> StoredTensor:
    def fault(part: str, value: Any, allowed: str) -> FileError:
        return FileError(f"is {str(value)[:80]}", file=file, field=f"tensor {shown(name)} {part}", allowed=allowed)

    if not isinstance(entry, dict):
        raise fault("entry", type(entry).__name__, "an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise fault("dtype", dtype, ", ".join(ITEM_BYTES))
    if not (isinstance(shape, list) and len(shape) <= MAX_DIMS and all(_is_size(n) for n in shape)):
        raise fault("shape", shape, f"at most {MAX_DIMS} sizes")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(_is_size(n) for n in offsets)):
        raise fault("data_offsets", offsets, "where its data begin and end")
    tensor = StoredTensor(name, dtype, tuple(shape), start + offsets[0], file)
    if tensor.nbytes != offsets[1] - offsets[0]:
        raise fault("data_offsets", f"{offsets} for {tensor.nbytes} bytes of {dtype} {shape}", "its bytes")
    return tensor


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48
