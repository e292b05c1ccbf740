"""A model's thinking, taken out of its replies as they come."""

from __future__ import annotations

from octavo.runtime.output.thinking import Thinking


class Reasoning:
    """Cuts a reply into thinking and answer, at the markers of the model.

    Without markers all of it is the answer. White space at the ends of thinking, and before an answer that follows it,
    is left out. What may be a part of a marker is held back until that is decided.
    """

    def __init__(self, thinking: Thinking | None) -> None:
        self._markers = thinking
        self._space: list[str] = []  # white space before what is held, which is not looked at again
        self._held = ""
        self._state = "answers"
        if thinking is not None:
            self._state = "thinks" if thinking.begun else "ended" if thinking.ended else "begins"
        self._first = True

    def push(self, text: str) -> tuple[str, str]:
        """What is known of more text: thinking, and answer."""
        if self._state == "answers":
            return "", text
        self._held += text
        thought = ""
        if self._state == "begins":
            self._begin()
        if self._state == "thinks":
            thought = self._think()
        if self._state == "ended":
            self._held = self._held.lstrip()
            self._state = "answers" if self._held else "ended"
        return thought, self._answer()

    def finish(self, *, cut: bool = False) -> tuple[str, str]:
        """What was held back, when no more text comes; `cut`: parts of markers are none of it."""
        held, self._held = self._spaced(self._held), ""
        if cut and self._markers is not None and self._state in ("begins", "thinks"):
            marker = self._markers.start.rstrip() if self._state == "begins" else self._markers.end
            held = held[: len(held) - held_back(held, marker)]
        if self._state == "thinks":
            return (held.lstrip() if self._first else held).rstrip(), ""
        return "", "" if self._state == "ended" else held

    def _answer(self) -> str:
        if self._state != "answers":
            return ""
        held, self._held = self._held, ""
        return held

    def _begin(self) -> None:
        """Decide whether the reply begins with thinking."""
        assert self._markers is not None
        text = self._held.lstrip()
        start = self._markers.start.rstrip()
        if text.startswith(start):
            self._space.clear()
            self._held, self._state = text[len(start) :], "thinks"
        elif not start.startswith(text):
            self._held, self._state = self._spaced(self._held), "answers"
        else:
            self._space.append(self._held[: len(self._held) - len(text)])
            self._held = text

    def _think(self) -> str:
        assert self._markers is not None
        text, found, rest = self._held.partition(self._markers.end)
        if found:
            self._state = "ended"
        else:
            known = len(text) - held_back(text, self._markers.end)
            text, rest = text[:known], text[known:]
        self._held = rest
        thought = text.rstrip()  # white space is shown once something follows it
        space = text[len(thought) :]
        if thought:
            thought = self._spaced(thought)
            thought = thought.lstrip() if self._first else thought
            self._first = False
        if found:
            self._space.clear()
        else:
            self._space.append(space)
        return thought

    def _spaced(self, text: str) -> str:
        """A text after the white space before it, which is not held any longer."""
        spaced = "".join([*self._space, text])
        self._space.clear()
        return spaced


def held_back(text: str, *markers: str) -> int:
    """Length of the longest end of a text that one of the markers begins with."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    ends = (size for size in range(longest, 0, -1) if any(m.startswith(text[-size:]) for m in markers))
    return next(ends, 0)
