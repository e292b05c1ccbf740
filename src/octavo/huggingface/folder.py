"""A checkpoint folder under GGUF's names: metadata, and tensors to be loaded one at a time."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.errors import ModelError
from octavo.huggingface.config.config_json import find_architecture, in_usual_words, read_hyperparams, read_keys
from octavo.huggingface.config.generation_config import sampling_keys
from octavo.huggingface.config.rope_config import rope_tensors
from octavo.huggingface.config.sentence import read_sentence
from octavo.huggingface.config.unread import log_unread_keys
from octavo.huggingface.config.wrapper import log_others, text_name, text_part, wrapper_of
from octavo.huggingface.tensors.next_layers import count_layers, names_behind
from octavo.huggingface.tensors.row_orders import Moved
from octavo.huggingface.tensors.tensors import gguf_tensors, layer_numbers
from octavo.huggingface.tokenizer import world_vocab
from octavo.huggingface.tokenizer.added_tokens import added_beside, flag_keys
from octavo.huggingface.tokenizer.ends import end_keys, listed_ends
from octavo.huggingface.tokenizer.special_tokens import chat_templates, special_tokens
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.huggingface.tokenizer.vocabulary import open_tokenizer, vocabulary
from octavo.io.gguf import LazyTensor
from octavo.io.hub.download_cache import shown_name
from octavo.io.safetensors import Checkpoint
from octavo.models.shared.config import Config
from octavo.models.shared.hparams import Hyperparams
from octavo.text.tokenizer import MOST

log = logging.getLogger("octavo")

RECORD = "octavo_calibration.json"
"""What `octavo quantize --method` writes beside a checkpoint's weights, of what it did to them."""


@dataclass(frozen=True)
class Folder:
    """A checkpoint as GGUF would have it, its config.json, and the sizes that this says.

    moved       what is in another order than checkpoints of its kind have it
    head_fault  why its layers that guess tokens are left out
    """

    checkpoint: Checkpoint
    config: Config
    hparams: Hyperparams
    metadata: dict[str, Any]
    tensors: tuple[LazyTensor, ...]
    moved: Moved = field(default_factory=Moved)
    head_fault: ModelError | None = None


def read_folder(folder: str | os.PathLike[str]) -> Folder:
    """The checkpoint in a folder; nothing but headers and the tokenizer is read. Layers that guess tokens and lie apart
    are left out where they are faulty, which a line in the log tells.

    Raises FileError for files that are wrong and for pickles, ModelError for an architecture, a quantization or tensors
    that are not known or contradict one another, and TokenizerError for a tokenizer that GGUF can't describe.
    """
    checkpoint = Checkpoint.open(folder)
    whole = Config(checkpoint.config, checkpoint.path("config.json"))
    config = in_usual_words(text_part(checkpoint, whole))
    architecture = find_architecture(config)
    named: Callable[[str], str | None] | None = None if wrapper_of(whole) is None else text_name
    if architecture.next_layer is None or not architecture.next_layer.apart:
        return _read(checkpoint, whole, config, named)

    def with_next(count: int) -> Folder:
        own, text = config, names_behind(named or str, architecture, config.n_layer, count)
        if count or config.values.get("num_nextn_predict_layers"):
            own = config.replaced({**config.values, "num_nextn_predict_layers": count})
        return _read(checkpoint, whole, own, text)

    try:
        return with_next(count_layers(filter(None, map(named or str, checkpoint.tensors)), architecture))
    except ModelError as error:
        found, fault = with_next(0), error.of(error.file or checkpoint.folder)
        log.warning("layers that guess tokens are left out: %s", fault)
        return replace(found, head_fault=fault)


def _read(
    checkpoint: Checkpoint, whole: Config, config: Config, named: Callable[[str], str | None] | None
) -> Folder:
    """The checkpoint, of whose tensors those that have a name are read. Raises what `read_folder` raises."""
    architecture, sentence = find_architecture(config), read_sentence(checkpoint)
    keys = read_keys(config) | sentence.keys
    numbers = layer_numbers(checkpoint, architecture, keys["block_count"])
    hp = read_hyperparams(config, keys, numbers)
    constants = rope_tensors(config, architecture, hp)
    moved = Moved()
    tensors = gguf_tensors(checkpoint, config, architecture, hp, constants, sentence.tensors, named, moved)
    tokenizer = open_tokenizer(checkpoint, architecture.vocabulary)
    words = vocabulary(checkpoint, tokenizer, hp.n_vocab, architecture.vocabulary)
    if wrapper_of(whole) is not None:
        log_others(checkpoint)
    log_unread_keys(checkpoint, whole, config, experts=hp.n_expert > 0)
    name = {"general.name": shown_name(checkpoint.folder) or "model"}
    metadata = {
        "general.type": "model",
        **sampling_keys(checkpoint),
        **name,
        "general.size_label": _size_label(tensors, hp.n_expert),
        **{f"{hp.arch}.{field}": value for field, value in keys.items()},
        **numbers,
        **words,
        **sentence.words,
        **({MOST: min(sentence.words[MOST], hp.n_ctx_most)} if MOST in sentence.words else {}),
        **_token_types(tensors),
        **_special(checkpoint, tokenizer, words),
        **_flags(checkpoint, tokenizer, words, {**name, "general.architecture": hp.arch}),
        **chat_templates(checkpoint),
    }
    return Folder(checkpoint, config, hp, metadata, tensors, moved)


def _special(checkpoint: Checkpoint, tokenizer: TokenizerJson | None, words: dict[str, Any]) -> dict[str, Any]:
    """The keys of tokens that have a role, and of tokens that end a reply."""
    roles = special_tokens(checkpoint, tokenizer, words["tokenizer.ggml.tokens"])
    if words["tokenizer.ggml.model"] == world_vocab.MODEL:
        return roles | world_vocab.ENDS
    return roles | end_keys(listed_ends(checkpoint, words | roles), words | roles)


def _flags(
    checkpoint: Checkpoint, tokenizer: TokenizerJson | None, words: dict[str, Any], named: dict[str, Any]
) -> dict[str, Any]:
    """The keys of what belongs to added tokens."""
    if tokenizer is None:
        return flag_keys(added_beside(checkpoint, {}, {}), words, named, str)
    return flag_keys(tokenizer.added, words, named, tokenizer.normalized)


def _size_label(tensors: tuple[LazyTensor, ...], experts: int) -> str:
    """The parameters as models are named by them: "1.7B", or "8x7B" where there are experts."""
    from gguf import size_label

    apart = sum(math.prod(tensor.shape) for tensor in tensors if "_exps." in tensor.name)
    total = sum(math.prod(tensor.shape) for tensor in tensors)
    return str(size_label(total, total - apart, apart // max(1, experts), experts))


def _token_types(tensors: tuple[LazyTensor, ...]) -> dict[str, Any]:
    """How many kinds of tokens there are vectors for, which llama.cpp wants to know."""
    count = next((t.shape[0] for t in tensors if t.name == "token_types.weight"), None)
    return {} if count is None else {"tokenizer.ggml.token_type_count": count}
