"""A checkpoint's vocabulary as GGUF's `tokenizer.ggml.*` keys."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import numpy as np

from octavo.errors import TokenizerError
from octavo.huggingface.tokenizer import sentencepiece, token_lines, tokenizer_json, world_vocab
from octavo.huggingface.tokenizer.added_tokens import AddedToken, added_beside
from octavo.huggingface.tokenizer.piece_vocab import unigram_keys, word_piece_keys
from octavo.huggingface.tokenizer.pretokenizer import PROBE, find_pre_tokenizer
from octavo.huggingface.tokenizer.sentencepiece import Piece, read_sentencepiece
from octavo.huggingface.tokenizer.steps import check_steps
from octavo.huggingface.tokenizer.tiktoken import is_ranks, merges_of, read_ranks, text_of
from octavo.huggingface.tokenizer.token_lines import END, breaks, read_token_lines
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.io.safetensors import Checkpoint
from octavo.models.shared.architecture import VocabularyFile
from octavo.text import Tokenizer
from octavo.text.bpe import NFC
from octavo.text.plamo2 import BREAKING, WHOLE
from octavo.text.vocab import SPACE
from octavo.text.world import escaped

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # token types
ADDED_SCORE, PAD_SCORE = -1000.0, -10000.0
_COMPOSING = {"NFC", "NFD", "NFKC", "NFKD"}
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_log = logging.getLogger(__name__)


def open_tokenizer(checkpoint: Checkpoint, own: VocabularyFile | None = None) -> TokenizerJson | None:
    """The checkpoint's tokenizer.json, with what files beside it add to it.

    None where it has tokenizer.model only, or a file of its class's `own`.

    Raises TokenizerError for none of them.
    """
    path = checkpoint.path(tokenizer_json.FILE)
    if os.path.exists(path):
        tokenizer = TokenizerJson.open(path)
        tokenizer.add(added_beside(checkpoint, tokenizer.added, tokenizer.ids))
        return tokenizer
    others = dict.fromkeys((sentencepiece.FILE, *((own.file,) if own else ())))
    if any(os.path.exists(checkpoint.path(name)) for name in others):
        return None
    wanted = " or ".join((tokenizer_json.FILE, *others))
    raise TokenizerError("has no tokenizer", file=checkpoint.folder, allowed=wanted)


def vocabulary(
    checkpoint: Checkpoint, tokenizer: TokenizerJson | None, n_vocab: int, own: VocabularyFile | None = None
) -> dict[str, Any]:
    """The keys of the vocabulary, `n_vocab` tokens: those that no tokenizer has are unused.

    From tokenizer.json (with the scores of tokenizer.model, where both are there), from tokenizer.model alone, or from
    what classes with remote code have, `own`. Raises TokenizerError for a tokenizer of another kind, one that does not
    fit the embedding, and where the ids that the keys give to a text of many kinds differ from those of tokenizer.json.
    """
    model = checkpoint.path(sentencepiece.FILE)
    if tokenizer is None and own and own.file == token_lines.FILE:
        return _from_lines(checkpoint, n_vocab, own)
    if tokenizer is None and own and own.file == world_vocab.FILE:
        return _from_world(checkpoint, n_vocab)
    if tokenizer is None and own and os.path.exists(ranks := checkpoint.path(own.file)) and is_ranks(ranks):
        return _from_ranks(ranks, added_beside(checkpoint, {}, {}), n_vocab, own)
    if tokenizer is None:
        return _from_sentencepiece(model, added_beside(checkpoint, {}, {}), n_vocab, own.behind if own else ())
    if tokenizer.kind == "WordPiece":
        keys = word_piece_keys(tokenizer, _tokens(tokenizer, n_vocab), _added_type)
    elif tokenizer.kind == "Unigram":
        keys = unigram_keys(tokenizer, _tokens(tokenizer, n_vocab), _added_type)
    elif not tokenizer.byte_fallback:
        keys = _byte_level(tokenizer, n_vocab)
    elif _COMPOSING.intersection(tokenizer.normalizers()):
        problem = f"is {', '.join(tokenizer.normalizers())}"
        raise tokenizer.error("normalizer", problem, "Prepend and Replace, for tokens of characters")
    elif os.path.exists(model):
        keys = _from_sentencepiece(model, tokenizer.added, n_vocab)
    else:
        keys = _from_merges(tokenizer, n_vocab)
    _compare(tokenizer, keys)
    check_steps(tokenizer)
    return keys


def _byte_level(tokenizer: TokenizerJson, n_vocab: int) -> dict[str, Any]:
    """Keys of a byte-level BPE, GPT-2's kind."""
    normalizers = tokenizer.normalizers()
    others = [kind for kind in normalizers if kind != "NFC"]
    if others:
        raise tokenizer.error("normalizer", f"is {', '.join(others)}", "none, or NFC")
    texts, types = [], []
    for text, added in _tokens(tokenizer, n_vocab):
        texts.append(text)
        types.append(_added_type(added) if added else NORMAL if text else UNUSED)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": find_pre_tokenizer(tokenizer),
        "tokenizer.ggml.tokens": [t or f"[PAD{i}]" for i, t in enumerate(texts)],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [" ".join(part.replace(" ", "Ġ") for part in pair) for pair in tokenizer.merges],
        **({NFC: True} if normalizers else {}),
    }


def _from_merges(tokenizer: TokenizerJson, n_vocab: int) -> dict[str, Any]:
    """Keys of a SentencePiece-style BPE: a token's score is the rank of the merge that makes it, the first the best."""
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(tokenizer.merges):
        scores.setdefault(left + right, -float(rank))
    worst = -float(len(tokenizer.merges))
    pieces = []
    for text, added in _tokens(tokenizer, n_vocab):
        kind = BYTE if _BYTE_TOKEN.fullmatch(text) else UNKNOWN if text == tokenizer.unk_token else NORMAL
        if added and kind == NORMAL:
            pieces.append(_added_piece(added))
        else:
            pieces.append(Piece(text, scores.get(text, worst) if kind == NORMAL else 0.0, kind))
    return _spm_keys(pieces, tokenizer.adds_space())


def _from_ranks(path: str, added: dict[int, AddedToken], n_vocab: int, own: VocabularyFile) -> dict[str, Any]:
    """Keys of a byte-level BPE of a file of tokens by rank; `added` are tokens beyond its own."""
    tokens = read_ranks(path)
    added = added or _behind(own.behind, len(tokens))
    if (most := max((len(tokens), *(i + 1 for i in added)))) > n_vocab:
        raise _too_many(path, most, n_vocab)
    texts = [*map(text_of, tokens), *(f"[PAD{i}]" for i in range(len(tokens), n_vocab))]
    types = np.array([NORMAL] * len(tokens) + [UNUSED] * (n_vocab - len(tokens)), np.int32)
    for token in added.values():
        texts[token.id], types[token.id] = token.text, _added_type(token)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": own.pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges_of(tokens)],
        **({NFC: True} if own.nfc else {}),
    }


def _from_lines(checkpoint: Checkpoint, n_vocab: int, own: VocabularyFile) -> dict[str, Any]:
    """Keys of PLaMo's tokenizer, of a file of tokens with scores."""
    path = checkpoint.path(own.file)
    cut_first = breaks(checkpoint.json("tokenizer_config.json") or {}, checkpoint.path("tokenizer_config.json"))
    pieces = read_token_lines(path)
    if len(pieces) > n_vocab:
        raise _too_many(path, len(pieces), n_vocab)
    keys = _scored_keys(pieces + [Piece("", PAD_SCORE, UNUSED)] * (n_vocab - len(pieces)))
    end = next((i for i, piece in enumerate(pieces) if piece.text == END), None)
    return keys | {
        "tokenizer.ggml.model": "plamo2", "tokenizer.ggml.add_space_prefix": False,
        **({} if cut_first == own.breaks else {"tokenizer.ggml.pre": BREAKING if cut_first else WHOLE}),
        **({} if end is None else {"tokenizer.ggml.eot_token_id": end}),
    }


def _from_world(checkpoint: Checkpoint, n_vocab: int) -> dict[str, Any]:
    """Keys of RWKV World. Texts that a configuration adds and that are tokens already are these."""
    path, ended = checkpoint.path(world_vocab.FILE), world_vocab.END
    tokens, added = world_vocab.read_world(path), added_beside(checkpoint, {}, {})
    if (most := max(tokens) + 1) > n_vocab:
        raise _too_many(path, most, n_vocab)
    known = set(tokens.values())
    others = [token for token in added.values() if token.text.encode() not in known and token.id not in tokens]
    texts = [escaped(tokens[i]) if i in tokens else f"[PAD{i}]" for i in range(n_vocab)]
    types = np.array([NORMAL if i in tokens else UNUSED for i in range(n_vocab)], np.int32)
    texts[0], types[0] = ended, CONTROL
    for token in others:
        if token.id >= n_vocab:
            raise _too_many(checkpoint.path("tokenizer_config.json"), token.id + 1, n_vocab)
        texts[token.id], types[token.id] = token.text, CONTROL if token.id == 0 else _added_type(token)
    turn = next((i for i, token in tokens.items() if token == world_vocab.TURN), None)
    return {
        "tokenizer.ggml.model": world_vocab.MODEL,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
        "tokenizer.chat_template": world_vocab.TEMPLATE,
        **({} if turn is None else {"tokenizer.ggml.eot_token_id": turn}),
    }


def _behind(texts: tuple[str, ...], first: int) -> dict[int, AddedToken]:
    """Special tokens from the id `first` on."""
    return {first + i: AddedToken(first + i, text, True) for i, text in enumerate(texts)}


def _from_sentencepiece(
    path: str, added: dict[int, AddedToken], n_vocab: int, behind: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Keys of a SentencePiece model; `added` are tokens beyond its own, or that take the place of its own.

    behind  special tokens beyond its own where none are added
    """
    model = read_sentencepiece(path)
    added = added or _behind(behind, len(model.pieces))
    pieces = model.pieces[:n_vocab] + [Piece("", PAD_SCORE, UNUSED)] * (n_vocab - len(model.pieces))
    if len(model.pieces) > n_vocab:
        raise _too_many(path, len(model.pieces), n_vocab)
    for token in added.values():
        if token.id >= n_vocab:
            _log.warning("token %d, %r, is beyond the embedding and is left out", token.id, token.text)
        elif pieces[token.id].kind not in (UNKNOWN, BYTE):
            pieces[token.id] = _added_piece(token)
    return _spm_keys(pieces, model.adds_space)


def _spm_keys(pieces: list[Piece], adds_space: bool) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "llama", **_scored_keys(pieces), "tokenizer.ggml.add_space_prefix": adds_space
    }


def _scored_keys(pieces: list[Piece]) -> dict[str, Any]:
    pieces = [p if p.text else Piece(f"[PAD{i}]", PAD_SCORE, UNUSED) for i, p in enumerate(pieces)]
    return {
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [piece.text for piece in pieces],
        "tokenizer.ggml.scores": np.array([piece.score for piece in pieces], np.float32),
        "tokenizer.ggml.token_type": np.array([piece.kind for piece in pieces], np.int32),
    }


def _tokens(tokenizer: TokenizerJson, n_vocab: int) -> list[tuple[str, AddedToken | None]]:
    """Text and added token by id; an empty text where the tokenizer has no such id."""
    texts = tokenizer.texts
    beyond = [i for i in texts if i >= n_vocab]
    if any(i not in tokenizer.added for i in beyond):
        raise _too_many(tokenizer.file, max(beyond) + 1, n_vocab)
    for i in sorted(beyond):
        _log.warning("token %d, %r, is beyond the embedding and is left out", i, texts[i])
    return [(texts.get(i, ""), tokenizer.added.get(i)) for i in range(n_vocab)]


def _added_type(token: AddedToken) -> int:
    looks_special = token.text.startswith(("<|", "<｜")) and token.text.endswith(("|>", "｜>"))
    return CONTROL if token.special or looks_special or token.text in ("<pad>", "<mask>") else USER_DEFINED


def _added_piece(token: AddedToken) -> Piece:
    kind = _added_type(token)
    return Piece(token.text if kind == CONTROL else token.text.replace(SPACE, " "), ADDED_SCORE, kind)


def _too_many(file: str, tokens: int, n_vocab: int) -> TokenizerError:
    return TokenizerError(f"{tokens} tokens for an embedding of {n_vocab}", file=file, allowed=f"up to {n_vocab}")


def _compare(tokenizer: TokenizerJson, keys: dict[str, Any]) -> None:
    """Raises TokenizerError at the first line of the probe that the keys give other ids than tokenizer.json."""
    ours = Tokenizer.from_metadata({"tokenizer.ggml.add_bos_token": False, **keys}, file=tokenizer.file)
    for text in (PROBE, *PROBE.splitlines(), "a", " a", "  a b", "\n"):
        if ours.add_space_prefix and text.startswith(" "):
            continue  # SentencePiece puts a space before it, and some of the tokenizers that stand in for it don't
        want = tokenizer.encode(text)
        got = ours.encode(text, add_special=False)
        if want != got:
            at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
            problem = f"gives {want[at : at + 4]} in {text[:40]!r} where GGUF's rules give {got[at : at + 4]}"
            raise tokenizer.error("", problem, "a tokenizer that GGUF can describe")
