"""The messages of a conversation: kept within a context, saved and read again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from octavo.errors import FileError
from octavo.io.atomic import written_file
from octavo.io.regular_file import read_bytes
from octavo.io.safetensors.json_file import parse_object

FORMAT = "octavo-chat-1"
MOST_BYTES = 1 << 26
ROLES = ("user", "assistant")


class Dialogue:
    """`messages` of user and assistant in turn, oldest first, after a `system` message or None."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.messages: list[dict[str, str]] = []

    def add(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def fit(self, encode: Callable[[], list[int]], n_ctx: int, reply: int | None) -> tuple[list[int], int]:
        """The prompt's tokens, as `encode` gives them, and how many messages were dropped so that a reply has room.

        Room is `reply` tokens or a quarter of the context, if that is less. Where it lacks, the oldest turns go until
        half of the context is free, so that this is not needed again at once. The last message always stays.
        """
        tokens = encode()
        room = n_ctx // 4 if reply is None else min(reply, n_ctx // 4)
        before = len(self.messages)
        if len(tokens) + room > n_ctx:
            while len(tokens) > n_ctx // 2 and self._drop_turn():
                tokens = encode()
        return tokens, before - len(self.messages)

    def _drop_turn(self) -> bool:
        """Drop the messages before the second one of the user; False where there is none."""
        next_turn = next((i for i, m in enumerate(self.messages) if i and m["role"] == "user"), None)
        if next_turn is None:
            return False
        del self.messages[:next_turn]
        return True

    def save(self, path: str) -> None:
        """Write the conversation to a new file, or in place of one that was saved. Raises FileError."""
        path = os.path.expanduser(path)
        if os.path.exists(path):
            _read(path)  # raises for a file that is something else
        content = {"format": FORMAT, "system": self.system, "messages": self.messages}
        with written_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)

    def load(self, path: str) -> None:
        """Take the conversation of a file in place of this one. Raises FileError."""
        found = _read(os.path.expanduser(path))
        self.system, self.messages = found.get("system"), found["messages"]


def _read(path: str) -> dict[str, Any]:
    data = read_bytes(path, MOST_BYTES)
    if not data.startswith(b"{"):
        raise FileError("is not a conversation saved by /save", file=path)
    found = parse_object(data, path)
    if found.get("format") != FORMAT or not _is_conversation(found):
        raise FileError("is not a conversation saved by /save", file=path)
    return found


def _is_conversation(found: dict[str, Any]) -> bool:
    messages = found.get("messages")
    return (
        isinstance(found.get("system"), str | None)
        and isinstance(messages, list)
        and all(
            isinstance(m, dict) and m.keys() == {"role", "content"} and m["role"] in ROLES
            and isinstance(m["content"], str) for m in messages
        )
    )
