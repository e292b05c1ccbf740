"""OutputParser: a reply's tokens as text, thinking and tool calls, as they can be shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from octavo.runtime.output.stop import StopStrings
from octavo.runtime.output.thinking import Thinking
from octavo.server.generation.harmony import CHANNEL, HarmonyChannels
from octavo.server.generation.ids import new_id
from octavo.server.generation.reasoning import Reasoning
from octavo.server.tool_calls.custom_tools import InputReader
from octavo.server.tool_calls.parser import CallPiece, ToolParser
from octavo.text import Tokenizer


@dataclass(slots=True)
class ToolDelta:
    """A piece of a call: the first of one has its id and name, all have a part of its arguments.

    custom  the call's only argument is a text, of which that is a part
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    custom: bool = False


@dataclass(slots=True)
class Delta:
    """A piece of a reply: text, thoughts, or a part of a call."""

    content: str = ""
    reasoning: str = ""
    tool: ToolDelta | None = None


class OutputParser:
    """Takes a reply's tokens as they come, and gives the deltas that they add.

    customs  names of tools whose argument is a text
    after    the prompt, where the reply's text goes on in the prompt's
    stopped  the stop string that was reached, after which nothing more comes
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), thinking: Thinking | None = None,
        parser: ToolParser | None = None, call_id: Callable[[], str] = lambda: new_id("call_"),
        after: Sequence[int] = (), customs: Collection[str] = (),
    ) -> None:
        self._customs: Collection[str] = customs
        self._input: InputReader | None = None  # of the call that is read, if its argument is a text
        self._stream, self._stops = tokenizer.stream_after(after), StopStrings(stops)
        channels = thinking is not None and thinking.start.startswith(CHANNEL)
        self._reasoning = HarmonyChannels(thinking.begun) if thinking is not None and channels else Reasoning(thinking)
        self._parser, self._call_id = parser, call_id
        self.stopped: str | None = None

    def push(self, tokens: Sequence[int]) -> list[Delta]:
        """The deltas that tokens add; some text may be held back until later."""
        return self._shown("".join(map(self._stream.push, tokens)))

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """What was held back, when no more tokens come; `cut`: the model would have gone on."""
        deltas = self._shown(self._stream.flush(cut=cut))
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
        return deltas + self._told(self._parser.finish(cut=cut) if self._parser else ())

    def _deltas(self, thought: str, answer: str) -> list[Delta]:
        deltas = [Delta(reasoning=thought)] if thought else []
        if answer and self._parser is None:
            deltas.append(Delta(answer))
        elif answer and self._parser is not None:
            deltas += self._told(self._parser.push(answer))
        return deltas

    def _told(self, pieces: Iterable[CallPiece]) -> list[Delta]:
        found = []
        for piece in pieces:
            if piece.index is None:
                found.append(Delta(piece.text))
                continue
            new = self._call_id() if piece.name is not None else None
            if piece.name is not None:
                self._input = InputReader() if piece.name in self._customs else None
            text = piece.arguments if self._input is None else self._input.push(piece.arguments)
            if text or new is not None:
                found.append(Delta(tool=ToolDelta(piece.index, new, piece.name, text, self._input is not None)))
        return found
