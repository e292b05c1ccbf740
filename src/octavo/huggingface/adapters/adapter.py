"""Adapters, whatever they are: GGUF files and PEFT folders."""

from __future__ import annotations

import os
from dataclasses import replace

from octavo.errors import FileError, ModelError
from octavo.huggingface.adapters.lora_file import read_adapter
from octavo.huggingface.folder import RECORD
from octavo.io.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from octavo.io.gguf import GGUFFile
from octavo.io.missing_model import require_there
from octavo.models import ModelSpec
from octavo.models.shared.lora import Adapter
from octavo.models.shared.reader import brief


def adapter_files(path: str | os.PathLike[str]) -> list[str]:
    """The files of an adapter: its GGUF file, or those of its folder."""
    name = os.fsdecode(path)
    return [os.path.join(name, file) for file in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)] if os.path.isdir(name) else [name]


def open_adapter(path: str | os.PathLike[str], model: ModelSpec) -> Adapter:
    """The adapter in a GGUF file or a PEFT folder, as what it adds to a model's weights.

    Raises FileError for what is neither and for what is not there, and ModelError for one of another kind or of another
    model.
    """
    require_there(path)
    if not os.path.isdir(path):
        if os.path.basename(path) in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
            raise FileError("is a file of a PEFT folder: give the folder that it lies in", file=os.fspath(path))
        with GGUFFile.open(path) as file:  # tensors can be read after it is closed
            adapter = read_adapter(file, model.architecture.name)
    else:
        from octavo.huggingface.adapters.peft import read_peft
        from octavo.huggingface.adapters.peft_tensors import peft_adapter

        adapter = peft_adapter(read_peft(path), model)
    return adapter if model.file.version else _for_folder(adapter, model)


def _for_folder(adapter: Adapter, model: ModelSpec) -> Adapter:
    """The adapter with rows and columns in the order in which a folder's weights are read.

    Raises ModelError where `octavo quantize` changed these weights in a way that an adapter does not know of.
    """
    from octavo.huggingface.checkpoint_file import CheckpointFile

    file = model.file
    if not isinstance(file, CheckpointFile):
        return adapter
    record = file.folder.checkpoint.json(RECORD) or {}
    if record.get("rotate") or record.get("scales"):
        how = "rotated" if record.get("rotate") else f"multiplied by scales of channels ({brief(record.get('method'))})"
        allowed = "the checkpoint that it was made of, or `octavo convert --lora` of that before"
        raise ModelError(f"is for weights that were not {how}", file=adapter.path, allowed=allowed)
    moved = file.folder.moved
    return replace(adapter, parts={name: moved.follow(name, part) for name, part in adapter.parts.items()})
