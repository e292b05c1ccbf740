"""Gemma 3n beyond the table: layers without caches, folders with pictures, what files leave unsaid, and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError, OctavoError
from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.quantizers import quantize_file
from tests.convert.folders import edit
from tests.models.table import TOKENS, Model, error, logits, made_in, saved
from tests.models.tiny_checkpoints import TABLE

FEW = TOKENS[:24]
NAME = "gemma3n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with made_in(tmp_path_factory.mktemp(NAME)) as made:
        yield made[NAME]


class Rewriter:
    """Writes a file with other keys (None: without) and more tensors, and opens it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack

    def __call__(self, file: GGUFFile, keys: dict[str, Any], **tensors: np.ndarray) -> GGUFFile:
        stored: dict[str, QTensor] = {n: file.tensor(n, copy=True) for n in file.tensors}
        stored |= {n: quantize_reference(x, by_name("F32"), n) for n, x in tensors.items()}
        metadata = {key: file.metadata.typed(key) for key in file.metadata if key != "general.architecture"}
        metadata |= {f"{NAME}.{key}": value for key, value in keys.items()}
        path = self.folder / f"{len(list(self.folder.iterdir()))}.gguf"
        write_gguf(path, NAME, {k: v for k, v in metadata.items() if v is not None}, stored)
        return self.stack.enter_context(GGUFFile.open(path))


@pytest.fixture
def rewritten(tmp_path: Path) -> Iterator[Rewriter]:
    with ExitStack() as stack:
        yield Rewriter(tmp_path, stack)


def test_layers_that_read_another_cache_have_none(model: Model) -> None:
    names = {leaf.name for leaf in read_model(model.file).graph().leaves("cache")}
    assert names == {f"blk.{i}.cache_{kind}" for i in range(3) for kind in "kv"}


def test_projections_of_keys_that_are_not_used(model: Model, rewritten: Rewriter) -> None:
    """Published checkpoints and files have them."""
    unused = {f"blk.3.attn_{part}.weight": np.ones((64, 128), np.float32) for part in "kv"}
    file = rewritten(model.file, {}, **unused, **{"blk.5.attn_k_norm.weight": np.ones(64, np.float32)})
    assert error(logits(file, ReferenceBackend(), FEW, at_once=True), model.want[: len(FEW)]) < 1e-4


def test_what_older_files_do_not_say(model: Model, rewritten: Rewriter) -> None:
    """The cap of logits, which layers have windows, and how many read the cache of another."""
    unsaid = ("final_logit_softcapping", "attention.sliding_window_pattern", "attention.shared_kv_layers")
    own = {f"blk.{i}.attn_{part}.weight": np.ones((64, 128), np.float32) for i in (3, 4, 5) for part in "kv"}
    own |= {f"blk.{i}.attn_k_norm.weight": np.ones(64, np.float32) for i in (3, 4, 5)}
    hp = read_model(rewritten(model.file, dict.fromkeys(unsaid), **own)).hparams
    assert vars(hp)["logit_cap"] == 30.0
    assert vars(hp)["n_reader"] == 0
    assert hp.windowed == (True, True, True, True, False, True)


def test_quantized_files_keep_what_streams_are_made_of(model: Model, tmp_path: Path) -> None:
    quantize_file(model.file.path, tmp_path / "m.gguf", "Q8_0")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        types = {name: file.tensor(name).format.name for name in file.tensors}
        assert types["blk.0.attn_q.weight"] == types["blk.0.inp_gate.weight"] == "Q8_0"
        kept = ("altup_router", "altup_predict_coef", "altup_correct_coef", "laurel_l", "laurel_r")
        assert {types[f"blk.0.{name}.weight"] for name in kept} == {types["altup_proj.weight"]} == {"F32"}


def test_tokens_that_embeddings_for_layers_lack_have_the_first_ones(model: Model) -> None:
    rows = dequantize(model.file.tensor("per_layer_token_embd.weight"))
    assert rows.shape == (320, 6 * 32)
    np.testing.assert_array_equal(rows[256:], np.repeat(rows[:1], 64, axis=0))


def test_folders_with_pictures_and_sounds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As the published ones are laid out, whose class transformers has with another package's pictures only."""
    want = saved(tmp_path, TABLE[NAME])
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors = {name.replace("model.", "model.language_model.", 1): x for name, x in load_file(path).items()}
    others = ("vision_tower.timm_model.conv_stem.conv", "audio_tower.conformer.0.norm", "embed_vision.embedding")
    save_file(tensors | {f"model.{name}.weight": torch.zeros(1) for name in others}, path)
    text = json.loads(config.read_text(encoding="utf-8"))
    whole = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "text_config": text}
    config.write_text(json.dumps(whole), encoding="utf-8")
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4
    assert "text only, without audio_tower (1 tensors), embed_vision (1 tensors), vision_tower (1" in caplog.text


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another stream": ({"altup.active_idx": 1}, "active_idx: is 1 .allowed: 0"),
    "one stream": ({"altup.num_inputs": 1}, "num_inputs: 1 is out of range"),
    "more streams than there are": ({"altup.num_inputs": 5}, "tensor blk.0.altup_router.weight: shape"),
    "a window": ({"attention.sliding_window": None}, "attention.sliding_window: is missing"),
    "spreads": ({"activation_sparsity_scale": [1.0]}, "activation_sparsity_scale: has 1 values"),
    "no numbers": ({"activation_sparsity_scale": [math.nan] * 6}, "activation_sparsity_scale: has 6 values, or some"),
    "no spreads": ({"activation_sparsity_scale": None}, "activation_sparsity_scale.*missing"),
    "no layer to read": ({"attention.shared_kv_layers": 4}, "shared_kv_layers: is 4, which leaves layers without one"),
}


@pytest.mark.parametrize("name", WRONG)
def test_keys_that_are_refused(name: str, model: Model, rewritten: Rewriter) -> None:
    keys, problem = WRONG[name]
    with pytest.raises(OctavoError, match=problem):
        read_model(rewritten(model.file, keys))


WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "another stream": ({"altup_active_idx": 2}, "altup_active_idx: is '2'"),
    "no scale": ({"altup_correct_scale": False}, "altup_correct_scale: is false"),
    "widths": ({"intermediate_size": [96]}, r"intermediate_size: is '\[96\]'"),
    "parts": ({"activation_sparsity_pattern": [1.0] * 6}, "activation_sparsity_pattern: is"),
    "a part for all": ({"activation_sparsity_pattern": 0.5}, "activation_sparsity_pattern: is '0.5'"),
    "streams": ({"altup_num_inputs": 3}, "tensor .*altup_router.weight.: shape"),
}


@pytest.mark.parametrize("name", WORDS)
def test_configurations_that_are_refused(name: str, tmp_path: Path) -> None:
    changes, problem = WORDS[name]
    saved(tmp_path, TABLE[NAME])
    edit(tmp_path, "config.json", **changes)
    with pytest.raises(ModelError, match=problem):
        open_model_file(tmp_path)
