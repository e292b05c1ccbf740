"""What a folder says of its tokens that llama.cpp reads no key for: `octavo convert` names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from octavo.text.fields import Fields
from octavo.text.specials import ENDS, find_specials
from octavo.text.vocab import TOKENS, read_vocab

MOST_NAMED = 8


def unsaid(metadata: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each difference that llama.cpp makes with the file of this metadata."""
    if ENDS in metadata:
        fields = Fields({key: value for key, value in metadata.items() if key != ENDS})
        known = find_specials(fields, read_vocab(fields), {}).stop_ids
        if rest := [i for i in metadata[ENDS].tolist() if i not in known]:
            yield f"does not end a reply at {_names(metadata, rest)}"


def _names(metadata: Mapping[str, Any], ids: Iterable[int]) -> str:
    texts = [metadata[TOKENS][i] for i in ids]
    more = f" and {len(texts) - MOST_NAMED} others" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more
