"""What tokenizer.json's parts may say: a step or a key that is not in these tables is refused by name.

What normalizers and pre-tokenizers do is compared by ids of a probe beside that, and what post-processors do by what
they put around a text; nothing else looks at decoders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.text.vocab import SPACE

Allowed = Mapping[str, tuple[Any, ...]]
"""Values that a key may have; none for any, as it is compared elsewhere or changes neither ids nor text."""

NONE: Allowed = {}
_LEVEL: Allowed = {"add_prefix_space": (), "trim_offsets": (), "use_regex": ()}
_META: Allowed = {
    "replacement": (SPACE,), "add_prefix_space": (), "prepend_scheme": (), "split": (), "str_rep": (SPACE,)
}
_AROUND: Allowed = {"sep": (), "cls": (), "trim_offsets": (), "add_prefix_space": ()}
_BERT: Allowed = {"clean_text": (), "handle_chinese_chars": (), "strip_accents": (), "lowercase": ()}

TOP: Allowed = {
    "version": ("1.0",), "truncation": (), "padding": (), "added_tokens": (), "normalizer": (), "pre_tokenizer": (),
    "post_processor": (), "decoder": (), "model": (),
}
MODELS: Mapping[str, Allowed] = {
    "BPE": {
        "dropout": (None, 0), "continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, ""),
        "unk_token": (), "fuse_unk": (), "byte_fallback": (), "ignore_merges": (), "vocab": (), "merges": (),
    },
    "WordPiece": {"unk_token": (), "continuing_subword_prefix": (), "max_input_chars_per_word": (), "vocab": ()},
    "Unigram": {"unk_id": (), "vocab": (), "byte_fallback": ()},
}
SPACES: tuple[Any, ...] = ({"String": " "}, {"Regex": " {2,}"})
"""What normalizers replace: spaces, and runs of them."""
STEPS: Mapping[str, Mapping[str, Allowed]] = {
    "normalizer": {
        "NFC": NONE, "NFD": NONE, "NFKC": NONE, "NFKD": NONE, "Lowercase": NONE, "StripAccents": NONE, "Nmt": NONE,
        "BertNormalizer": _BERT, "Prepend": {"prepend": ()}, "Replace": {"pattern": SPACES, "content": ()},
        "Precompiled": {"precompiled_charsmap": ()}, "Strip": {"strip_left": (), "strip_right": ()},
    },
    "pre_tokenizer": {
        "ByteLevel": _LEVEL, "Metaspace": _META, "BertPreTokenizer": NONE, "WhitespaceSplit": NONE, "Whitespace": NONE,
        "Split": {"pattern": (), "behavior": (), "invert": ()}, "Digits": {"individual_digits": ()},
        "Punctuation": {"behavior": ()}, "UnicodeScripts": NONE,
    },
    "post_processor": {
        "ByteLevel": _LEVEL, "TemplateProcessing": {"single": (), "pair": (), "special_tokens": ()},
        "BertProcessing": _AROUND, "RobertaProcessing": _AROUND,
    },
    "decoder": {
        "ByteLevel": _LEVEL, "Metaspace": _META, "ByteFallback": NONE, "Fuse": NONE,
        "Replace": {"pattern": ({"String": SPACE},), "content": (" ",)},
        "Strip": {"content": (" ",), "start": (0, 1), "stop": (0,)}, "WordPiece": {"prefix": ("##",), "cleanup": ()},
    },
}
"""Steps by part, and their keys."""
_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


def check_steps(tokenizer: TokenizerJson) -> None:
    """Raises TokenizerError for what tokenizer.json says beyond the tables."""
    _check(tokenizer, "", tokenizer.values, TOP)
    model = tokenizer.values["model"]
    _check(tokenizer, "model", {k: v for k, v in model.items() if k != "type"}, MODELS[str(tokenizer.kind)])
    for part, kinds in STEPS.items():
        for step in _steps(tokenizer.values.get(part)):
            kind = step.get("type")
            if not isinstance(kind, str) or kind not in kinds:
                raise tokenizer.error(part, f"has a step {str(kind)[:40]!r}", ", ".join(kinds))
            _check(tokenizer, f"{part} {kind}", {k: v for k, v in step.items() if k != "type"}, kinds[kind])


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part; those of sequences one after the other."""
    if part is None:
        return
    inner = next((part[name] for name in _LISTS if name in part), None) if isinstance(part, dict) else None
    if inner is None:
        yield part if isinstance(part, dict) else {"type": part}
        return
    for step in inner if isinstance(inner, list) else [inner]:
        yield from _steps(step)


def _check(tokenizer: TokenizerJson, place: str, values: Mapping[str, Any], allowed: Allowed) -> None:
    for key, value in values.items():
        if key not in allowed:
            raise tokenizer.error(place, f"has a key {key[:40]!r}", ", ".join(allowed) or "none")
        if allowed[key] and value not in allowed[key]:
            words = " or ".join(map(str, allowed[key]))
            raise tokenizer.error(place, f"{key} is {str(value)[:60]}", words)
