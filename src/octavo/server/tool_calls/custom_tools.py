"""Tools whose argument is a text: to the model they are functions of one parameter, `input`."""

from __future__ import annotations

import json
import re
from typing import Any

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_CHARACTERS = re.compile(
    r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[dD][89abAB]..(?:\\u[0-9a-fA-F]{4}|(?=[^\\]|\\[^u]))|u(?![dD][89abAB])[0-9a-fA-F]{4}))*'
)
"""Characters of a string of JSON that are there as a whole, with both halves of a pair."""


def parameters(pattern: str | None) -> dict[str, Any]:
    """The schema of a text, of a regular expression or of any kind."""
    text = {"type": "string"} if pattern is None else {"type": "string", "pattern": f"^(?:{pattern})$"}
    return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}


def arguments(text: str) -> str:
    """A call's text as the arguments that the model writes."""
    return json.dumps({"input": text}, ensure_ascii=False)


class InputReader:
    """The text of arguments as they come."""

    def __init__(self) -> None:
        self._held, self._begun = "", False

    def push(self, piece: str) -> str:
        """What more of the arguments adds to the text."""
        self._held += piece
        if not self._begun:
            found = _BEGIN.match(self._held)
            if found is None:
                return ""
            self._held, self._begun = self._held[found.end() :], True
        whole = _CHARACTERS.match(self._held)
        assert whole is not None
        self._held = self._held[whole.end() :]
        text = str(json.loads(f'"{whole[0]}"', strict=False))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of pairs may stand alone
