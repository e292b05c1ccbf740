"""Tokens that text is cut at before anything else, and what of the text beside them belongs to them.

GGUF has no keys for that, and llama.cpp goes by the names of models. Octavo writes keys, of the ids that have a
property of the `tokenizers` package's AddedToken; where a file has one of them, names count for nothing. -1 is
no token, for a list that would be empty, which GGUF files do not have.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping

from octavo.text.fields import Fields
from octavo.text.partition import SpecialToken
from octavo.text.vocab import SPACE, TokenKind, Vocab
from octavo.text.wordpiece import LOWERCASE, STRIP_ACCENTS

FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
KEYS = {flag: f"tokenizer.ggml.added_tokens.{flag}" for flag in FLAGS}
MATCHED = TokenKind.CONTROL | TokenKind.UNKNOWN | TokenKind.USER_DEFINED

_MASK_STRIPS = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_PHI3_KEEPS = ("<unk>", "<s>", "<|endoftext|>")
MODEL, PRE, SPACE_PREFIX = (f"tokenizer.ggml.{name}" for name in ("model", "pre", "add_space_prefix"))


def token_flags(fields: Fields, vocab: Vocab) -> Mapping[str, Collection[int]]:
    """Ids by flag: those that the file lists, or those that llama.cpp finds by the name of the model."""
    if not any(key in fields for key in KEYS.values()):
        return flags_by_name(fields, vocab)
    found = {flag: frozenset(fields.integers(key)) - {-1} for flag, key in KEYS.items()}
    for flag, ids in found.items():
        if wrong := [i for i in ids if not 0 <= i < len(vocab)]:
            raise fields.fault(KEYS[flag], f"token {wrong[0]} is not in the vocabulary", f"0 to {len(vocab) - 1}")
    return found


def flags_by_name(fields: Fields, vocab: Vocab) -> dict[str, frozenset[int]]:
    """What llama.cpp takes of the names of a model and its tokenizer."""
    model, pre, arch = ((fields.text(k) or "").lower() for k in ("general.name", PRE, "general.architecture"))
    masks = {"<mask>"} if arch == "nomic-bert-moe" or any(name in pre for name in _MASK_STRIPS) else set()
    masks |= {"[MASK]"} if "modern-bert" in model else set()
    strips = any(name in model for name in ("phi-3", "phi3"))
    ids = vocab.of_kind(MATCHED)
    return {
        "lstrip": frozenset(i for i in ids if vocab.texts[i] in masks),
        "rstrip": frozenset(i for i in ids if strips and vocab.texts[i] not in _PHI3_KEEPS),
        "single_word": frozenset(),
        "normalized": frozenset(),
    }


def added_tokens(fields: Fields, vocab: Vocab, guarded: Collection[int]) -> list[SpecialToken]:
    """The tokens that text is cut at; user-defined ones count in plain text, too."""
    flags = token_flags(fields, vocab)
    fold = _fold(fields) if flags["normalized"] else None
    prefixed = fields.text(MODEL) == "llama" and fields.flag(SPACE_PREFIX) is not False
    found = []
    for i in vocab.of_kind(MATCHED):
        text, normalized = vocab.texts[i], i in flags["normalized"]
        if fields.text(MODEL) == "bert":
            text = text.removeprefix(SPACE)
        found.append(SpecialToken(
            i, text, lstrip=i in flags["lstrip"], rstrip=i in flags["rstrip"], single_word=i in flags["single_word"],
            guarded=i in guarded, late=normalized, fold=fold if normalized else None,
            after_space=normalized and prefixed,
        ))
    return found


def _fold(fields: Fields) -> Callable[[str], str] | None:
    """What BERT makes of each character before it looks for a token, as far as it is one character again."""
    if fields.text(MODEL) != "bert" or fields.flag(LOWERCASE) is False:
        return None
    strips = fields.flag(STRIP_ACCENTS) is not False

    def folded(c: str) -> str:
        base = unicodedata.normalize("NFD", c)[0] if strips and not "\uac00" <= c <= "\ud7a3" else c
        lower = base.lower()
        return lower if len(lower) == 1 else c

    return lambda text: "".join(map(folded, text))
