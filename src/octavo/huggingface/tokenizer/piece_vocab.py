"""A tokenizer.json with a WordPiece or a Unigram model as GGUF's `tokenizer.ggml.*` keys."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.huggingface.tokenizer.added_tokens import AddedToken
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.text.wordpiece import INSIDE, LONGEST_WORD, from_bert

Listed = list[tuple[str, AddedToken | None]]
"""Text and added token by id; an empty text where the tokenizer has no such id."""

NORMAL, UNKNOWN, UNUSED = 1, 2, 5
PAD_SCORE = -10000.0


def word_piece_keys(
    tokenizer: TokenizerJson, listed: Listed, added_type: Callable[[AddedToken], int]
) -> dict[str, Any]:
    """Keys of BERT's kind. Raises TokenizerError for another normalizer or pre-tokenizer than BERT's."""
    model = tokenizer.values["model"]
    for key, allowed in (("continuing_subword_prefix", INSIDE), ("max_input_chars_per_word", LONGEST_WORD)):
        if model.get(key, allowed) != allowed:
            raise tokenizer.error(f"model.{key}", f"is {str(model[key])[:40]!r}", str(allowed))
    normalizer = _only(tokenizer, "normalizer", "BertNormalizer", tokenizer.normalizer_parts())
    _only(tokenizer, "pre_tokenizer", "BertPreTokenizer", tokenizer.pre_tokenizer_parts())
    for key in ("clean_text", "handle_chinese_chars"):
        if normalizer.get(key, True) is not True:
            raise tokenizer.error(f"normalizer.{key}", f"is {str(normalizer[key])[:40]}", "true")
    lower = normalizer.get("lowercase", True) is True
    accents = normalizer.get("strip_accents")
    types = [added_type(added) if added else NORMAL if text else UNUSED for text, added in listed]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [from_bert(t) if t else f"[PAD{i}]" for i, (t, _) in enumerate(listed)],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        **_roles({"bos": "[CLS]", "seperator": "[SEP]", "unknown": tokenizer.unk_token}, listed),
        "tokenizer.ggml.normalizer.lowercase": lower,
        "tokenizer.ggml.normalizer.strip_accents": lower if accents is None else accents is True,
    }


def unigram_keys(tokenizer: TokenizerJson, listed: Listed, added_type: Callable[[AddedToken], int]) -> dict[str, Any]:
    """Keys of SentencePiece's Unigram. Raises TokenizerError for a normalizer that it does not have."""
    if tokenizer.byte_fallback:
        raise tokenizer.error("model.byte_fallback", "is true", "false")
    types, scores = [], []
    for i, (text, added) in enumerate(listed):
        kind = UNKNOWN if text and text == tokenizer.unk_token else added_type(added) if added else NORMAL
        types.append(kind if text else UNUSED)
        scores.append(tokenizer.scores.get(i, 0.0) if text else PAD_SCORE)
    charsmap = _charsmap(tokenizer)
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [t or f"[PAD{i}]" for i, (t, _) in enumerate(listed)],
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        **_roles({"unknown": tokenizer.unk_token}, listed),
        "tokenizer.ggml.add_space_prefix": tokenizer.adds_space(),
        "tokenizer.ggml.remove_extra_whitespaces": _merges_spaces(tokenizer),
        **({"tokenizer.ggml.precompiled_charsmap": np.frombuffer(charsmap, np.uint8)} if charsmap else {}),
    }


def _roles(texts: dict[str, str | None], listed: Listed) -> dict[str, int]:
    ids = {text: i for i, (text, _) in enumerate(listed)}
    return {f"tokenizer.ggml.{role}_token_id": ids[text] for role, text in texts.items() if text in ids}


def _only(tokenizer: TokenizerJson, field: str, kind: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    if len(parts) != 1 or parts[0].get("type") != kind:
        raise tokenizer.error(field, f"is {', '.join(str(p.get('type'))[:40] for p in parts) or 'missing'}", kind)
    return parts[0]


def _charsmap(tokenizer: TokenizerJson) -> bytes:
    """The table of characters; empty where there is none."""
    found = [part for part in tokenizer.normalizer_parts() if part.get("type") == "Precompiled"]
    text = found[0].get("precompiled_charsmap") if len(found) == 1 else None
    if not found or text is None:
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        allowed = "one table, in base64"
        raise tokenizer.error("normalizer.precompiled_charsmap", "is not valid base64", allowed) from None


def _merges_spaces(tokenizer: TokenizerJson) -> bool:
    """Whether of several spaces one is left; what else normalizers do shows when ids are compared."""
    runs = [part.get("pattern") for part in tokenizer.normalizer_parts() if part.get("type") == "Replace"]
    splits = any(part.get("type") == "WhitespaceSplit" for part in tokenizer.pre_tokenizer_parts())
    return splits or {"Regex": " {2,}"} in runs
