"""Values that are kept from one stage of a model to the next, of all samples, in memory or in a folder."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from octavo.calibrate import arrays
from octavo.formats.spec import AnyArray
from octavo.graph.node import Sizes, bind
from octavo.graph.stages import Stage
from octavo.io.atomic import failures_of

DTYPES: Mapping[str, type[Any]] = {"f32": np.float32, "i32": np.int32}
IN_MEMORY = 1 << 28
"""Bytes of a stream's values of all samples up to which they are in memory though a run has a folder: writing them to a
disk takes as long as a small model's stages."""


class StageValues:
    """Arrays by the name of the stream that they belong to and their number in the graph.

    With a `folder` they are files, of which the system keeps in memory what it has room for; without, they are memory.
    With a `device` of torch's all floats lie in its memory instead.
    """

    def __init__(self, folder: str | None = None, device: str | None = None) -> None:
        self.folder, self._device = folder, device
        self._arrays: dict[tuple[str, int], Any] = {}
        self._spare: dict[tuple[str, int], AnyArray] = {}  # by stream and bytes: the system need not clear it anew

    def __getitem__(self, key: tuple[str, int]) -> Any:
        return self._arrays[key]

    def new(self, key: tuple[str, int], shape: tuple[int, ...], dtype: str) -> Any:
        """An array to fill, in place of one that is there. Raises FileError where the disk has no room for it."""
        if self._device is not None and dtype == "f32":
            self._arrays[key] = arrays.zeros(shape, False, self._device)
            return self._arrays[key]
        path = self._path(key)
        array = self._empty(key[0], shape, dtype) if path is None else _file(path, shape, dtype)
        self._arrays[key] = array
        return array

    def _empty(self, stream: str, shape: tuple[int, ...], dtype: str) -> AnyArray:
        nbytes = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
        memory = self._spare.pop((stream, nbytes), None)
        array: AnyArray = (np.empty(nbytes, np.uint8) if memory is None else memory).view(DTYPES[dtype])
        return array.reshape(shape)

    def free(self, key: tuple[str, int]) -> None:
        array, path = self._arrays.pop(key), self._path(key)
        if not isinstance(array, np.ndarray):
            return
        if path is None:
            self._spare[key[0], array.nbytes] = array.reshape(-1).view(np.uint8)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _path(self, key: tuple[str, int]) -> str | None:
        return None if self.folder is None else os.path.join(self.folder, f"{key[0]}-{key[1]}.bin")


def kept_bytes(stages: Sequence[Stage], sizes: Sizes, streams: int) -> int:
    """Bytes of the values of all samples, of which there are `sizes`, at most, as `StageValues` has them."""
    total = top = 0
    spare, held = set[int](), dict[int, int]()
    item = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}
    for stage in stages:
        for n, node in stage.gives.items():
            held[n] = math.prod(bind(node.shape, sizes)) * item[node.dtype]
            total += 0 if held[n] in spare else held[n]
            spare.discard(held[n])
        top = max(top, total)
        later = {n for s in stages[stage.number + 1 :] for n in s.takes}
        for n in held.keys() - later:
            size = held.pop(n)
            total -= size if size in spare else 0
            spare.add(size)
    return streams * top


def _file(path: str, shape: tuple[int, ...], dtype: str) -> AnyArray:
    """An array in a new file, for which the disk gives all room now: where it has none later, writing kills."""
    nbytes = int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize
    with failures_of(path):
        with open(path, "wb") as file:
            file.truncate(nbytes)
            if nbytes and hasattr(os, "posix_fallocate"):
                _take(file.fileno(), nbytes)
        return np.memmap(path, DTYPES[dtype], "r+", shape=shape)


def _take(fd: int, nbytes: int) -> None:
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # file systems that can't promise room
            raise
