"""The vocabulary of RWKV World: a file with a token a line, its id, itself as Python writes texts or bytes, its length.

Id 0 is in no file: it ends a text.
"""

from __future__ import annotations

import ast
import os
import re
from typing import Any

from octavo.errors import TokenizerError, shown
from octavo.io.gguf.header_limits import MAX_STRINGS as MAX_TOKENS
from octavo.io.regular_file import read_text

FILE = "rwkv_vocab_v20230424.txt"
MAX_BYTES = 1 << 26
MODEL = "rwkv"
TEMPLATE = "rwkv-world"
"""What converters call the chat template of models that come with none."""
END, TURN = "<s>", b"\n\n"
"""What converters call the token that ends a text, and the one that ends a turn of a conversation."""
ENDS: dict[str, Any] = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0}
"""Whatever the configuration says, which has other ids of a class's defaults, or a text that is a token already."""

_ESCAPE = r"\\(?:[\\'\"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5})"
_LINE = re.compile(
    rf"(0|[1-9][0-9]{{0,6}}) (b?(?:'(?:[^'\\]|{_ESCAPE})*'|\"(?:[^\"\\]|{_ESCAPE})*\")) ([1-9][0-9]{{0,4}})"
)


def read_world(path: str | os.PathLike[str]) -> dict[int, bytes]:
    """The tokens by id. Raises TokenizerError for a line that is not an id, text and length, or comes twice."""
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(read_text(path, MAX_BYTES, TokenizerError).removesuffix("\n").split("\n"), 1):
        found = _LINE.fullmatch(line.removesuffix("\r"))
        token = b"" if found is None else _bytes_of(found[2])
        if found is None or len(token) != int(found[3]):
            problem = f"line {number} is {shown(line[:40])}"
            allowed = "an id, a text as Python writes it and the number of its bytes"
            raise TokenizerError(problem, file=path, allowed=allowed)
        if int(found[1]) in tokens:
            raise TokenizerError(f"has two tokens {found[1]}", file=path, allowed="each id once")
        tokens[int(found[1])] = token
    if 0 in tokens or max(tokens) > MAX_TOKENS:
        problem = "has a token 0" if 0 in tokens else f"has a token {max(tokens)}"
        raise TokenizerError(problem, file=path, allowed=f"ids from 1 to {MAX_TOKENS}; 0 ends a text")
    if len(set(tokens.values())) < len(tokens):
        raise TokenizerError("has a token twice", file=path, allowed="each token once")
    return tokens


def _bytes_of(literal: str) -> bytes:
    try:
        value: str | bytes = ast.literal_eval(literal)
        return value.encode() if isinstance(value, str) else value
    except (ValueError, SyntaxError):  # half of a pair of surrogates, or bytes beyond ASCII as themselves
        return b""
