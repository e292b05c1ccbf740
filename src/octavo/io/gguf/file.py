"""GGUFFile: a model's file, or its set of shards, open for reading."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from octavo.errors import GGUFError, ModelError, shown
from octavo.formats.qtensor import QTensor
from octavo.formats.rare import load
from octavo.formats.spec import F32
from octavo.formats.table import by_gguf_id
from octavo.io.gguf.mapped_tensor import FileQTensor
from octavo.io.gguf.part import Part
from octavo.io.gguf.shards import read_parts
from octavo.io.gguf.tensors import TensorInfo


class GGUFFile:
    """A GGUF model, versions 2 and 3, little-endian; several shards read as one.

    path       as given
    version    of the format
    alignment  of tensor data, in bytes
    metadata   the key-value pairs (of a split set: those of the first shard)
    tensors    what each tensor is and where it lies, by name, in file order

    Everything in the headers is checked when the file is opened; tensor data is not touched. A context manager: after
    `close` metadata strings and arrays can no longer be read, but tensors that were handed out still can.

    A file that is cut while it is open gives a GGUFError at the next `tensor`, and where data that are gone are read.
    """

    def __init__(self, path: str, parts: list[Part]) -> None:
        first = parts[0]
        self.path, self.version, self.alignment, self.metadata = path, first.version, first.alignment, first.metadata
        self.tensors: dict[str, TensorInfo] = {name: info for part in parts for name, info in part.tensors.items()}
        self._sources = {part.source.path: part.source for part in parts}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a file, or a split set by any of its shards. Raises GGUFError naming file, offset and field."""
        return cls(os.fsdecode(path), read_parts(path))

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the shards in order; of a file that is not split, its own."""
        return tuple(self._sources)

    @property
    def head_fault(self) -> ModelError | None:
        """Why layers that guess tokens were left out when the file was opened; a GGUF file has all of its tensors."""
        return None

    def cache_magnitudes(self) -> dict[str, F32]:
        """The largest magnitudes of keys and values that are known of the model beside its tensors, by the names that
        tensors of them have; float32 [1] or [heads]. A GGUF file has tensors only."""
        return {}

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        """The tensor called `name`. Its data are read whenever they are asked for; `copy` reads them now.

        A type that the format table has no row for is decoded to plain floats, now. Raises GGUFError where there is no
        such tensor, or where the file is closed or was cut since it was opened.
        """
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(
                f"no tensor {shown(name)}", file=self.path, allowed=f"one of its {len(self.tensors)} tensors"
            )
        file, field = self._sources[info.file].file, f"tensor {shown(name)}"
        file.require_whole(info.offset, field)
        fmt = by_gguf_id(info.gguf_id)
        if fmt is None:
            data = file.array(info.offset, info.nbytes, field)
            return load(info.gguf_id, info.shape, data.reshape(*info.shape[:-1], -1), name)
        tensor = FileQTensor(fmt, info.shape, name, file, info.offset, field)
        return QTensor(fmt, info.shape, tensor.data, name) if copy else tensor

    def close(self) -> None:
        """Close the file and its shards."""
        for source in self._sources.values():
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({self.path!r}, {len(self.tensors)} tensors, {self.nbytes} bytes)"
