"""Texts for an embedding model: in the case, and as long, as sentence-transformers has them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from octavo.text.tokenizer import Tokenizer

_log = logging.getLogger("octavo")


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts whose vectors are wanted, without control tokens; a warning says how many were cut."""
    most = tokenizer.most_tokens
    found = [tokenizer.encode(text.lower() if tokenizer.lowers else text, parse_special=False) for text in texts]
    if most is None:
        return found
    if long := [len(ids) for ids in found if len(ids) > most]:
        _log.warning("%d of %d texts have more than %d tokens, up to %d: the vector is that of the first ones, as the "
                     "model has it (max_seq_length)", len(long), len(texts), most, max(long))
    return [tokenizer.cut(ids, most) for ids in found]
