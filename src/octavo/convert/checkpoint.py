"""A checkpoint folder to a GGUF file: `convert_checkpoint`."""

from __future__ import annotations

import math
import os
from typing import Any

from octavo.convert.config import Config, find_family, read_hyperparams
from octavo.convert.rope import rope_divisors, rope_metadata
from octavo.convert.specials import chat_templates, special_tokens
from octavo.convert.tensors import source_tensors
from octavo.convert.vocab import open_tokenizer, vocabulary
from octavo.io.gguf import TypedValue, ValueType
from octavo.io.safetensors import Checkpoint
from octavo.models.hparams import Hyperparams
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job import Progress, StrPath, plan, require_ready, run
from octavo.quantizers.mixing import Choices
from octavo.quantizers.presets import find_preset
from octavo.quantizers.report import Report
from octavo.quantizers.source import Source, SourceTensor, model_facts

AUTO = "auto"
SAMPLING = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat",
}  # fmt: skip
"""Values of generation_config.json that a model recommends, and the ends of their keys under `general.sampling.`."""


def convert_checkpoint(
    folder: StrPath,
    dst: StrPath,
    preset: str = AUTO,
    *,
    imatrix: StrPath | Imatrix | None = None,
    choices: Choices | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the Hugging Face checkpoint in `folder` as the GGUF file `dst`.

    preset  F16, BF16, F32, Q8_0 or any other of `PRESETS`; "auto" is BF16 for weights stored so, else F16. Vectors and
            routers are F32 in each

    The other arguments, how the file appears, and the errors are those of `quantize_file`; further a TokenizerError for
    a tokenizer, and a ModelError for an architecture, that is not known, and a FileError for pickles.
    """
    weights = imatrix if isinstance(imatrix, Imatrix | None) else Imatrix.load(imatrix)
    source = checkpoint_source(folder)
    require_ready(dst, (os.path.join(source.path, name) for name in os.listdir(source.path)))
    chosen = find_preset(_stored(source.tensors) if preset.lower() == AUTO else preset)
    job = plan(source, chosen, choices or Choices(), weights)
    return run(job, dst, dry_run=dry_run, threads=threads, progress=progress)


def checkpoint_source(folder: StrPath) -> Source:
    """The checkpoint as a source of tensors; nothing but headers and the tokenizer is read."""
    checkpoint = Checkpoint.open(folder)
    config = Config(checkpoint.config, checkpoint.path("config.json"))
    family = find_family(config)
    hp = read_hyperparams(config, family)
    rope = rope_metadata(config, hp)
    tied = config.flag("tie_word_embeddings", False)
    tensors = source_tensors(checkpoint, hp, family, tied=tied, divisors=rope_divisors(config, hp))
    tokenizer = open_tokenizer(checkpoint)
    words = vocabulary(checkpoint, tokenizer, hp.n_vocab)
    metadata = {
        "general.type": "model",
        **_sampling(checkpoint),
        "general.name": os.path.basename(os.path.realpath(checkpoint.folder)) or "model",
        "general.size_label": _size_label(tensors, hp.n_expert),
        **{f"{hp.arch}.{key}": value for key, value in (_sizes(hp) | _prefixed("rope", rope)).items()},
        **words,
        **special_tokens(checkpoint, tokenizer, words["tokenizer.ggml.tokens"]),
        **chat_templates(checkpoint),
    }
    facts = model_facts(hp.arch, hp.n_layer, hp.n_head, hp.n_head_kv, hp.n_expert)
    return Source(checkpoint.folder, hp.arch, metadata, tensors, facts)


def _stored(tensors: tuple[SourceTensor, ...]) -> str:
    """The type of 16 bits that loses least of what is stored."""
    first = next((t.type_name for t in tensors if len(t.shape) > 1), "F16")
    return "BF16" if first == "BF16" else "F16"


def _size_label(tensors: tuple[SourceTensor, ...], experts: int) -> str:
    """The parameters as models are named by them: "1.7B", or "8x7B" where there are experts."""
    from gguf import size_label

    apart = sum(tensor.size for tensor in tensors if "_exps." in tensor.name)
    total = sum(tensor.size for tensor in tensors)
    return str(size_label(total, total - apart, apart // max(1, experts), experts))


def _sizes(hp: Hyperparams) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "block_count": hp.n_layer,
        "context_length": hp.n_ctx_train,
        "embedding_length": hp.n_embd,
        "feed_forward_length": hp.n_ff,
        "attention.head_count": hp.n_head,
        "attention.head_count_kv": hp.n_head_kv,
        "attention.layer_norm_rms_epsilon": hp.eps,
        "attention.key_length": hp.head_dim,
        "attention.value_length": hp.head_dim,
        "vocab_size": hp.n_vocab,
        "rope.dimension_count": hp.rope.dims,
    }
    if hp.n_expert:
        keys |= {"expert_count": hp.n_expert, "expert_used_count": hp.n_expert_used}
    if hp.arch == "qwen3moe":
        keys["expert_feed_forward_length"] = hp.n_ff_expert
    return keys


def _prefixed(prefix: str, keys: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in keys.items()}


def _sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """What generation_config.json recommends; values that are no numbers are left out."""
    config = checkpoint.json("generation_config.json") or {}
    keys: dict[str, Any] = {}
    for name, end in SAMPLING.items():
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        kind = ValueType.I32 if name == "top_k" else ValueType.F32
        keys[f"general.sampling.{end}"] = TypedValue(kind, int(value) if name == "top_k" else float(value))
    return keys
