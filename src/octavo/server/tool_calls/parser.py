"""Calls of tools in a reply, read as they come.

The result is the same whatever the pieces that a reply comes in. What is not a call, or calls an unknown tool,
is text. A call that breaks off in the middle of its arguments ends there, and one that is cut before them is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.server.generation.reasoning import held_back
from octavo.server.tool_calls.formats import ToolFormat
from octavo.server.tool_calls.readers import Reader, Tools


@dataclass(slots=True)
class CallPiece:
    """Text, or a part of a call: `index` counts calls, the first part of one has its name."""

    text: str = ""
    index: int | None = None
    name: str | None = None
    arguments: str = ""


class ToolParser:
    """Takes a reply in pieces and gives its text and its calls. White space next to calls is left out."""

    def __init__(self, form: ToolFormat, tools: Tools) -> None:
        self._form, self._tools = form, tools
        self._held, self._gap, self._calls = "", "", 0
        self._state, self._after_call = "begins", False
        self._reader: Reader | None = None
        self._raw, self._marker, self._told = "", "", False

    def push(self, text: str) -> list[CallPiece]:
        """What more text adds; some of it may be held back until later."""
        self._held += text
        pieces: list[CallPiece] = []
        while (found := self._step()) is not None:
            pieces += found
        return _joined(pieces)

    def finish(self, *, cut: bool = False) -> list[CallPiece]:
        """What was held back, when no more text comes; `cut`: there was more to come."""
        held, self._held = self._held, ""
        if self._state == "reads":
            if cut and self._begins_call():
                return []
            held = "" if self._told else self._marker + self._raw
        elif self._state == "after" or (cut and held):  # a part of a marker
            return []
        pieces = self._text(held)
        if self._gap and not self._calls:
            pieces.append(CallPiece(self._gap))
        return _joined(pieces)

    def _begins_call(self) -> bool:
        """Whether what is read can be nothing but the beginning of a call."""
        form, raw = self._form, "".join(self._raw.split())
        if self._marker or not form.bare or not raw.startswith(form.bare):
            return True
        begin = "".join((form.around[0] + form.call.partition("NAME")[0]).split())
        return any((begin + name).startswith(raw) or raw.startswith(begin + name) for name in self._tools)

    def _step(self) -> list[CallPiece] | None:
        """Take some of what is held; None where more is needed."""
        if not self._held:
            return None
        return {"begins": self._begins, "text": self._in_text, "reads": self._reads, "after": self._after}[
            self._state
        ]()

    def _begins(self) -> list[CallPiece] | None:
        """The beginning of a reply, where a call may stand without a marker."""
        text = self._held.lstrip()
        if not text:
            return None
        if self._form.bare and text[0] == self._form.bare:
            self._gap += self._held[: len(self._held) - len(text)]
            self._held = text
            return self._begin("")
        self._state = "text"
        return []

    def _begin(self, marker: str) -> list[CallPiece]:
        """Begin to read calls; what is held stands after the marker."""
        self._state, self._marker, self._raw, self._told = "reads", marker, "", False
        self._reader = self._form.reader(self._tools)
        return []

    def _in_text(self) -> list[CallPiece] | None:
        opens = self._form.opens
        found = min(((at, m) for m in opens if (at := self._held.find(m)) >= 0), default=None)
        if found is None:
            end = len(self._held) - held_back(self._held, *opens)
            if not end:
                return None
            text, self._held = self._held[:end], self._held[end:]
            return self._text(text)
        at, marker = found
        pieces = self._text(self._held[:at])
        kept = marker == self._form.kept
        self._held = self._held[at if kept else at + len(marker) :]
        self._begin("" if kept else marker)
        return pieces

    def _text(self, text: str) -> list[CallPiece]:
        """Text, whose white space at the end waits for what comes after it."""
        text = text.lstrip() if self._after_call else text
        shown = text.rstrip()
        if not shown:
            self._gap += text
            return []
        out, self._gap, self._after_call = self._gap + shown, text[len(shown) :], False
        return [CallPiece(out)]

    def _reads(self) -> list[CallPiece] | None:
        assert self._reader is not None
        pieces: list[CallPiece] = []
        for i, c in enumerate(self._held):
            parts = self._reader.feed(c)
            if not self._told:
                self._raw += c
            for name, arguments in parts:
                if name is not None:
                    self._calls += 1
                    self._told, self._gap = True, ""
                pieces.append(CallPiece("", self._calls - 1, name, arguments))
            if self._reader.broken or self._reader.done:
                self._held = self._held[i + 1 :]
                return pieces + (self._broke(c) if self._reader.broken else self._ended())
        self._held = ""
        return pieces

    def _ended(self) -> list[CallPiece]:
        self._state, self._after_call = "after", True
        return []

    def _broke(self, c: str) -> list[CallPiece]:
        """What was read is text: of a call that was told of the rest, of others all, where calls may be."""
        self._state = "text"
        if self._told:
            self._held, self._after_call = c + self._held, True
            return []
        raw = self._marker + self._raw
        first = len(self._marker) or 1
        self._held = raw[first:] + self._held
        return self._text(raw[:first])

    def _after(self) -> list[CallPiece] | None:
        """After calls: what closes them, and others that have no marker of their own."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        close = next((c for c in self._form.closes if self._held.startswith(c)), None)
        if close is not None:
            self._held = self._held[len(close) :]
        elif any(c.startswith(self._held) for c in self._form.closes):
            return None
        elif self._held[0] in self._form.separates:
            self._held = self._held[1:]
        elif self._form.separates and self._held[0] == self._form.bare:
            return self._begin("")
        else:
            self._state = "text"
        return []


def _joined(pieces: list[CallPiece]) -> list[CallPiece]:
    """Neighbouring pieces of text as one, and of a call."""
    out: list[CallPiece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if last is not None and last.index == piece.index and piece.name is None:
            last.text += piece.text
            last.arguments += piece.arguments
        else:
            out.append(piece)
    return out
