"""WordPiece, the tokenizer of BERT and its kin: words are cut off greedily, the longest beginning first.

Source: Schuster and Nakajima, "Japanese and Korean voice search" (2012); Devlin et al., "BERT" (2019). A GGUF file
writes a token that begins a word as "▁word", one within a word as it is, and special ones in brackets.
"""

from __future__ import annotations

from functools import partial

from octavo.text.fields import Fields
from octavo.text.text_blocks import at_pattern, in_blocks
from octavo.text.text_encoder import Encoder
from octavo.text.tokenizers_package import run_engine
from octavo.text.vocab import SPACE, Vocab

UNKNOWN = "tokenizer.ggml.unknown_token_id"
LOWERCASE, STRIP_ACCENTS = "tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents"

DEFAULT_UNKNOWN = 100
INSIDE = "##"  # what BERT's vocabularies put before a token within a word
LONGEST_WORD = 100  # characters; BERT takes a longer one as unknown


def word_piece_encoder(fields: Fields, vocab: Vocab) -> Encoder:
    """What encodes text as BERT's own tokenizer does.

    Text is in lower case and without accents where the file does not say otherwise. Raises TokenizerError where the
    unknown token is none of the vocabulary.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    unknown = fields.integer(UNKNOWN)
    unknown = DEFAULT_UNKNOWN if unknown is None else unknown
    if not 0 <= unknown < len(vocab):
        raise fields.fault(UNKNOWN, f"token {unknown} is not in the vocabulary", f"0 to {len(vocab) - 1}")
    ids = {_as_bert(text): i for i, text in enumerate(vocab.texts)}
    model = models.WordPiece(
        vocab=ids, unk_token=_as_bert(vocab.texts[unknown]), max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=INSIDE,
    )
    lower = fields.flag(LOWERCASE)
    lower = True if lower is None else lower
    accents = fields.flag(STRIP_ACCENTS)
    engine = Tokenizer(model)
    engine.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=lower if accents is None else accents)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return Encoder(in_blocks(partial(run_engine, engine), at_pattern("(?=[ \n])")))


def from_bert(text: str) -> str:
    """A token of BERT's vocabulary as GGUF writes it."""
    if is_bracketed(text):
        return text
    return text.removeprefix(INSIDE) if text.startswith(INSIDE) else SPACE + text


def is_bracketed(text: str) -> bool:
    """Whether it is written as special tokens are: "[CLS]", "[unused7]"."""
    return text.startswith("[") and text.endswith("]")


def _as_bert(text: str) -> str:
    """The inverse of `from_bert`."""
    if is_bracketed(text):
        return text
    return text.removeprefix(SPACE) if text.startswith(SPACE) else INSIDE + text
