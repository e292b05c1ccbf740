"""CheckpointFile: a checkpoint folder, read as the GGUF file that it would be converted to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Self

from octavo.errors import FileError, ModelError, shown
from octavo.formats import BlockFormat, DeferredQTensor, QTensor
from octavo.formats.spec import F32
from octavo.huggingface.folder import Folder, read_folder
from octavo.huggingface.layouts.kv_scales import cache_magnitudes, is_kv_scale, kv_scale
from octavo.huggingface.layouts.layout_table import has_cache_scales, layout_name
from octavo.io.gguf import GGUFFile, LazyTensor, PlainMetadata, TensorInfo


@dataclass(frozen=True, slots=True)
class CheckpointTensor(TensorInfo):
    """A tensor that may be made of several of the folder's, so its offset says nothing; `load` makes it.

    parts  as of LazyTensor
    """

    format: BlockFormat
    load: Callable[[], QTensor]
    parts: Callable[[], QTensor] | None

    @property
    def type_name(self) -> str:
        """Name of the format, as in "BF16" or "INT8"."""
        return self.format.name


class CheckpointFile(GGUFFile):
    """A folder of safetensors with its tokenizer. `version` and `alignment` are 0; `folder` is what was read.

    A tensor is read from its files whenever its data are asked for; `copy` reads it now.
    """

    def __init__(self, path: str, folder: Folder) -> None:
        self.path, self.version, self.alignment, self.folder = path, 0, 0, folder
        self.metadata = PlainMetadata(path, {"general.architecture": folder.hparams.arch, **folder.metadata})
        self.tensors = {t.name: _info(t, path) for t in folder.tensors}
        self._sources = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a folder. Raises what `read_folder` raises."""
        return cls(os.fsdecode(path), read_folder(path))

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files with tensors."""
        return tuple(dict.fromkeys(tensor.file for tensor in self.folder.checkpoint.tensors.values()))

    @property
    def layout(self) -> str | None:
        """How quantized weights lie in the folder, as in "gptq"; None where there are none."""
        return layout_name(self.folder.checkpoint, self.folder.config)

    @property
    def head_fault(self) -> ModelError | None:
        return self.folder.head_fault

    def kv_scales(self) -> dict[str, F32]:
        """Scales that the folder has for caches of 8 bits, by its own names; none where they belong to no layout."""
        if not has_cache_scales(self.folder.checkpoint, self.folder.config):
            return {}
        tensors = self.folder.checkpoint.tensors.values()
        return {tensor.name: kv_scale(tensor) for tensor in tensors if is_kv_scale(tensor.name)}

    def cache_magnitudes(self) -> dict[str, F32]:
        """What these scales say of keys and values."""
        return cache_magnitudes(self.kv_scales(), self.folder.config.values, self.path)

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        """The tensor called `name`. Raises FileError where there is none, or where its file was changed."""
        info = self.tensors.get(name)
        if not isinstance(info, CheckpointTensor):
            allowed = f"one of its {len(self.tensors)} tensors"
            raise FileError(f"no tensor {shown(name)}", file=self.path, allowed=allowed)
        tensor = DeferredQTensor(info.format, info.shape, info.load, name, info.parts)
        return QTensor(info.format, info.shape, tensor.data, name) if copy else tensor


def _info(tensor: LazyTensor, path: str) -> CheckpointTensor:
    nbytes = prod(tensor.shape[:-1]) * tensor.format.row_bytes(tensor.shape[-1])
    number = -1 if tensor.format.gguf is None else tensor.format.gguf
    made = tensor.format, tensor.load, tensor.parts
    return CheckpointTensor(tensor.name, tensor.shape, number, 0, nbytes, path, *made)
