"""What a reply's tokens come to for a client: text, as it can be shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.runtime.stop import StopStrings
from octavo.text import Tokenizer


@dataclass(slots=True)
class ToolDelta:
    """A piece of a call: the first of one has its id and name, all have a part of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Delta:
    """A piece of a reply: text, thoughts, or a part of a call."""

    content: str = ""
    reasoning: str = ""
    tool: ToolDelta | None = None


class Detail:
    """Takes a reply's tokens as they come, and gives what they add to it.

    stopped  the stop string that was reached, after which nothing more comes
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._stream, self._stops, self._watched = tokenizer.stream(), StopStrings(stops), tuple(stops)
        self.stopped: str | None = None

    def push(self, tokens: Sequence[int]) -> list[Delta]:
        """What tokens add, which may be held back until later."""
        return self._shown("".join(map(self._stream.push, tokens)))

    def finish(self) -> list[Delta]:
        """What was held back, when no more tokens come."""
        deltas = self._shown(self._stream.flush())
        rest = "" if self.stopped else self._stops.flush()
        return [*deltas, Delta(rest)] if rest else deltas

    def _shown(self, text: str) -> list[Delta]:
        if self.stopped is not None or not text:
            return []
        shown, stopped = self._stops.push(text)
        if stopped:
            self.stopped = next((s for s in self._watched if s), "")
        return [Delta(shown)] if shown else []
