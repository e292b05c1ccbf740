"""What comparisons with other people's code share: folders, experts as linear layers, a method's tokens, divergence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import octavo
import results_file
from octavo.calibrate.schemes.scheme_method import samples_of
from octavo.evals import divergence
from octavo.evals.eval_model import open_subject
from octavo.formats import dequantize
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.huggingface.config.config_out import config_json
from octavo.huggingface.tensors.tensor_names import as_checkpoint, checkpoint_name, of_expert
from octavo.huggingface.tokenizer.tokenizer_out import tokenizer_files
from octavo.io.safetensors import SafetensorsFile, TensorHead, write_safetensors
from octavo.models import ModelSpec, read_model
from texts import tokens_of

CONTEXT = 512
"""Tokens of a window, of calibration and of what is measured on."""
SAME = 1e-5
"""Of the largest logit, how far logits may be from each other where nothing but the order of sums is another."""


def write_folder(source: str, folder: Path) -> Path:
    """A model's floats as a checkpoint folder of float32, which libraries of torch read."""
    with open_model_file(source) as file:
        return write_floats(read_model(file), folder)


def write_floats(model: ModelSpec, folder: Path) -> Path:
    """The same of a model that is open."""
    folder.mkdir(parents=True)
    values = dict(_floats(model))
    heads = [TensorHead(name, "F32", x.shape) for name, x in values.items()]
    write_safetensors(folder / "model.safetensors", heads, values.values())
    for name, made in ({"config.json": config_json(model)} | tokenizer_files(model.file)).items():
        (folder / name).write_text(json.dumps(made), encoding="utf-8")
    return folder


def _floats(model: ModelSpec) -> Iterator[tuple[str, F32]]:
    """Tensors by the names that a checkpoint has for them, those of each expert apart."""
    for name in model.file.tensors:
        mine = checkpoint_name(name, model.architecture)
        if mine is None:
            continue
        values = dequantize(as_checkpoint(model.file.tensor(name, copy=True), model))
        if "*" in mine:
            yield from ((of_expert(mine, i), x) for i, x in enumerate(values))
        else:
            yield mine, values


def of_all_experts(module: str) -> str:
    """The name that a linear layer of an expert shares with those of the others, * for the number; others' as it is."""
    return re.sub(r"\.experts\.\d+\.", ".experts.*.", module)


class Expert(torch.nn.Module):
    """An expert with SwiGLU, or another gate, as linear layers.

    gate_up [2 N, K], the gate's rows first; down [K, N]
    """

    def __init__(self, gate_up: Tensor, down: Tensor, activation: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = map(_linear, gate_up.chunk(2))
        self.down_proj, self.activation = _linear(down), activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return found


class Experts(torch.nn.ModuleList):
    """Experts that are each given the tokens which were sent to them, and nothing where there are none."""

    def forward(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """x [tokens, K], and the experts of each token and their shares [tokens, used] -> [tokens, K]."""
        out = torch.zeros_like(x)
        for i, expert in enumerate(self):
            tokens, place = torch.where(chosen == i)
            if len(tokens):
                out.index_add_(0, tokens, expert(x[tokens]) * shares[tokens, place, None])
        return out


def _linear(weight: Tensor) -> torch.nn.Linear:
    made = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
    return made


def experts_apart(model: torch.nn.Module) -> torch.nn.Module:
    """The model with linear layers for each expert, `N.gate_proj`, where transformers has a tensor of all of them.

    Raises ValueError for experts with biases, or of which rows are columns.
    """
    for name, module in list(model.named_modules()):
        stacked = getattr(module, "gate_up_proj", None)
        if not isinstance(stacked, torch.nn.Parameter):
            continue
        if getattr(module, "has_bias", False) or getattr(module, "is_transposed", False):
            raise ValueError(f"experts {name} have biases, or rows that are columns (allowed: as Qwen3-MoE has them)")
        pairs = zip(stacked, module.down_proj, strict=True)
        model.set_submodule(name, Experts(Expert(gate_up, down, module.act_fn) for gate_up, down in pairs))
    return model


def rounded_layers(folder: Path) -> set[str]:
    """Linear layers of a checkpoint whose weights are packed codes, by their names."""
    files = [SafetensorsFile.open(path) for path in sorted(folder.glob("*.safetensors"))]
    end = ".weight_packed"
    return {name.removesuffix(end) for file in files for name in file.tensors if name.endswith(end)}


def calibration_tokens(source: str, text: str, samples: int) -> list[list[int]]:
    """The tokens that `SchemeMethod(text, samples=samples)` runs the model over."""
    with open_model_file(source) as file:
        return [list(map(int, tokens)) for tokens in samples_of(file, text, samples, None, CONTEXT).tokens]


def kl(made: str | os.PathLike[str], base: str, chunks: int) -> list[float]:
    """Mean divergence of a model from `base` on the text that neither was calibrated with, and its error."""
    with open_subject(made, CONTEXT, device="cpu") as model, open_subject(base, CONTEXT, device="cpu") as whole:
        tokens = tokens_of(whole.tokenizer, "test")
        found = divergence(model, whole, tokens, context=CONTEXT, chunks=chunks).kl
    return [found.value, found.error]


def go_on(path: Path, how: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of a result, and what it says of how they were measured, result by result.

    Raises ValueError where `how` says that this is measured of another model, text or copy of others' code.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    for key, value in how.items():
        if found.get(key) != value:
            raise ValueError(f"{path.name} has {key} {found.get(key)!r} (allowed: {value!r}, as this run)")
    return found["rows"], [*found.get("before", []), {key: found[key] for key in results_file.described()}]


def versions(*names: str) -> dict[str, str]:
    """Versions of packages that are compared with."""
    found = {"octavo": octavo.__version__}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found
