"""What the backend loads a model's weights through: from its file in the cache, or into it as they are packed."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from octavo.backends.cpu.device.large_pages import Room
from octavo.backends.cpu.matmul.w8a8.row_scales import TiledRowWeight
from octavo.backends.cpu.packed import cache_folder
from octavo.backends.cpu.packed.cache_file import CacheFile, CacheWriter, DamagedError, Region
from octavo.backends.cpu.weights.layout import TiledLayout
from octavo.backends.cpu.weights.pack import TiledFloatWeight, TiledWeight
from octavo.errors import FileError
from octavo.formats import QTensor
from octavo.formats.part import TensorPart
from octavo.formats.qtensor import DeferredQTensor, PlacedQTensor
from octavo.graph.protocol import WeightSource
from octavo.io.atomic import replace_file
from octavo.io.file_identity import Identity
from octavo.jit import host_cpu

log = logging.getLogger("octavo")

LEAST = 16 << 20
"""Bytes of weights that are worth a file: fewer are packed in less than a tenth of a second."""

Pack = Callable[[QTensor, Room], Any]
WEIGHTS = {kind.__name__: kind for kind in (TiledWeight, TiledFloatWeight, TiledRowWeight)}
ARRAY = "array"


class Store(Protocol):
    """Loads the weights of one model."""

    nbytes: int
    """Bytes of weights that lie in the page cache, which the system takes back when it needs memory."""

    def load(self, tensor: QTensor, pack: Pack, memory: Room) -> Any:
        """A weight, which `pack` makes if need be, in `memory` where it is not kept."""

    def close(self) -> None:
        """All weights are loaded, or none will be."""


def open_store(source: WeightSource, tensors: Sequence[QTensor], size_of: Callable[[QTensor], int]) -> Store | None:
    """The store for these tensors of a model; None where they are few, or can't be kept, which is told at -v."""
    counts = Counter(key for t in tensors if (key := _key(t, source)))
    kept = {key: t for t in tensors if (key := _key(t, source)) and counts[key] == 1}
    expected = sum(map(size_of, kept.values()))
    if expected < LEAST:
        return None
    try:
        more = (*sorted(kept), host_cpu.level(), *sorted(host_cpu.features()))
        identity = Identity.of(source.files, source.code, more)
        path = cache_folder.folder() / f"{identity.name}.weights"
        if not source.keep:
            path.unlink(missing_ok=True)
            return None
        if (found := _opened(path)) is not None:
            cache_folder.touch(path)
            return MappedStore(found, source)
        why_not = cache_folder.why_no_room(_with_margin(expected))
    except (OSError, FileError) as error:
        why_not = _reason(error)
    if why_not:
        log.info(cache_folder.NOT_KEPT, cache_folder.folder(), why_not)
        return None
    return WritingStore(path, source, set(kept), expected, identity)


def _opened(path: Path) -> CacheFile | None:
    """A file of the cache, if it is there and whole; one that is not is removed. Raises OSError."""
    try:
        return CacheFile(str(path))
    except FileNotFoundError:
        return None
    except (DamagedError, ValueError) as error:
        log.info("%s is not used, and packed again: %s", path, error)
        path.unlink(missing_ok=True)
        return None


class MappedStore:
    """Weights of a file that is there."""

    def __init__(self, file: CacheFile, source: WeightSource) -> None:
        self._file, self._source, self.nbytes = file, source, file.nbytes
        self._weights: dict[str, Any] = file.index["weights"]

    def load(self, tensor: QTensor, pack: Pack, memory: Room) -> Any:
        kept = self._weights.get(_key(tensor, self._source))
        if kept is None:
            return pack(tensor, memory)
        if not kept["finite"]:
            memory.tell_not_finite(tensor.name)
        values = {name: self._value(value) for name, value in kept["values"].items()}
        return values[ARRAY] if kept["kind"] == ARRAY else WEIGHTS[kept["kind"]](**values)

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._file.array(value)
        if isinstance(value, dict):
            return TiledLayout(**value | {"table": None if value["table"] is None else tuple(value["table"])})
        return value

    def close(self) -> None:
        return


class _Kept:
    """Room in a file; `finite` is whether all of the last weight's numbers are."""

    def __init__(self, writer: CacheWriter, memory: Room) -> None:
        self._writer, self._memory, self.finite = writer, memory, True

    def region(self, nbytes: int) -> Region:
        return self._writer.region(nbytes)

    def tell_not_finite(self, name: str) -> None:
        self.finite = False
        self._memory.tell_not_finite(name)


class WritingStore:
    """Weights that are packed into a new file, which gets its name when all are in it."""

    def __init__(
        self, path: Path, source: WeightSource, keys: set[str], expected: int, identity: Identity
    ) -> None:
        self._identity = identity
        self._path, self._source, self._keys, self.nbytes = path, source, keys, expected
        self._writer: CacheWriter | None = None
        self._weights: dict[str, Any] = {}
        self._temporary = ExitStack()

    def load(self, tensor: QTensor, pack: Pack, memory: Room) -> Any:
        key = _key(tensor, self._source)
        if key in self._keys:
            try:
                return self._packed(key, tensor, pack, memory)
            except OSError as error:
                self._give_up(_reason(error))
        return pack(tensor, memory)

    def _packed(self, key: str, tensor: QTensor, pack: Pack, memory: Room) -> Any:
        if self._writer is None:
            cache_folder.make_room(_with_margin(self.nbytes))
            new = _in_place(self._path) if sys.platform == "win32" else replace_file(self._path, flush=False)
            self._writer = CacheWriter(self._temporary.enter_context(new))
        room = _Kept(self._writer, memory)
        weight = pack(tensor, room)
        kind = ARRAY if isinstance(weight, np.ndarray) else type(weight).__name__
        values = {ARRAY: weight} if kind == ARRAY else {f.name: getattr(weight, f.name) for f in fields(weight)}
        self._weights[key] = {
            "kind": kind, "finite": room.finite, "values": {name: self._stored(v) for name, v in values.items()},
        }
        return weight

    def _stored(self, value: Any) -> Any:
        assert self._writer is not None
        if isinstance(value, np.ndarray):
            return self._writer.place(value)
        return {f.name: getattr(value, f.name) for f in fields(value)} if isinstance(value, TiledLayout) else value

    def close(self) -> None:
        if self._writer is None:
            return
        if set(self._weights) != self._keys:
            self._give_up("not all of them were packed")
            return
        made_of = {
            "model": os.path.abspath(self._source.label), "files": self._identity.files, "code": self._identity.code,
        }
        try:
            self._writer.finish({**made_of, "weights": self._weights})
            self._writer.close()
            self._temporary.close()
            cache_folder.remove_outdated(made_of)
        except OSError as error:
            self._give_up(_reason(error))

    def _give_up(self, why: str) -> None:
        """Leave no file; what is mapped of it stays until the model is closed."""
        log.info(cache_folder.NOT_KEPT, self._path.parent, why)
        self._keys = set()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        left = OSError(why)
        with suppress(OSError):
            self._temporary.__exit__(OSError, left, None)


@contextmanager
def _in_place(path: Path) -> Iterator[str]:
    """A new file that has its name from the first: Windows neither renames nor removes one that is mapped.

    Until it is whole it has no header, and is not used.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        yield str(path)
    except BaseException:
        with suppress(OSError):  # the next start removes it
            path.unlink()
        raise


def _key(tensor: QTensor, source: WeightSource) -> str:
    """What a weight of the model is called in its file; empty for one that is not read from the model's files."""
    if not isinstance(tensor, DeferredQTensor) or isinstance(tensor, PlacedQTensor) or tensor.name not in source.names:
        return ""
    cut = tensor.cut if isinstance(tensor, TensorPart) else None
    return f"{tensor.name} {tensor.format.name} {list(tensor.shape)} {cut}"


def _with_margin(expected: int) -> int:
    """Bytes that a file may take whose weights are expected to take this many: an index, and scales that are larger."""
    return expected + expected // 16


def _reason(error: OSError | FileError) -> str:
    return str(error) if isinstance(error, FileError) else error.strerror or str(error)
