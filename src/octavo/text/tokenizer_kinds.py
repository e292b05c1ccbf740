"""The kinds of tokenizer that a file can name in `tokenizer.ggml.model`: how each cuts text, and its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from octavo.text.bpe import byte_level_encoder, character_encoder, white_space_encoder
from octavo.text.bytelevel import token_to_bytes
from octavo.text.fields import Fields
from octavo.text.plamo2 import plamo2_encoder
from octavo.text.pretokenize import PRE_TOKENIZERS
from octavo.text.spm import SpmEncoder
from octavo.text.text_blocks import in_blocks
from octavo.text.text_encoder import Encoder
from octavo.text.unigram import unigram_encoder
from octavo.text.vocab import SPACE, Vocab, longest_bytes
from octavo.text.wordpiece import word_piece_encoder
from octavo.text.world import unescaped, world_encoder

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"


@dataclass(frozen=True)
class TokenizerScheme:
    """A kind of tokenizer.

    `encoder` makes what turns text without special tokens into ids; `to_bytes` gives the bytes of a normal token.
    The rest is what holds where the file doesn't say: ids by role, whether text begins with BOS or with a space.
    `always_bos`: it begins with BOS whatever the file says. `last`: the role of the token that always ends a text,
    whatever the file says. `spaces`: the encoder itself puts a space before a text.
    """

    encoder: Callable[[Fields, Vocab], Encoder]
    to_bytes: Callable[[str], bytes]
    role_ids: tuple[tuple[str, int], ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    always_bos: bool = False
    last: str | None = None
    spaces: bool = False
    add_space_prefix: bool = False


def find_scheme(fields: Fields) -> tuple[str, str, TokenizerScheme]:
    """The names that `fields` gives (model, pre) and the scheme they mean.

    Raises TokenizerError for names that are not known, with those that are.
    """
    model, pre = fields.text(MODEL), fields.text(PRE) or "default"
    if model == "gpt2":
        return model, pre, _byte_level(fields, pre)
    if model in _SCHEMES:
        return model, pre, _SCHEMES[model]
    allowed = (
        "gpt2 (byte-level BPE), llama (SentencePiece BPE), bert (WordPiece), t5 (Unigram), "
        "rwkv, plamo2, gemma4, whitespace"
    )
    raise fields.fault(MODEL, "missing" if model is None else f"{model!r} is not supported", allowed)


def _byte_level(fields: Fields, pre: str) -> TokenizerScheme:
    row = PRE_TOKENIZERS.get(pre)
    if row is None and pre in _ON_CHARACTERS:
        return _ON_CHARACTERS[pre]
    if row is None:
        raise fields.fault(PRE, f"{pre!r} is not known", ", ".join(sorted({*PRE_TOKENIZERS, *_ON_CHARACTERS})))
    return TokenizerScheme(lambda f, vocab: byte_level_encoder(f, vocab, row), token_to_bytes, add_bos=row.add_bos)


def _spm_encoder(fields: Fields, vocab: Vocab) -> Encoder:
    encoder = SpmEncoder(fields, vocab)
    encode = in_blocks(encoder.encode, encoder.cut)
    return Encoder(lambda text: encode(text.replace(" ", SPACE)), longest_bytes(vocab))


def _spaces_to_bytes(text: str) -> bytes:
    return text.replace(SPACE, " ").encode("utf-8", "surrogatepass")


_GEMMA4 = TokenizerScheme(character_encoder, _spaces_to_bytes, always_bos=True)


def _plain_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_WHITE_SPACE = TokenizerScheme(white_space_encoder, _plain_bytes)
_ON_CHARACTERS = {  # pre names of models whose merges are of characters, though the file calls them "gpt2"
    "gemma4": _GEMMA4,
    "granite-embed-multi-311m": _GEMMA4,
    "sarvam-moe": TokenizerScheme(partial(character_encoder, newlines=False), _spaces_to_bytes),
}
_SCHEMES = {
    "llama": TokenizerScheme(
        _spm_encoder,
        _spaces_to_bytes,
        role_ids=(("bos", 1), ("eos", 2), ("unk", 0)),
        add_bos=True,
        add_space_prefix=True,
    ),
    "bert": TokenizerScheme(
        word_piece_encoder,
        _spaces_to_bytes,
        role_ids=(("bos", 101), ("unk", 100), ("sep", 102), ("pad", 0), ("mask", 103)),
        always_bos=True,
        last="sep",
        spaces=True,
        add_space_prefix=True,
    ),
    "t5": TokenizerScheme(
        unigram_encoder,
        _spaces_to_bytes,
        role_ids=(("eos", 1), ("unk", 2), ("pad", 0)),
        add_eos=True,
        spaces=True,
    ),
    "plamo2": TokenizerScheme(plamo2_encoder, _plain_bytes, role_ids=(("bos", 1), ("eos", 2), ("unk", 0), ("pad", 3))),
    "rwkv": TokenizerScheme(world_encoder, unescaped),
    "gemma4": _GEMMA4,
    "whitespace": _WHITE_SPACE,
}
