"""Models of the table of architectures and devices: a checkpoint folder, its GGUF file, and what is to come out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from octavo.convert import convert_checkpoint
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.convert.folders import byte_level, save
from tests.models.checkpoints import Case
from tests.models.published_layouts import remake
from tests.models.tiny_checkpoints import TABLE

TOKENS = np.random.default_rng(7).integers(0, 256, 90).tolist()
TOKENIZER = byte_level()
PLAIN = (
    ".bias", "ffn_gate_inp.weight", "token_types.weight", "conv.weight", "conv1d.weight", "_coef.weight", "ssm_a",
    "ssm_d", "ssm_norm.weight", "ffn_down_chexps.weight", "ssm_f_b.weight", "ssm_g_b.weight",
    *(f"conv1d_{n}.weight" for n in "qkv"), *(f"attn_{n}_norm.weight" for n in "qk"),
    "lerp_fused.weight", *(f"time_mix_{n}{i}.weight" for n in "wavg" for i in (1, 2)), "time_mix_first.weight",
    *(f"time_mix_decay_w{i}.weight" for i in (1, 2)),
)
"""Ends of names of matrices that no product quantizes, or whose rows are shorter than blocks of 256."""


@dataclass
class Model:
    """A checkpoint, the GGUF file that is made of it, and what transformers computes."""

    folder: GGUFFile
    file: GGUFFile
    want: F32


class Models:
    """The models of the table, each made when it is first asked for."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack = root, stack
        self._made: dict[str, Model] = {}

    def __getitem__(self, name: str) -> Model:
        if name not in self._made:
            folder, path = self.root / name, self.root / f"{name}.gguf"
            want = saved(folder, TABLE[name])
            convert_checkpoint(folder, path, "F32")
            opened = open_model_file(folder), GGUFFile.open(path)
            self._made[name] = Model(*map(self.stack.enter_context, opened), want)
        return self._made[name]


KEPT = 8
"""Checkpoints that are copied where they are wanted again, as in tests of what an architecture refuses."""


@cache
def _saved_before() -> tuple[TemporaryDirectory[str], dict[str, Any]]:
    """A folder with checkpoints of cases that were saved, and the models of the latest ones."""
    return TemporaryDirectory(), {}


def save_only(folder: Path, case: Case) -> Any:
    """Save a checkpoint of a case; gives the model of transformers, which has computed nothing yet."""
    (root, models), key = _saved_before(), repr(case)
    made = Path(root.name, sha256(key.encode()).hexdigest())
    if key not in models:
        if len(models) == KEPT:
            models.pop(next(iter(models)))
        models[key] = save(made, case, tokenizer=TOKENIZER)
        remake(made, case.folder or case.arch)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return models[key]


def saved(folder: Path, case: Case) -> F32:
    """Save a checkpoint of a case; gives the logits that transformers computes of it."""
    model = save_only(folder, case)
    with torch.no_grad():
        want: F32 = model(torch.tensor([TOKENS])).logits[0].numpy()
    return want


@contextmanager
def made_in(folder: Path) -> Iterator[Models]:
    """Models made in a folder, whose files are open until the end."""
    with ExitStack() as stack:
        yield Models(folder, stack)


def in_format(file: GGUFFile, path: Path, format_name: str) -> tuple[Path, Path]:
    """Files of the model with every matrix in a format, and with what these come to, in F32."""
    fmt = by_name(format_name)
    stored, values = {}, {}
    architecture = file.metadata.get_str("general.architecture")
    plain = PLAIN + (("ssm_dt.weight",) if architecture == "plamo2" else ())
    for name in file.tensors:
        tensor = file.tensor(name)
        is_matrix = len(tensor.shape) > 1 and not name.endswith(plain)
        stored[name] = quantize_reference(dequantize(tensor), fmt, name) if is_matrix else tensor
        values[name] = dequantize(stored[name])
    metadata = {key: file.metadata[key] for key in file.metadata if key != "general.architecture"}
    paths = path.with_suffix(f".{format_name}.gguf"), path.with_suffix(".values.gguf")
    for where, tensors in zip(paths, (stored, values), strict=True):
        write_gguf(where, architecture, metadata, tensors)
    return paths


def logits(file: GGUFFile, backend: Backend, tokens: list[int], *, at_once: bool) -> F32:
    config = EngineConfig(n_ctx=128, cache_type="f32", strict=True)
    engine = Engine(read_model(file), [backend], config)
    if at_once:
        return engine.logits(tokens)
    sequence = Sequence()
    return np.stack([engine.step([Feed(sequence, [token])])[0] for token in tokens])


def error(got: F32, want: F32) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())
