"""tokenizer.jsonl, PLaMo's vocabulary: a JSON array a line with a token's text, its score and what it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from octavo.errors import TokenizerError, shown
from octavo.huggingface.tokenizer.sentencepiece import Piece
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.io.regular_file import read_bytes

FILE = "tokenizer.jsonl"
MAX_BYTES = 1 << 26
NORMAL, CONTROL = 1, 3
KINDS = {"UNKNOWN": 2, "CONTROL": CONTROL, "BYTE": 6}
"""Numbered as GGUF's token types are. Tokens of any other kind are text."""
BREAKS = {"break_around_repeated_chars_threshold": 4, "break_around_consecutive_spaces_threshold": 2}
"""What tokenizer_config.json says of PLaMo 3, whose text is cut at this many repeated characters and spaces."""
FIRST = next(iter(BREAKS))
END = "<|plamo:op|>"
"""What begins each part of a conversation, and so ends the one before."""


def read_token_lines(path: str | os.PathLike[str]) -> list[Piece]:
    """The tokens by id. Raises TokenizerError for a line that is not a token."""
    name, pieces = os.fsdecode(path), []
    for number, line in enumerate(read_bytes(path, MAX_BYTES, TokenizerError).splitlines(), 1):
        if line.strip():
            pieces.append(_piece(line, number, name))
    if not 0 < len(pieces) <= MAX_TOKENS:
        raise TokenizerError(f"has {len(pieces)} tokens", file=name, allowed=f"1 to {MAX_TOKENS}")
    return pieces


def _piece(line: bytes, number: int, name: str) -> Piece:
    try:
        row = json.loads(line)
        text, score = row[0], float(row[1])
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        text, score, row = None, 0.0, []
    if not isinstance(text, str):
        problem = f"line {number} is {shown(line[:40].decode('utf-8', 'replace'))}"
        raise TokenizerError(problem, file=name, allowed="a list of a token's text, its score and its kind")
    looks_control = text.startswith("<|plamo:") and text.endswith("|>")
    return Piece(text, score, KINDS.get(str(row[2]) if len(row) > 2 else "", CONTROL if looks_control else NORMAL))


def breaks(config: Mapping[str, Any], file: str) -> bool:
    """Whether a tokenizer_config.json wants text cut first. Raises TokenizerError for other runs than BREAKS."""
    for key, usual in BREAKS.items():
        if (found := config.get(key)) not in (None, usual) or (found is None) != (config.get(FIRST) is None):
            allowed = f"{usual}, or none of both breaks"
            raise TokenizerError(f"is {shown(str(found))}", file=file, field=key, allowed=allowed)
    return config.get(FIRST) is not None
