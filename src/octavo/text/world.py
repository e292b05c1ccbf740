"""RWKV World, `tokenizer.ggml.model` = rwkv: at each place of a text's bytes the longest token that lies there.

Source: the tokenizer of github.com/BlinkDL/RWKV-LM (RWKV-v7/rwkv_v7_demo.py). A token may be any bytes, parts of
characters too; a file has them with escapes, as Python writes bytes.
"""

from __future__ import annotations

import re

from octavo.errors import TokenizerError
from octavo.text.fields import Fields
from octavo.text.text_encoder import Encoder
from octavo.text.vocab import TOKENS, TokenKind, Vocab

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([^x])|(.?))", re.DOTALL)
_CONTROLS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(text: str) -> bytes:
    """The bytes of a token as a file has it. Raises ValueError for an escape that is none."""

    def byte(found: re.Match[bytes]) -> bytes:
        digits, letter, rest = found.groups()
        if rest is not None:
            raise ValueError(found[0].decode("latin-1"))
        return bytes([int(digits, 16)]) if digits is not None else _CONTROLS.get(letter, letter)

    return _ESCAPE.sub(byte, text.encode("utf-8", "surrogatepass"))


def escaped(token: bytes) -> str:
    """The inverse of `unescaped`."""
    return repr(token)[2:-1]


def world_encoder(fields: Fields, vocab: Vocab) -> Encoder:
    """What encodes text. Control tokens and those that fill up an embedding are in no text.

    Raises TokenizerError for a token with an escape that is none, and for a vocabulary without normal tokens.
    """
    ids: dict[bytes, int] = {}
    for i in vocab.of_kind(TokenKind.NORMAL):
        try:
            ids[unescaped(vocab.texts[i])] = i
        except ValueError as error:
            problem = f"token {i} has the escape {str(error)!r}"
            raise fields.fault(TOKENS, problem, r"\t, \n, \r, \x and two digits, or a character behind \ ") from None
    if not ids:
        raise fields.fault(TOKENS, "has no normal tokens", "at least one")
    lengths = _lengths(ids)

    def encode(text: str) -> list[int]:
        data, out, at = text.encode(), list[int](), 0
        while at < len(data):
            for length in (*lengths.get(data[at : at + 2], ()), 1):  # the longest first
                part = data[at : at + length]
                if (token := ids.get(part)) is not None:
                    break
            else:
                raise TokenizerError(f"byte {part!r} is not a token", file=fields.file, field=TOKENS)
            out.append(token)
            at += len(part)
        return out

    return Encoder(encode, max(map(len, ids)))


def _lengths(ids: dict[bytes, int]) -> dict[bytes, tuple[int, ...]]:
    """How long tokens are that begin with two bytes, the longest first."""
    found: dict[bytes, set[int]] = {}
    for token in ids:
        if len(token) > 1:
            found.setdefault(token[:2], set()).add(len(token))
    return {first: tuple(sorted(lengths, reverse=True)) for first, lengths in found.items()}
