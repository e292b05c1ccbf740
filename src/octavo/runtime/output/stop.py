"""Stop strings: text that ends a reply, and is not part of it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches a stream of text. What might be the start of a stop string is held back until that is decided.

    reached  the stop string that ended the text
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._held = ""
        self.reached: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is safe to show now, and whether a stop string was reached."""
        if not self._stops:
            return text, False
        self._held += text
        found = [(at + len(s), at, s) for s in self._stops if (at := self._held.find(s)) >= 0]
        if found:
            _, at, self.reached = min(found)  # the one complete first, so that it does not matter how the text was cut
            shown, self._held = self._held[:at], ""
            return shown, True
        keep = self._possible_start()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown, False

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        shown, self._held = self._held, ""
        return shown

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that a stop string starts with."""
        longest = max((len(s) for s in self._stops), default=0) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(s.startswith(self._held[-size:]) for s in self._stops):
                return size
        return 0
