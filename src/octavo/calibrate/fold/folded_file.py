"""ChangedFile: a model's file whose tensors are read with changes, so that whatever takes a file takes folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from octavo.calibrate.fold.fold import ChannelFold, FoldPart
from octavo.errors import tensor_label
from octavo.formats import DeferredQTensor, QTensor, by_name, dequantize
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile, TensorInfo

Change = Callable[[F32], F32]
"""What becomes of a tensor's values."""


class TensorChanges:
    """What becomes of a model's tensors, one change after the other; `copied` says of new tensors which they repeat."""

    def __init__(self) -> None:
        self.copied: dict[str, str] = {}
        self._steps: dict[str, list[Change]] = {}

    def add(self, tensor: str, change: Change) -> None:
        self._steps.setdefault(tensor, []).append(change)

    def add_fold(self, fold: ChannelFold, change: Callable[[FoldPart, F32], F32]) -> None:
        """What becomes of each part of a fold."""
        for part in fold.parts:
            self.add(part.tensor, partial(change, part))

    def __contains__(self, tensor: object) -> bool:
        return tensor in self._steps or tensor in self.copied

    def of(self, tensor: str, values: F32) -> F32:
        """A tensor's values, changed."""
        for step in self._steps.get(tensor, ()):
            values = step(values)
        return values


class ChangedFile(GGUFFile):
    """A model's file with `changes`. Tensors that change are F32, made anew whenever their data are asked for;
    that raises NonFiniteError, naming the tensor, where the file's own hold NaN or Inf.

    `file` stays open as long as this one, and is closed with it.
    """

    def __init__(self, file: GGUFFile, changes: TensorChanges) -> None:
        self.path, self.version, self.alignment, self.metadata = file.path, file.version, file.alignment, file.metadata
        self._sources, self._file, self.changes = {}, file, changes
        infos: Mapping[str, TensorInfo] = file.tensors | {
            new: replace(file.tensors[old], name=new) for new, old in changes.copied.items()
        }
        self.tensors = {name: _as_floats(info) if name in changes else info for name, info in infos.items()}

    @property
    def files(self) -> tuple[str, ...]:
        return self._file.files

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        if name not in self.changes:
            return self._file.tensor(name, copy=copy)
        tensor = DeferredQTensor(by_name("F32"), self.tensors[name].shape, partial(self._changed, name), name)
        return self._changed(name) if copy else tensor

    def _changed(self, name: str) -> QTensor:
        values = self.changes.of(name, self._stored(self.changes.copied.get(name, name)))
        data = np.ascontiguousarray(values, np.float32)
        return QTensor(by_name("F32"), data.shape, data.view(np.uint8), name)

    def _stored(self, name: str) -> F32:
        values = dequantize(self._file.tensor(name))
        require_finite(values, tensor_label(name))
        return values

    def close(self) -> None:
        self._file.close()


def _as_floats(info: TensorInfo) -> TensorInfo:
    fmt = by_name("F32")
    assert fmt.gguf is not None
    return TensorInfo(info.name, info.shape, fmt.gguf, info.offset, 4 * info.size, info.file)
