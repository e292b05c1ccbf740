"""EAGLE-3 heads in folders of safetensors, read as the GGUF files that they would be converted to.

There are two ways to write config.json: that of SpecForge and SGLang, where layers under `eagle_config` are named by
what they give, and that of vLLM's speculators, where layers at the top are named by what they read and the sizes are
under `transformer_layer_config`. Tensors are called alike, but for `midlayer` or `layers.0`. A folder has no tokenizer,
and `d2t` says how far a token's number in the model is beyond its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats import by_name
from octavo.huggingface.checkpoint_file import CheckpointFile
from octavo.huggingface.config.config_json import read_keys
from octavo.huggingface.config.rope_config import rope_tensors
from octavo.huggingface.config.unread import log_unread_keys
from octavo.huggingface.folder import Folder
from octavo.huggingface.tensors.tensors import gguf_tensors
from octavo.io.gguf import LazyTensor, PlainMetadata
from octavo.io.safetensors import Checkpoint, read_json
from octavo.models import Hyperparams
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.conversion import f32_tensor
from octavo.models.shared.eagle3 import BEFORE_FC, BEFORE_RESIDUAL, EAGLE3, LAYERS, NAME, TOKENS, WIDTH
from octavo.models.shared.reader import LIMITS

CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
OTHERS = ("EagleLlamaForCausalLM", "EagleLlamaModel", "MedusaModel", "EagleSpeculator")
"""Classes of heads that are computed otherwise."""
IDS, INNER, DRAFT_VOCABULARY = "eagle_aux_hidden_state_layer_ids", "transformer_layer_config", "draft_vocab_size"
ONLY = {"norm_output": False, "fc_norm": False, "parallel_drafting": False, "logit_scale": 1, "num_local_experts": None,
        "num_experts": None}
"""What heads may say that has no computation here with other values."""


def is_eagle3_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has a head. Raises ModelError for one of a kind that is computed otherwise."""
    config = os.path.join(path, "config.json")
    if not os.path.isfile(config):
        return False
    values = read_json(config)
    found = values.get("architectures")
    name = found[0] if isinstance(found, list) and found else found
    if name in OTHERS:
        raise ModelError(f"is {name}, a head that Octavo can't compute", file=config, field="architectures",
                         allowed=", ".join(CLASSES))
    return name in CLASSES or (name == "LlamaForCausalLM" and DRAFT_VOCABULARY in values)


def open_eagle3_folder(path: str | os.PathLike[str], of: Hyperparams) -> CheckpointFile:
    """The head in a folder, for a model of these sizes.

    Raises FileError for files that are wrong and for pickles, ModelError for what is missing or not understood.
    """
    checkpoint = Checkpoint.open(path)
    whole = Config(checkpoint.config, checkpoint.path("config.json"))
    config = _as_llama(checkpoint, whole)
    vocabulary = config.size("vocab_size", 1 << 24)
    keys = read_keys(config) | _own_keys(whole, config, of)
    metadata = {f"{NAME}.{field}": value for field, value in keys.items()}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, config.width)}
    beside: dict[str, LazyTensor] = {}
    if TOKENS in checkpoint.tensors:
        beside[TOKENS] = _tokens(checkpoint, whole)
        shapes[TOKENS] = beside[TOKENS].shape
    hp = EAGLE3.read(PlainMetadata(config.file, metadata), config.file, shapes)
    numbers = rope_tensors(config, EAGLE3, hp)
    tensors = gguf_tensors(checkpoint, config, EAGLE3, hp, numbers, beside, _in_layers)
    log_unread_keys(checkpoint, whole, config, experts=False)
    return CheckpointFile(os.fsdecode(path), Folder(checkpoint, config, hp, metadata, tensors))


def _as_llama(checkpoint: Checkpoint, whole: Config) -> Config:
    """What config.json says of the layer, as of a Llama of one layer, whose output is there or is the model's."""
    inner = whole.values.get(INNER)
    layer: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    has_output = "lm_head.weight" in checkpoint.tensors
    if not has_output and any(name.endswith("embed_tokens.weight") for name in checkpoint.tensors):
        raise ModelError("is missing beside an embedding", file=checkpoint.folder, field="tensor lm_head.weight")
    return whole.replaced({
        **whole.values, **layer, "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": not has_output,
    })


def _own_keys(whole: Config, config: Config, of: Hyperparams) -> Keys:
    whole.only(ONLY)
    whole.size(DRAFT_VOCABULARY, 1 << 24, 1)
    part = whole.values.get("eagle_config")
    eagle = Config(part if isinstance(part, Mapping) else {}, whole.file, whole.read)
    eagle.only({"use_aux_hidden_state": True, "parallel_drafting": False})
    n = of.n_layer
    target = [2, n // 2, n - 3]
    if (given := eagle.values.get(IDS)) is not None:
        target = [i + 1 for i in _numbers(whole, given)]
    elif (given := whole.values.get(IDS)) is not None:
        target = _numbers(whole, given)
    return {
        LAYERS: target, WIDTH: whole.size(WIDTH, LIMITS["embedding_length"], config.width),
        BEFORE_RESIDUAL: whole.flag(BEFORE_RESIDUAL, default=False),
        BEFORE_FC: whole.flag(BEFORE_FC, default=False) or eagle.flag(BEFORE_FC, default=False),
    }


def _numbers(config: Config, given: object) -> list[int]:
    if not (isinstance(given, list) and given and all(type(i) is int for i in given)):
        raise config.error(IDS, f"is {shown(str(given))[1:-1]}", "a list of layers")
    return given


def _in_layers(name: str) -> str:
    """The layer as other models have theirs."""
    return re.sub(r"^midlayer\.", "layers.0.", name)


def _tokens(checkpoint: Checkpoint, config: Config) -> LazyTensor:
    """The numbers that the model has for the head's tokens."""
    stored = checkpoint.tensors[TOKENS]
    if stored.dtype not in ("I64", "I32") or len(stored.shape) != 1:
        raise ModelError(f"holds {stored.dtype} of shape {list(stored.shape)}", file=checkpoint.folder,
                         field=f"tensor {TOKENS}", allowed="I64, one for each token")
    if (told := config.size(DRAFT_VOCABULARY, 1 << 24, stored.shape[0])) != stored.shape[0]:
        raise config.error(DRAFT_VOCABULARY, f"is {told}, but {TOKENS} has {stored.shape[0]}", str(stored.shape[0]))

    def load() -> Any:
        beyond = stored.array().astype(np.int64)
        return f32_tensor((beyond + np.arange(len(beyond))).astype(np.float32), TOKENS)

    return LazyTensor(TOKENS, by_name("F32"), stored.shape, load)
