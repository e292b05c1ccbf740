"""Fold: channels of a model that can be changed together, and a model's file that is read with such changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from octavo.calibrate.fold.region import End, Ints
from octavo.errors import tensor_label
from octavo.formats import DeferredQTensor, QTensor, by_name, dequantize
from octavo.formats.codec import require_finite
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile, TensorInfo

F64 = npt.NDArray[np.float64]
NONE = -1
"""The index of a channel outside of the fold."""
Change = Callable[[F32], F32]
"""What becomes of a tensor's values."""


@dataclass(frozen=True, eq=False)
class FoldPart:
    """What a fold changes of a tensor.

    end    "columns" of a matrix [N, K] or of matrices [E, N, K], their "rows", the weights of a "norm", or another
           "vector"
    index  which channel of the fold each is, or NONE: int [K], [N], [E * K], [E * N], or of a vector's values
    sign   1 where values are multiplied by the channel's scale, -1 where they are divided by it
    """

    tensor: str
    end: End
    index: Ints
    sign: int


@dataclass(frozen=True, eq=False)
class ChannelFold:
    """Channels that can be changed so that a model computes what it did.

    name    of the value whose channels they are: a norm ("blk.0.attn_norm"), a product ("blk.0.ffn_up": up and down),
            what a cache holds ("blk.0.cache_v": v and o; "blk.0.cache_k": q and k), or the embedding ("token_embd")
    size    channels
    parts   what takes the change up: that value is divided by scales, and columns that read it are multiplied
    blocks  int [size]: channels of one block can change places, or be mixed
    """

    name: str
    size: int
    parts: tuple[FoldPart, ...]
    blocks: Ints

    @property
    def readers(self) -> tuple[FoldPart, ...]:
        """Products whose inputs change."""
        return tuple(part for part in self.parts if part.end == "columns")


def scaled(part: FoldPart, scales: F64, values: F32) -> F32:
    """One tensor, its channels multiplied or divided by `scales` float64 [size of the fold]."""
    factors = np.append(scales if part.sign > 0 else 1 / scales, 1.0)[part.index]
    out: F32 = np.empty(values.shape, np.float32)
    np.multiply(values, _over(part, factors, values.shape), out=out, dtype=np.float64, casting="same_kind")
    return out


def reordered(part: FoldPart, order: Ints, values: F32) -> F32:
    """One tensor, the i-th of its channels of the fold replaced by the order[i]-th."""
    places = places_of(part)
    starts = np.searchsorted(part.index[places], np.arange(len(order)))
    rank = np.arange(len(places)) - starts[part.index[places]]
    source = np.arange(len(part.index))
    source[places] = places[starts[order[part.index[places]]] + rank]
    channels = by_channel(part, values)
    return from_channels(part, channels[..., source, :], values.shape)


def places_of(part: FoldPart) -> Ints:
    """The places of a part's channels, by channel; those that stand for one channel in the order in which they lie."""
    order = np.argsort(part.index, kind="stable")
    kept: Ints = order[np.count_nonzero(part.index == NONE) :]
    return kept


def by_channel(part: FoldPart, values: F32) -> F32:
    """A tensor as [..., channels of the part's index, others]."""
    count = len(part.index)
    if part.end == "rows":
        return values.reshape(count, -1)
    if part.end != "columns" or values.ndim < 3:
        return values.reshape(-1, count)[..., None]
    experts, n, k = values.shape
    return np.ascontiguousarray(values.swapaxes(1, 2)).reshape(experts * k, n)


def from_channels(part: FoldPart, channels: F32, shape: tuple[int, ...]) -> F32:
    """The tensor of `shape` of which `by_channel` gave the channels."""
    if part.end == "columns" and len(shape) == 3:
        return np.ascontiguousarray(channels.reshape(shape[0], shape[2], shape[1]).swapaxes(1, 2))
    return np.ascontiguousarray(channels.reshape(shape))


def _over(part: FoldPart, numbers: F64, shape: tuple[int, ...]) -> F64:
    """Numbers of a part's channels so that they broadcast over a tensor of `shape`."""
    if part.end == "rows":
        return numbers.reshape(*shape[:-1], 1)
    if part.end == "columns" and len(shape) == 3:
        return numbers.reshape(shape[0], 1, shape[2])
    return numbers.reshape(shape) if numbers.size == np.prod(shape) else numbers


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
