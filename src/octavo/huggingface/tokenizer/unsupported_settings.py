"""What a folder says of its tokens that llama.cpp reads no key for: `octavo convert` names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from octavo.text.added_token_edges import flags_by_name, token_flags
from octavo.text.fields import Fields
from octavo.text.specials import ENDS, find_specials
from octavo.text.tokenizer import AROUND, LOWER, MOST
from octavo.text.vocab import TOKENS, read_vocab

MOST_NAMED = 8
_OTHERWISE = {
    "lstrip": "goes by the model's name, not by lstrip, for the white space before",
    "rstrip": "goes by the model's name, not by rstrip, for the white space behind",
    "single_word": "finds within words, too (single_word):",
    "normalized": "looks in the text as it is (normalized) for",
}


def unsaid(metadata: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each difference that llama.cpp makes with the file of this metadata."""
    if ENDS in metadata:
        fields = Fields({key: value for key, value in metadata.items() if key != ENDS})
        ends = find_specials(fields, read_vocab(fields), {}).stop_ids
        if rest := [i for i in metadata[ENDS].tolist() if i not in ends]:
            yield f"does not end a reply at {_names(metadata, rest)}"

    for key, where in AROUND.items():
        if key in metadata:
            yield f"does not put {_names(metadata, metadata[key].tolist())} {where} a text"
    context = next((size for key, size in metadata.items() if key.endswith(".context_length")), 0)
    if metadata.get(MOST, context) < context:
        yield f"takes all of a text for its vector, not its first {metadata[MOST]} tokens"
    if metadata.get(LOWER):
        yield "does not put texts into lower case"
    fields = Fields(metadata)
    vocab = read_vocab(fields)
    known = flags_by_name(fields, vocab)
    for flag, ids in token_flags(fields, vocab).items():
        if rest := sorted({*ids} ^ known[flag]):
            yield f"{_OTHERWISE[flag]} {_names(metadata, rest)}"


def _names(metadata: Mapping[str, Any], ids: Iterable[int]) -> str:
    texts = [metadata[TOKENS][i] for i in ids]
    more = f" and {len(texts) - MOST_NAMED} others" if len(texts) > MOST_NAMED else ""
    return ", ".join(texts[:MOST_NAMED]) + more
