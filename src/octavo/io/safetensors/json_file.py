"""JSON from files that are not trusted."""

from __future__ import annotations

import json
import os
from typing import Any

from octavo.errors import FileError
from octavo.io.regular_file import read_bytes

MAX_BYTES = 1 << 26  # a tokenizer.json of 260,000 tokens has 33 MB
MAX_DIGITS = 100  # of an integer: any such fits a float, and 10**30 stands for "no limit" in real files


def parse_object(text: bytes, file: str, field: str | None = None) -> dict[str, Any]:
    """The JSON object in `text`.

    Raises FileError for bytes that are none, for a key that occurs twice, and for an integer of more than MAX_DIGITS.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FileError(f"key {twice[:80]!r} occurs twice", file=file, field=field, allowed="each key once")
        return made

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            at, problem = text.find(digits.encode()), f"a number of {len(digits)} digits"
            raise FileError(problem, file=file, offset=at, field=field, allowed=f"at most {MAX_DIGITS}")
        return int(digits)

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, parse_int=integer)
    except UnicodeDecodeError as error:
        raise FileError("is not UTF-8", file=file, offset=error.start, field=field) from None
    except json.JSONDecodeError as error:
        raise FileError(f"is not valid JSON: {error.msg}", file=file, offset=error.pos, field=field) from None
    except (RecursionError, ValueError) as error:
        raise FileError(f"can't be parsed as JSON: {error}", file=file, field=field) from None
    if not isinstance(value, dict):
        raise FileError(f"is {type(value).__name__}", file=file, field=field, allowed="a JSON object")
    return value


def read_json(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a regular file of at most `limit` bytes. Raises FileError for what is none."""
    return parse_object(read_bytes(path, limit), os.fsdecode(path))
