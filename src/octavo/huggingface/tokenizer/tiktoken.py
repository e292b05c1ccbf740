"""A vocabulary as tiktoken has it: a file with a token a line, its bytes in base64 and its rank, which is its id.

Two neighbours that are a token together are joined, those of the lowest rank first. GGUF has the same as merges, the
first the most important: what a token is joined of last.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from itertools import pairwise

from octavo.errors import TokenizerError, shown
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.io.regular_file import read_bytes
from octavo.text.bytelevel import BYTE_TO_CHAR

MAX_BYTES = 1 << 26
_LINE = re.compile(rb"([A-Za-z0-9+/]+={0,2}) ([0-9]{1,7})")


def is_ranks(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as such a vocabulary does."""
    with open(path, "rb") as file:
        return _LINE.fullmatch(file.readline(1 << 12).rstrip(b"\r\n")) is not None


def read_ranks(path: str | os.PathLike[str]) -> list[bytes]:
    """The tokens by rank. Raises TokenizerError for a line without a token and its rank, and for gaps."""
    name, tokens = os.fsdecode(path), dict[int, bytes]()
    for number, line in enumerate(read_bytes(path, MAX_BYTES, TokenizerError).splitlines(), 1):
        found = _LINE.fullmatch(line)
        try:
            token = base64.b64decode(found[1], validate=True) if found else b""
        except binascii.Error:
            token = b""
        if found is None or not token:
            problem = f"line {number} is {shown(line[:40].decode('latin-1'))}"
            raise TokenizerError(problem, file=name, allowed="a token in base64, a space and its rank")
        tokens[int(found[2])] = token
    if len(tokens) > MAX_TOKENS or sorted(tokens) != list(range(len(tokens))):
        allowed = f"each from 0 on, {MAX_TOKENS} at most"
        raise TokenizerError(f"{len(tokens)} ranks have gaps", file=name, allowed=allowed)
    if len(set(tokens.values())) < len(tokens):
        raise TokenizerError("has a token twice", file=name, allowed="each token once")
    return [tokens[rank] for rank in range(len(tokens))]


def merges_of(tokens: list[bytes]) -> list[tuple[str, str]]:
    """Which two tokens each is joined of last, by rank, in the characters that stand for bytes."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for rank, token in enumerate(tokens):
        parts = _parts(token, ranks, rank)
        if len(parts) == 2:
            merges.append((text_of(parts[0]), text_of(parts[1])))
    return merges


def _parts(token: bytes, ranks: dict[bytes, int], limit: int) -> list[bytes]:
    """What a token is made of by joins to tokens of lower ranks than `limit`."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        found = [ranks.get(a + b, limit) for a, b in pairwise(parts)]
        best = min(found)
        if best >= limit:
            break
        at = found.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def text_of(token: bytes) -> str:
    """Bytes in the characters that stand for them."""
    return "".join(BYTE_TO_CHAR[byte] for byte in token)
