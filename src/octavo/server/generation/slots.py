"""Slots, as clients of llama-server know them: numbers for the conversations that were answered last.

Nothing is computed in a slot: pages are shared by all. A slot stands for the tokens of its last request and the reply,
so that they can be saved to a file, restored and erased by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.runtime.cache.prefix_tree import common_length
from octavo.server.http.api_errors import bad

Mix = Sequence[tuple[str, float]]
"""Adapters by name, each with its scale."""


@dataclass
class Slot:
    """The tokens of a conversation, the salt that its pages have, and the adapters that it was computed with."""

    tokens: list[int]
    salt: str = ""
    used: int = 0
    adapters: Mix = ()


class Slots:
    """As many slots as replies may be in a step. A new conversation gets the one that was used longest ago."""

    def __init__(self, n: int) -> None:
        self._slots = [Slot([], used=i - n) for i in range(n)]
        self._uses = 0

    def __getitem__(self, number: int) -> Slot:
        """Raises ApiError for a slot that there is not."""
        if not 0 <= number < len(self._slots):
            raise bad(f"there is no slot {number} (allowed: 0 to {len(self._slots) - 1})", "id_slot")
        return self._slots[number]

    def assign(self, prompt: Sequence[int], salt: str, wanted: int | None, adapters: Mix = ()) -> int:
        """The slot of a request: the one that it wants, or whose conversation it goes on with. Raises ApiError."""
        if wanted is not None and wanted >= 0:
            _ = self[wanted]
            found = wanted
        else:
            found = max(range(len(self._slots)), key=lambda i: self._suits(self._slots[i], prompt, salt, adapters))
        self.put(found, prompt, salt, adapters)
        return found

    def _suits(self, slot: Slot, prompt: Sequence[int], salt: str, adapters: Mix) -> tuple[int, int]:
        """How well a prompt goes on with a slot, of which it must have half; then how long ago that was used."""
        same = slot.salt == salt and [*slot.adapters] == [*adapters]
        alike = common_length(slot.tokens, list(prompt)) if same else 0
        return (alike if 2 * alike >= len(slot.tokens) else 0), -slot.used

    def put(self, number: int, tokens: Sequence[int], salt: str, adapters: Mix = ()) -> None:
        """Have a slot stand for these tokens."""
        self._uses += 1
        self._slots[number] = Slot(list(tokens), salt, self._uses, adapters)
