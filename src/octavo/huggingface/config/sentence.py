"""What a sentence-transformers folder says beside its checkpoint: how vectors of tokens become one of a text."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import FileError
from octavo.huggingface.layouts.module_tensors import stored_tensors
from octavo.io.gguf import GGUFFile, LazyTensor
from octavo.io.regular_file import read_bytes
from octavo.io.safetensors import Checkpoint
from octavo.io.safetensors.json_file import parse_object
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.reader import LIMITS
from octavo.text.tokenizer import LOWER, MOST

log = logging.getLogger("octavo")

FILE, SETTINGS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the file of the module that is the model itself, of older versions too."""
MAX_BYTES = 1 << 20
MODES = {"mean_tokens": 1, "mean": 1, "cls_token": 2, "cls": 2, "lasttoken": 3}
"""Numbers of GGUF's `pooling_type`, by what Pooling's configuration calls them."""
OTHER_MODES = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
IDENTITY = "torch.nn.modules.linear.Identity"
KNOWN = "Transformer, Pooling, Dense, Normalize"
PROJECTIONS = (2, 3)
"""Numbers of the projections that GGUF has names for."""

HARMLESS = {
    FILE: {"idx", "name"},
    "Transformer": {"unpad_inputs", "tokenizer_name_or_path"},
    "Pooling": {"word_embedding_dimension", "embedding_dimension"},
    "Dense": {"in_features", "out_features"},
    "Normalize": set(),
    SETTINGS: {"__version__", "similarity_fn_name", "prompts"},
}
"""Keys that change no vector of a text, by file or kind of module."""
READ: dict[str, dict[str, tuple[Any, ...]]] = {
    FILE: {"type": (), "path": (), "kwargs": (None, [], {})},
    "Transformer": {
        "max_seq_length": (), "do_lower_case": (), "transformer_task": (None, "feature-extraction"),
        "module_output_name": (None, "token_embeddings"), "modality_config": (), "processing_kwargs": (None, {}),
        "query_length": (None,), "document_length": (None,), "query_expansion": (None,), "model_args": (None, {}),
        "config_args": (None, {}), "tokenizer_args": (),
    },
    "Pooling": {
        "pooling_mode": (), "include_prompt": (), **{f"pooling_mode_{mode}": () for mode in (*MODES, *OTHER_MODES)},
    },
    "Dense": {
        "bias": (False,), "activation_function": (IDENTITY,), "use_residual": (None, False),
        "module_input_name": (None, "sentence_embedding"), "module_output_name": (None, "sentence_embedding"),
    },
    "Normalize": {
        "p": (2, 2.0), "dim": (1, -1), "eps": (), "module_input_name": (None, "sentence_embedding"),
        "module_output_name": (None, "sentence_embedding"),
    },
    SETTINGS: {"default_prompt_name": (), "model_type": (None, "SentenceTransformer"), "truncate_dim": (None,)},
}
"""Keys that are read, by file or kind of module, and the values that they may have; none for any."""
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
"""What `modality_config` may say of texts; what it says of others does nothing here."""
TOKENIZER_ARGS = {"padding_side", "use_fast", "trust_remote_code", "fix_mistral_regex"}
"""Keys of `tokenizer_args` that change no token of a text."""


@dataclass(frozen=True)
class Sentence:
    """Fields of metadata, those of the tokenizer with their whole keys, and tensors by GGUF name."""

    keys: Keys = field(default_factory=dict)
    words: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, LazyTensor] = field(default_factory=dict)


def read_sentence(checkpoint: Checkpoint) -> Sentence:
    """The modules that a folder lists; nothing where it lists none.

    Raises FileError for a module or a key that is not known, and for one that asks for what has no computation here.
    """
    path = checkpoint.path(FILE)
    modules = _modules(path)
    keys: Keys = {}
    words: dict[str, Any] = {}
    tensors: dict[str, LazyTensor] = {}
    if not modules:
        return Sentence()
    for kind, place in modules:
        folder = checkpoint.path(place)
        if kind == "Transformer":
            words = _words(checkpoint, folder)
        elif kind == "Pooling":
            keys["pooling_type"] = _pooling(os.path.join(folder, "config.json"))
        elif kind == "Dense":
            number = len(tensors) + PROJECTIONS[0]
            if number not in PROJECTIONS:
                raise FileError(f"lists {len(tensors) + 1} projections", file=path, allowed=f"up to {len(PROJECTIONS)}")
            weight = _projection(folder)
            keys |= {f"dense_{number}_feat_{end}": n for end, n in zip(("out", "in"), weight.shape, strict=True)}
            tensors[f"dense_{number}.weight"] = weight
        elif kind == "Normalize":
            _values(os.path.join(folder, "config.json"), kind)
        else:
            raise FileError(f"lists a module {kind[:60]!r}", file=path, allowed=KNOWN)
    _settings(checkpoint.path(SETTINGS))
    return Sentence(keys, words, tensors)


def sentence_files(checkpoint: Checkpoint) -> list[str]:
    """Names of the files of a folder that say so, but for weights; none where it lists no modules."""
    places = [os.path.join(place, "config.json") for _, place in _modules(checkpoint.path(FILE)) if place]
    names = [FILE, SETTINGS, *TRANSFORMER, *places] if places else []
    return [name for name in names if os.path.isfile(checkpoint.path(name))]


def sentence_out(file: GGUFFile) -> dict[str, Any]:
    """What such a folder says of a GGUF file's model, as files by name; none where it does not say how to pool."""
    arch = file.metadata.get_str("general.architecture")
    number = file.metadata.get_int(f"{arch}.pooling_type", default=0)
    mode = next((name for name, n in MODES.items() if n == number), None)
    if mode is None:
        return {}
    width = file.metadata.get_int(f"{arch}.embedding_length")
    words = {"max_seq_length": file.metadata.get(MOST), "do_lower_case": file.metadata.get(LOWER)}
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    return {
        FILE: [
            {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, place) in enumerate(places.items())
        ],
        TRANSFORMER[0]: {name: value for name, value in words.items() if value is not None},
        "1_Pooling/config.json": {"word_embedding_dimension": width, f"pooling_mode_{mode}": True},
    }


def _words(checkpoint: Checkpoint, folder: str) -> dict[str, Any]:
    """Keys of how much of a text counts, and of its case; the tokenizer's own length where no file says."""
    path = next((p for name in TRANSFORMER if os.path.exists(p := os.path.join(folder, name))), "")
    values = _values(path, "Transformer") if path else {}
    text = (_object(values, "modality_config", path) or {"text": TEXT}).get("text")
    if text != TEXT:
        raise FileError(f"modality_config has text {str(text)[:80]}", file=path, allowed=str(TEXT))
    if further := sorted(_object(values, "tokenizer_args", path).keys() - TOKENIZER_ARGS):
        raise FileError(f"tokenizer_args has {further[0][:60]!r}", file=path, allowed=", ".join(sorted(TOKENIZER_ARGS)))
    lower, most = values.get("do_lower_case", False), values.get("max_seq_length")
    if type(lower) is not bool or (most is not None and (type(most) is not int or most < 1)):
        allowed = "do_lower_case true or false, max_seq_length over 0"
        raise FileError(f"says {str(values)[:80]}", file=path, allowed=allowed)
    own = (checkpoint.json("tokenizer_config.json") or {}).get("model_max_length") if most is None else most
    counts = type(own) is int and 0 < own <= LIMITS["context_length"]
    return {MOST: own if counts else LIMITS["context_length"], **({LOWER: True} if lower else {})}


def _settings(path: str) -> None:
    values = _values(path, SETTINGS)
    if (name := values.get("default_prompt_name")) is not None:
        prompts = values.get("prompts")
        prompt = prompts.get(name) if isinstance(prompts, dict) else None
        if prompt:
            log.warning("%s: default_prompt_name: the model wants %r before each text, which is for you to put there",
                        path, str(prompt)[:200])


def _values(path: str, kind: str) -> dict[str, Any]:
    """A file's values; none where it is missing. Raises FileError for a key or a value that has no meaning here."""
    values = parse_object(read_bytes(path, MAX_BYTES), path) if os.path.exists(path) else {}
    _check(values, kind, path)
    return values


def _object(values: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    """An object at a key; null and absent are empty ones."""
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise FileError(f"{key} is {str(found)[:80]}", file=path, allowed="an object")
    return found


def _check(values: Mapping[str, Any], kind: str, path: str) -> None:
    for key, value in values.items():
        if key in HARMLESS[kind]:
            continue
        if key not in READ[kind]:
            known = ", ".join(sorted({*READ[kind], *HARMLESS[kind]}))
            raise FileError(f"has a key {key[:60]!r}", file=path, allowed=known)
        if (allowed := READ[kind][key]) and value not in allowed:
            raise FileError(f"{key} is {str(value)[:80]}", file=path, allowed=" or ".join(map(str, allowed)))


def _modules(path: str) -> list[tuple[str, str]]:
    """Kind and folder of each module that a file lists; none where it is missing. Raises FileError for anything but a
    list of them, and for folders outside."""
    if not os.path.exists(path):
        return []
    modules = parse_object(b'{"modules": ' + read_bytes(path, MAX_BYTES) + b"}", path)["modules"]
    found = []
    for entry in modules if isinstance(modules, list) else [None]:
        kind, place = (entry.get(k) for k in ("type", "path")) if isinstance(entry, dict) else (None, None)
        if not (isinstance(kind, str) and isinstance(place, str) and re.fullmatch(r"[0-9A-Za-z_-]*", place)):
            raise FileError(f"lists {str(entry)[:80]}", file=path, allowed="modules, each with type and path")
        _check(entry or {}, FILE, path)
        found.append((kind.rpartition(".")[2], place))
    return found


def _pooling(path: str) -> int:
    values = parse_object(read_bytes(path, MAX_BYTES), path)
    _check(values, "Pooling", path)
    if values.get("include_prompt") is False:
        log.warning("%s: include_prompt: what a prompt before a text gives counts in its vector here", path)
    named = [k.removeprefix("pooling_mode_") for k, v in values.items() if k.startswith("pooling_mode_") and v is True]
    if isinstance(values.get("pooling_mode"), str):
        named = [values["pooling_mode"]]
    if len(named) != 1 or named[0] not in MODES:
        raise FileError(f"pools by {', '.join(named) or 'nothing'}", file=path, allowed="one of mean, cls, lasttoken")
    return MODES[named[0]]


def _projection(folder: str) -> LazyTensor:
    """The matrix [out, in] of a Dense module."""
    checkpoint = Checkpoint.open(folder)
    path = checkpoint.path("config.json")
    _check({"activation_function": None, **checkpoint.config}, "Dense", path)
    stored = stored_tensors(checkpoint, Config(checkpoint.config, path), lambda name: False)
    if set(stored) != {"linear.weight"} or len(stored["linear.weight"].shape) != 2:
        raise FileError(f"holds {', '.join(stored)[:80]}", file=folder, allowed="linear.weight [out, in]")
    return stored["linear.weight"]
