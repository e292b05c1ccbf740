"""Unigram, SentencePiece's other model (T5, XLM-RoBERTa): of all ways to cut a text, that with the highest score.

Source: Kudo, "Subword regularization" (2018). A token's score is the logarithm of its probability; characters that are
no token are unknown, several in a row one unknown token, at 10 less than the lowest score.
"""

from __future__ import annotations

import re
from functools import cache, partial

from octavo.text.charsmap import CHARSMAP, Charsmap
from octavo.text.fields import Fields
from octavo.text.text_blocks import between_tokens, in_blocks, pairs_of, uncut
from octavo.text.text_encoder import Encoder
from octavo.text.tokenizers_package import run_engine
from octavo.text.vocab import SCORES, SPACE, TokenKind, Vocab

UNKNOWN = "tokenizer.ggml.unknown_token_id"
ADD_SPACE, MERGE_SPACES = "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"
DEFAULT_UNKNOWN = 2


def unigram_encoder(fields: Fields, vocab: Vocab) -> Encoder:
    """What encodes text. Characters that are unknown may all be one token.

    Raises TokenizerError for a vocabulary without scores, an unknown token that is none of it, and a table of
    characters that is damaged.
    """
    engine = _engine(fields, vocab)
    raw = fields.octets(CHARSMAP)
    replaced = Charsmap(fields, raw).apply if raw else None
    prefix, merge = bool(fields.flag(ADD_SPACE)), bool(fields.flag(MERGE_SPACES))
    known = vocab.kinds[vocab.ids[SPACE]] & TokenKind.NORMAL if SPACE in vocab.ids else 0
    cut = between_tokens(cache(lambda: pairs_of(vocab.texts)), SPACE) if known else uncut  # unknown ones may be joined
    cut_up = in_blocks(partial(run_engine, engine), cut)

    def encode(text: str) -> list[int]:
        return cut_up(with_spaces(replaced(text) if replaced else text, prefix, merge))

    return Encoder(encode)


def with_spaces(text: str, prefix: bool, merge: bool) -> str:
    """`text` with spaces as tokens write them.

    `prefix`: one more before the first word. `merge`: one before each word, and no others.
    """
    if merge:
        return "".join(SPACE + word for word in text.split(" ") if word)
    if prefix:
        text = re.sub("[^ ]", lambda first: " " + first[0], text, count=1)
    return text.replace(" ", SPACE)


def _engine(fields: Fields, vocab: Vocab) -> object:
    """The model on the `tokenizers` package. Tokens that no text gives have a name there that no text has."""
    from tokenizers import Tokenizer, models

    if vocab.scores is None:
        raise fields.fault(SCORES, "missing", "a score for each token")
    unknown = fields.integer(UNKNOWN)
    unknown = DEFAULT_UNKNOWN if unknown is None else unknown
    if not 0 <= unknown < len(vocab):
        raise fields.fault(UNKNOWN, f"token {unknown} is not in the vocabulary", f"0 to {len(vocab) - 1}")
    normal = vocab.of_kind(TokenKind.NORMAL)
    lowest = min((vocab.scores[i] for i in normal), default=0.0)  # the unknown's score goes by normal tokens alone
    scored = [(f"\0{i}\0", lowest) for i in range(len(vocab))]
    for i in vocab.of_kind(TokenKind.NORMAL | TokenKind.UNUSED):
        scored[i] = vocab.texts[i], max(vocab.scores[i], lowest)
    for i in vocab.of_kind(TokenKind.USER_DEFINED):
        scored[i] = vocab.texts[i], 0.0
    return Tokenizer(models.Unigram(scored, unknown, False))
