"""tokenizer.model, a SentencePiece model: pieces, scores and kinds, read from its protocol buffer.

The messages are those of sentencepiece_model.proto: ModelProto has pieces (1), trainer_spec (2), normalizer_spec (3).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.errors import TokenizerError
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.io.regular_file import read_bytes

FILE = "tokenizer.model"
BPE = 2
MAX_BYTES = 1 << 26
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _ADD_PREFIX = 3, 3
NORMAL, BYTE = 1, 6


@dataclass(frozen=True)
class Piece:
    """A token; `kind` is numbered as GGUF's token types are: 1 normal, 2 unknown, 3 control ... 6 byte."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The pieces by id, and whether a space goes before a text."""

    pieces: list[Piece]
    adds_space: bool


def read_sentencepiece(path: str | os.PathLike[str]) -> SentencePieceModel:
    """Raises TokenizerError for a file that is not such a model, or one whose algorithm is not BPE."""
    name = os.fsdecode(path)
    raw = read_bytes(path, MAX_BYTES, TokenizerError)
    try:
        return _parse(raw, name)
    except (ValueError, LookupError, struct.error, TypeError):
        raise TokenizerError("is not a SentencePiece model", file=name, allowed="a protocol buffer of one") from None


def _parse(raw: bytes, name: str) -> SentencePieceModel:
    pieces: list[Piece] = []
    kind, adds_space = 1, True
    for number, value in _fields(raw):
        if number == _PIECES:
            if len(pieces) == MAX_TOKENS:
                raise TokenizerError(f"more than {MAX_TOKENS} pieces", file=name, allowed=f"at most {MAX_TOKENS}")
            piece = _piece(_bytes(value))
            if not NORMAL <= piece.kind <= BYTE:
                problem, allowed = f"piece {len(pieces)} is of type {piece.kind}", f"{NORMAL} to {BYTE}"
                raise TokenizerError(problem, file=name, allowed=allowed)
            pieces.append(piece)
        elif number == _TRAINER:
            kind = next((v for n, v in _fields(_bytes(value)) if n == _MODEL_TYPE and isinstance(v, int)), kind)
        elif number == _NORMALIZER:
            found = [v for n, v in _fields(_bytes(value)) if n == _ADD_PREFIX]
            adds_space = bool(found[-1]) if found else adds_space
    if not pieces:
        raise ValueError
    if kind != BPE:
        raise TokenizerError(f"is a SentencePiece model of type {kind}", file=name, allowed=f"{BPE} (BPE)")
    return SentencePieceModel(pieces, adds_space)


def _piece(raw: bytes) -> Piece:
    fields = dict(_fields(raw))
    kind, score = fields.get(3, NORMAL), fields.get(2, b"\0\0\0\0")
    if not isinstance(kind, int):
        raise TypeError
    return Piece(_bytes(fields[1]).decode(), struct.unpack("<f", _bytes(score))[0], kind)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number, and an integer or bytes (those of a float too)."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if size is None:
            if wire != 2:
                raise ValueError
            size, at = _varint(raw, at)
        if at + size > len(raw):
            raise ValueError
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError
