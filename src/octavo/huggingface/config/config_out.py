"""A model's hyperparameters as config.json: the inverse of `config` and `rope`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.errors import ModelError
from octavo.huggingface.config.generation_config import SAMPLING
from octavo.huggingface.tokenizer.ends import EOM, EOS, EOT, KEY
from octavo.io.gguf import GGUFFile
from octavo.models import ModelSpec
from octavo.models.shared.rope import Rope
from octavo.text.specials import ENDS

DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def config_json(model: ModelSpec) -> dict[str, Any]:
    """config.json of a model in a GGUF file, without `quantization_config`.

    Raises ModelError for an architecture or a rope that config.json has no exact words for, and for a window.
    """
    file, architecture, hp = model.file, model.architecture, model.hparams
    if architecture.written is None:
        problem = f"is {hp.arch}, of which no checkpoint is made from a GGUF file"
        raise ModelError(problem, file=file.path, field="general.architecture", allowed="the checkpoint itself")
    if hp.n_window:
        problem = f"has a sliding window of {hp.n_window} tokens, with which no config.json is written"
        raise ModelError(problem, file=file.path, field="attention.sliding_window", allowed="the checkpoint itself")
    stored = file.tensors["token_embd.weight"].type_name
    config: dict[str, Any] = {
        "architectures": [next(iter(architecture.classes))],
        "model_type": hp.arch,
        "hidden_size": hp.n_embd,
        "intermediate_size": hp.n_ff,
        "num_hidden_layers": hp.n_layer,
        "num_attention_heads": hp.n_head,
        "num_key_value_heads": hp.n_head_kv,
        "head_dim": hp.head_dim,
        "vocab_size": hp.n_vocab,
        "max_position_embeddings": hp.n_ctx_train,
        "rms_norm_eps": _short(hp.eps),
        "hidden_act": architecture.activation,
        **_biases(file, hp.n_layer, architecture.written.biases),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": DTYPES.get(stored, "float16"),
        **_rope(file, hp.rope, hp.head_dim),
        **architecture.written.config(hp),
    }
    for role in ("bos", "eos"):
        number = file.metadata.get_int(f"tokenizer.ggml.{role}_token_id", None)
        if number is not None:
            config[f"{role}_token_id"] = number
    return config


def generation_config(file: GGUFFile) -> dict[str, Any]:
    """generation_config.json: the sampling that the file recommends, and its ends of a reply if there are several."""
    keys = {name: f"general.sampling.{end}" for name, end in SAMPLING.items()}
    found = {name: _short(file.metadata[key]) for name, key in keys.items() if key in file.metadata}
    found |= {"do_sample": False} if found.get("temperature") == 0 else {}
    named = [file.metadata.get_int(key, None) for key in (EOS, EOT, EOM)]
    listed = file.metadata.get_ints(ENDS, None)
    ends = dict.fromkeys([*(i for i in named if i is not None), *([] if listed is None else listed.tolist())])
    return found | ({KEY: list(ends)} if len(ends) > 1 else {})


def _biases(file: GGUFFile, n_layer: int, words: Mapping[str, tuple[str, ...]]) -> dict[str, bool]:
    """Which linear layers have biases. Raises ModelError where not all of those do that go by one name there."""
    found = {}
    for word, parts in words.items():
        names = [f"blk.{i}.{part}.bias" for i in range(n_layer) for part in parts]
        missing = [name for name in names if name not in file.tensors]
        if missing and len(missing) < len(names):
            problem = f"is missing, and {word} of a config.json stands for the biases of {', '.join(parts)}"
            raise ModelError(problem, file=file.path, field=f"tensor {missing[0]}")
        found[word] = not missing
    return found


def _rope(file: GGUFFile, rope: Rope, head_dim: int) -> dict[str, Any]:
    kept = rope.dims == head_dim and rope.attention_factor == 1 and "rope_freqs.weight" not in file.tensors
    if not kept or rope.kind not in ("none", "linear", "yarn"):
        problem = "turns frequencies in a way that config.json has no exact words for"
        raise ModelError(problem, file=file.path, field="rope", allowed="none, linear, yarn; or the checkpoint itself")
    scaling: dict[str, Any] | None = None
    if rope.kind != "none":
        scaling = {"rope_type": rope.kind, "factor": _short(rope.factor)}
    if rope.kind == "yarn":
        assert scaling is not None
        scaling["original_max_position_embeddings"] = rope.n_ctx_original
        betas = {"beta_fast": (rope.beta_fast, 32), "beta_slow": (rope.beta_slow, 1)}
        scaling |= {name: _short(value) for name, (value, usual) in betas.items() if value != usual}
    return {"rope_theta": _short(rope.base), "rope_scaling": scaling}


def _short(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-06, not 9.999999974752427e-07."""
    return value if isinstance(value, int) else float(str(np.float32(value)))
