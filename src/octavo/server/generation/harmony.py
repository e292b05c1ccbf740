"""gpt-oss's replies: messages, each of which begins with a header that names its channel."""

from __future__ import annotations

import re

from octavo.server.generation.reasoning import held_back
from octavo.server.tool_calls.formats import HARMONY_CALL

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>", START)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_CALLED = re.compile(r"to=functions\.([^\s<]+)")


class HarmonyChannels:
    """Cuts a reply into thinking and answer, as `Reasoning` does, at the headers of its messages.

    Messages of the channel "analysis" are thinking, others are the answer. One to a function is written with the header
    that a `ToolParser` looks for. A reply without headers is the answer. `begun`: the prompt ends in a header of
    thinking.
    """

    def __init__(self, begun: bool = False) -> None:
        self._held, self._state = "", "body" if begun else "begins"
        self._thinks, self._gap = begun, ""
        self._thought = self._answered = False

    def push(self, text: str) -> tuple[str, str]:
        """What is known of more text: thinking, and answer."""
        self._held += text
        thought = answer = ""
        while (found := self._step()) is not None:
            thought, answer = thought + found[0], answer + found[1]
        return thought, answer

    def finish(self, *, cut: bool = False) -> tuple[str, str]:
        """What was held back, when no more text comes; `cut`: parts of markers are none of it."""
        held, self._held = self._held, ""
        if cut:
            held = held[: len(held) - held_back(held, CHANNEL, *ENDS)]
        if self._state == "body":
            return self._message_text(held)
        return "", held if self._state == "begins" else ""

    def _step(self) -> tuple[str, str] | None:
        """Take some of what is held; None where more is needed."""
        if not self._held:
            return None
        return {"begins": self._begin, "between": self._begin, "head": self._head, "body": self._body,
                "plain": self._plain}[self._state]()

    def _begin(self) -> tuple[str, str] | None:
        text = self._held.lstrip()
        if text.startswith((CHANNEL, START)):
            self._held, self._state = text, "head"
        elif text and not CHANNEL.startswith(text) and not START.startswith(text):
            self._state = "plain"
        else:
            return None
        return "", ""

    def _plain(self) -> tuple[str, str]:
        held, self._held = self._held, ""
        return "", held

    def _head(self) -> tuple[str, str] | None:
        head, found, rest = self._held.partition(MESSAGE)
        if not found:
            return None
        self._held, self._state = rest, "body"
        channel, called = _CHANNEL.search(head), _CALLED.search(head)
        self._thinks = called is None and channel is not None and channel[1] == "analysis"
        if called is not None:
            return "", f"{HARMONY_CALL}{called[1]}{MESSAGE}"
        if self._thinks and self._thought:
            self._gap = "\n"
        return "", ""

    def _body(self) -> tuple[str, str] | None:
        at, end = min(((at, m) for m in ENDS if (at := self._held.find(m)) >= 0), default=(-1, ""))
        if at < 0:
            at = len(self._held) - held_back(self._held, *ENDS)
            text, self._held = self._held[:at], self._held[at:]
            return self._message_text(text) if text else None
        text, self._held = self._held[:at], self._held[at if end == START else at + len(end) :]
        self._state = "between"
        return self._message_text(text)

    def _message_text(self, text: str) -> tuple[str, str]:
        """Text of a message; white space is left out around thinking, and before the answer."""
        if not self._thinks:
            text = text if self._answered else text.lstrip()
            self._answered = self._answered or bool(text)
            return "", text
        text = self._gap + text if self._thought else text.lstrip()
        shown = text.rstrip()
        self._gap, self._thought = text[len(shown) :], self._thought or bool(shown)
        return shown, ""
