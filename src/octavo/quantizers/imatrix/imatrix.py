"""Importance matrices: how large the activations are that each input channel of a weight meets.

For each channel of a product, the mean of its squared activation over a text, per expert where there are experts. An
encoder that weights its error by it spends a block's codes where they count. The file is llama.cpp's (tools/imatrix): a
GGUF of general.type "imatrix" with two F32 tensors a weight, NAME.in_sum2 [K] or [experts, K] and NAME.counts, and the
keys imatrix.datasets, imatrix.chunk_count and imatrix.chunk_size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from octavo.errors import FileError, shown
from octavo.formats.spec import F32, AnyArray
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers.imatrix.legacy import is_legacy, read_legacy
from octavo.quantizers.imatrix.sums import COUNTS, SUMS, SquareSums, checked

RUN = "imatrix.octavo_run"


@dataclass(eq=False)
class Imatrix:
    """Squared activations by weight name.

    entries      by the weight's name, as in "blk.0.attn_q.weight"
    datasets     what was read: names of texts
    chunk_count  chunks of the text that were run
    chunk_size   tokens of a chunk, 0 where a file does not say
    run          names the run that makes it, so that one can go on from its file; "" where there is nothing to go on
    path         of the file it was read from
    """

    entries: dict[str, SquareSums] = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    chunk_count: int = 0
    chunk_size: int = 0
    run: str = ""
    path: str | None = None

    def importance(self, name: str, shape: tuple[int, ...] | None = None) -> F32 | None:
        """Mean squared activation of each input channel of the weight `name`; None where no activation was seen.

        With the weight's `shape`, [N, K] or [E, N, K], it is float32 [K] or [E, K], and a FileError is raised where the
        entry does not fit; without, [K] for an entry of one row, else [rows, K]. An expert that met no token has 1.
        """
        entry = self.entries.get(name)
        if entry is None or not entry.counts.any():
            return None
        mean = entry.mean()
        if shape is None:
            return mean[0] if len(mean) == 1 else mean
        wanted = (*shape[:-2], shape[-1])
        if len(shape) < 2 or mean.size != np.prod(wanted):
            problem = f"{mean.shape[0]} x {mean.shape[1]} importances do not fit a weight {list(shape)}"
            raise FileError(problem, file=self.path, field=f"tensor {shown(name)}", allowed=f"shape {list(wanted)}")
        return mean.reshape(wanted)

    def add(self, name: str, sums: AnyArray, counts: AnyArray | int) -> None:
        """Count squared activations, [K] or [rows, K] summed over `counts` of them, to the weight `name`."""
        new = SquareSums(np.atleast_2d(sums).astype(np.float32), np.atleast_1d(counts).astype(np.int64))
        old = self.entries.get(name)
        if old is not None and old.sums.shape != new.sums.shape:
            problem = f"{list(new.sums.shape)} sums added to {list(old.sums.shape)}"
            raise FileError(problem, file=self.path, field=f"tensor {shown(name)}", allowed="those of one model")
        self.entries[name] = new if old is None else old + new

    def merge(self, other: Imatrix) -> Imatrix:
        """Both texts together. Raises FileError where the two are of different models."""
        merged = Imatrix(
            dict(self.entries), self.datasets + tuple(d for d in other.datasets if d not in self.datasets),
            self.chunk_count + other.chunk_count, max(self.chunk_size, other.chunk_size),
            self.run if self.run == other.run else "",
        )
        for name, entry in other.entries.items():
            merged.add(name, entry.sums, entry.counts)
        return merged

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an importance matrix, also of the form before GGUF (.dat), which has one row for all experts together.

        Raises FileError (GGUFError where the file's structure is at fault) naming the file and the tensor.
        """
        if is_legacy(path):
            entries, datasets, chunks, size = read_legacy(path)
            return cls(entries, datasets, chunks, size, path=os.fsdecode(path))
        with GGUFFile.open(path) as file:
            kind = file.metadata.get_str("general.type", "imatrix")
            if kind != "imatrix":
                raise FileError(f"holds a {kind}", file=path, field="key 'general.type'", allowed="imatrix")
            entries = dict(_entries(file))
            if not entries:
                raise FileError("has no importances", file=path, allowed=f"tensors NAME{SUMS} and NAME{COUNTS}")
            datasets = tuple(file.metadata.get_strs("imatrix.datasets", []))
            chunks, size = (_natural(file, f"imatrix.chunk_{key}") for key in ("count", "size"))
            run = file.metadata.get_str(RUN, "")
        return cls(entries, datasets, chunks, size, run, os.fsdecode(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all; llama.cpp reads it. Raises GGUFError."""
        metadata: Mapping[str, Any] = {
            "general.type": "imatrix", "imatrix.datasets": list(self.datasets) or [""],
            "imatrix.chunk_count": self.chunk_count, "imatrix.chunk_size": self.chunk_size,
            **({RUN: self.run} if self.run else {}),
        }
        tensors: dict[str, AnyArray] = {}
        for name, entry in sorted(self.entries.items()):
            one = len(entry.counts) == 1
            tensors[name + SUMS] = entry.sums[0] if one else entry.sums
            tensors[name + COUNTS] = (entry.counts if one else entry.counts[:, None]).astype(np.float32)
        write_gguf(path, "imatrix", metadata, tensors)


def _natural(file: GGUFFile, key: str) -> int:
    value = file.metadata.get_int(key, 0)
    if value < 0:
        raise file.metadata.fault(key, f"{value}", "0 or more")
    return value


def _entries(file: GGUFFile) -> Iterator[tuple[str, SquareSums]]:
    """The weights of a file and their sums, checked. Tensors of other names are for other programs."""
    names = {name.removesuffix(end) for name in file.tensors for end in (SUMS, COUNTS) if name.endswith(end)}
    for name in sorted(names):
        sums, counts = (_numbers(file, name + end) for end in (SUMS, COUNTS))
        yield name, checked(sums, counts.reshape(-1), file.path, name)


def _numbers(file: GGUFFile, name: str) -> F32:
    """An F32 tensor's values in its shape."""
    if name not in file.tensors:
        raise FileError("is missing", file=file.path, field=f"tensor {shown(name)}")
    info = file.tensors[name]
    if info.type_name != "F32":
        raise FileError(
            f"stored as {info.type_name}", file=file.path, offset=info.offset, field=f"tensor {shown(name)}",
            allowed="F32",
        )
    return file.tensor(name, copy=True).data.view(np.float32).reshape(info.shape)
