"""What a run is of, as a name: a run goes on from what another has kept only where both have the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256

import numpy as np

from octavo.backends.cores import cores
from octavo.calibrate.runner import Samples
from octavo.huggingface import CheckpointFile
from octavo.huggingface.adapters.adapter import adapter_files
from octavo.huggingface.layouts.layout_table import BESIDE
from octavo.io.digest import files_digest
from octavo.io.gguf import GGUFFile
from octavo.runtime.lora_adapters import Chosen


def run_name(file: GGUFFile, samples: Samples, *options: object, lora: Chosen = ()) -> str:
    """A name of a model's content, of tokens that it is run over, of options, and of adapters that the model has.

    Its parts are digests of the model with its adapters, of the tokens and of the options, see `differing`. Of the
    model all bytes count, and not where they lie or when they were written: a copy has the same name, and a model of
    which one value is another has another. Raises FileError for files that can't be read.
    """
    adapters = [(files_digest(adapter_files(path), 1), scale) for path, scale in lora]
    of = ((model_digest(file), adapters), samples.digest, options)
    return ".".join(sha256(repr(part).encode()).hexdigest()[:32] for part in of)


def model_digest(file: GGUFFile) -> str:
    """A digest of all that a model's files hold; of a folder of its weights and of what it says of them."""
    digest = sha256(files_digest(file.files, cores()).encode())
    for part in _said(file) if isinstance(file, CheckpointFile) else ():
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def _said(file: CheckpointFile) -> Iterator[str]:
    """What a folder has in its configurations and its tokenizer."""
    checkpoint = file.folder.checkpoint
    for values in (checkpoint.config, *map(checkpoint.json, BESIDE)):
        yield json.dumps(values, sort_keys=True)
    for key in file.metadata:
        if key != "general.name":  # of the folder
            value = file.metadata.typed(key).value
            yield f"{key} {value.tolist() if isinstance(value, np.ndarray) else value!r}"
