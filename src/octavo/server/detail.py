"""What a reply's tokens come to for a client: text, thinking and calls of tools, as they can be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.runtime.stop import StopStrings
from octavo.runtime.thinking import Thinking
from octavo.server.channels import CHANNEL, Channels
from octavo.server.names import new_id
from octavo.server.reasoning import Reasoning
from octavo.server.tools import Piece, ToolParser
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

    after    the prompt, where the reply's text goes on in the prompt's
    stopped  the stop string that was reached, after which nothing more comes
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), thinking: Thinking | None = None,
        parser: ToolParser | None = None, call_id: Callable[[], str] = lambda: new_id("call_"),
        after: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._stream, self._stops = tokenizer.stream_after(after), StopStrings(stops)
        channels = thinking is not None and thinking.start.startswith(CHANNEL)
        self._reasoning = Channels(thinking.begun) if thinking is not None and channels else Reasoning(thinking)
        self._parser, self._call_id = parser, call_id
        self.stopped: str | None = None

    def push(self, tokens: Sequence[int]) -> list[Delta]:
        """What tokens add, which may be held back until later."""
        return self._shown("".join(map(self._stream.push, tokens)))

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """What was held back, when no more tokens come; `cut`: the model would have gone on."""
        deltas = self._shown(self._stream.flush())
        return deltas if self.stopped is not None else deltas + self._parsed(self._stops.flush()) + self._last(cut)

    def _shown(self, text: str) -> list[Delta]:
        if self.stopped is not None or not text:
            return []
        shown, stopped = self._stops.push(text)
        deltas = self._parsed(shown)
        if stopped:
            self.stopped = self._stops.reached
            deltas += self._last(cut=True)
        return deltas

    def _parsed(self, text: str) -> list[Delta]:
        thought, answer = self._reasoning.push(text) if text else ("", "")
        return self._deltas(thought, answer)

    def _last(self, cut: bool) -> list[Delta]:
        """What is left once the text is at its end."""
        deltas = self._deltas(*self._reasoning.finish(cut=cut))
        return deltas + list(map(self._delta, self._parser.finish(cut=cut) if self._parser else ()))

    def _deltas(self, thought: str, answer: str) -> list[Delta]:
        deltas = [Delta(reasoning=thought)] if thought else []
        if answer and self._parser is None:
            deltas.append(Delta(answer))
        elif answer and self._parser is not None:
            deltas += map(self._delta, self._parser.push(answer))
        return deltas

    def _delta(self, piece: Piece) -> Delta:
        if piece.index is None:
            return Delta(piece.text)
        new = self._call_id() if piece.name is not None else None
        return Delta(tool=ToolDelta(piece.index, new, piece.name, piece.arguments))
