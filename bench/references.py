"""What comparisons with other people's code share: checkpoint folders, the tokens of a method, divergence, versions."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import octavo
from octavo.evals import demo_text, divergence
from octavo.evals.calibration import samples_of
from octavo.evals.subject import open_subject
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.huggingface.config_out import config_json
from octavo.huggingface.names import as_checkpoint, checkpoint_name
from octavo.huggingface.tokenizer_out import tokenizer_files
from octavo.io.safetensors import TensorHead, write_safetensors
from octavo.models import ModelSpec, read_model

CONTEXT = 512
"""Tokens of a window, of calibration and of what is measured on."""


def write_folder(source: str, folder: Path) -> Path:
    """A model's floats as a checkpoint folder of float32, which libraries of torch read."""
    with open_model_file(source) as file:
        return write_floats(read_model(file), folder)


def write_floats(model: ModelSpec, folder: Path) -> Path:
    """The same of a model that is open."""
    import json

    folder.mkdir(parents=True)
    file = model.file
    names = {name: checkpoint_name(name, model.architecture) for name in file.tensors}
    values = {
        mine: dequantize(as_checkpoint(file.tensor(name, copy=True), model))
        for name, mine in names.items() if mine is not None
    }  # fmt: skip
    heads = [TensorHead(name, "F32", x.shape) for name, x in values.items()]
    write_safetensors(folder / "model.safetensors", heads, values.values())
    for name, made in ({"config.json": config_json(model)} | tokenizer_files(file)).items():
        (folder / name).write_text(json.dumps(made), encoding="utf-8")
    return folder


def calibration_tokens(source: str, samples: int) -> list[list[int]]:
    """The tokens that `SchemeMethod("demo", samples=samples)` runs the model over."""
    with open_model_file(source) as file:
        return [list(map(int, tokens)) for tokens in samples_of(file, "demo", samples, None, CONTEXT).tokens]


def kl(made: str | os.PathLike[str], base: str, chunks: int) -> list[float]:
    """Mean divergence of a model from `base` on questions that neither was calibrated with, and its error."""
    with open_subject(made, CONTEXT, device="cpu") as model, open_subject(base, CONTEXT, device="cpu") as whole:
        tokens = demo_text(whole.tokenizer, "test").tokens
        found = divergence(model, whole, tokens, context=CONTEXT, chunks=chunks).kl
    return [found.value, found.error]


def versions(*names: str) -> dict[str, str]:
    """Versions of packages that are compared with."""
    found = {"octavo": octavo.__version__}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found
