"""JSON from files that are not trusted."""

from __future__ import annotations

import json
import os
from typing import Any

from octavo.errors import FileError

MAX_BYTES = 1 << 26  # a tokenizer.json of 260,000 tokens has 33 MB


def parse_object(text: bytes, file: str, field: str | None = None) -> dict[str, Any]:
    """The JSON object in `text`. Raises FileError for bytes that are none, and for a key that occurs twice."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            seen: set[str] = set()
            twice = next(key for key, _ in items if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FileError(f"key {twice[:80]!r} occurs twice", file=file, field=field, allowed="each key once")
        return made

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except UnicodeDecodeError as error:
        raise FileError("is not UTF-8", file=file, offset=error.start, field=field) from None
    except json.JSONDecodeError as error:
        raise FileError(f"is not JSON: {error.msg}", file=file, offset=error.pos, field=field) from None
    except (RecursionError, ValueError) as error:
        raise FileError(f"is not JSON that can be read: {error}", file=file, field=field) from None
    if not isinstance(value, dict):
        raise FileError(f"is {type(value).__name__}", file=file, field=field, allowed="a JSON object")
    return value


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file. Raises FileError for a file that can't be read, is too large, or holds none."""
    name = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise FileError(f"can't be opened: {getattr(error, 'strerror', None) or error}", file=name) from None
    if len(text) > MAX_BYTES:
        raise FileError("is too large", file=name, allowed=f"at most {MAX_BYTES} bytes")
    return parse_object(text, name)
