"""Blocks: a reply as a list of thoughts, texts and calls, each of which is complete before the next begins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from octavo.server.generation.handle import CompletionOutput
from octavo.server.generation.output_parser import Delta


@dataclass(slots=True)
class ReplyBlock:
    """`text` is what it holds: thoughts, text, or the arguments of a call, which has an id and a name.

    custom  of a call: it holds a text
    """

    index: int
    kind: Literal["thinking", "text", "call"]
    text: str = ""
    id: str = ""
    name: str = ""
    custom: bool = False

    def data(self) -> Any:
        """A call's arguments as data; None where they were cut off."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None


Change = tuple[Literal["begins", "grows", "ends"], ReplyBlock, str]
"""What happens to a block, and the piece that it grows by."""


class Blocks:
    """Takes the pieces of a reply in their order."""

    def __init__(self) -> None:
        self.all: list[ReplyBlock] = []
        self._open: ReplyBlock | None = None

    def take(self, outputs: Iterable[CompletionOutput]) -> Iterator[Change]:
        """What outputs of the reply change."""
        for output in outputs:
            for delta in output.deltas:
                yield from self._add(delta)

    def end(self) -> Iterator[Change]:
        """The end of the block that is open."""
        if self._open is not None:
            block, self._open = self._open, None
            yield "ends", block, ""

    def _add(self, delta: Delta) -> Iterator[Change]:
        tool = delta.tool
        kind: Literal["thinking", "text", "call"] = "call" if tool else "thinking" if delta.reasoning else "text"
        if self._open is None or self._open.kind != kind or (tool is not None and tool.name is not None):
            yield from self.end()
            block = ReplyBlock(len(self.all), kind)
            if tool is not None:
                block.id, block.name, block.custom = tool.id or "", tool.name or "", tool.custom
            self.all.append(block)
            self._open = block
            yield "begins", block, ""
        piece = tool.arguments if tool is not None else delta.reasoning or delta.content
        if piece:
            self._open.text += piece
            yield "grows", self._open, piece
