"""The table by which SentencePiece replaces characters before it tokenizes: `tokenizer.ggml.precompiled_charsmap`.

Source: the Darts-clone double array, as SentencePiece's normalizer stores it: its size in bytes (uint32), its units
(uint32 each), then the replacements, which end with a zero byte. A unit has in its bits

    0-7, 31   the byte that leads to it; with bit 31, an offset into the replacements in bits 0-30
    8         whether a text ends here: the unit at its base has the offset
    9         whether the base is to be shifted by 8 more
    10-30     the base: where its children lie, each at base ^ byte
"""

from __future__ import annotations

import numpy as np

from octavo.text.fields import Fields

CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_VALUE = 1 << 31
_LONGEST = 64  # bytes that are looked at for one replacement, so a table that goes in circles costs no time


class Charsmap:
    """Replaces the longest texts that the table knows, from left to right.

    Raises TokenizerError for a table that is cut off, and one that leads out of itself.
    """

    def __init__(self, fields: Fields, raw: bytes) -> None:
        size = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 or size % 4 or 4 + size >= len(raw):
            raise fields.fault(CHARSMAP, f"{len(raw)} bytes, of which {size} are units", "4 + units + replacements")
        self._fields = fields
        self._units: list[int] = np.frombuffer(raw, "<u4", size // 4, 4).tolist()
        self._replacements = raw[4 + size :]

    def apply(self, text: str) -> str:
        """`text` with what the table replaces."""
        out, rest, at = [], text.encode(), 0
        while at < len(rest):
            length, replacement = self._match(rest[at : at + _LONGEST])
            if length == 0:
                length = _character_bytes(rest[at])
                replacement = rest[at : at + length].decode()
            out.append(replacement)
            at += length
        return "".join(out)

    def _match(self, text: bytes) -> tuple[int, str]:
        """The longest beginning of `text` that is replaced, in bytes, and by what; 0 for none."""
        node, length, value = self._base(0), 0, -1
        for i, byte in enumerate(text):
            node ^= byte
            unit = self._unit(node)
            if byte == 0 or unit & (_VALUE | 0xFF) != byte:
                break
            node ^= self._base(node)
            if unit >> 8 & 1:
                length, value = i + 1, self._unit(node) & (_VALUE - 1)
        return (length, self._replacement(value)) if length else (0, "")

    def _base(self, node: int) -> int:
        unit = self._unit(node)
        return unit >> 10 << ((unit & 1 << 9) >> 6)

    def _unit(self, node: int) -> int:
        if node >= len(self._units):
            raise self._fields.fault(CHARSMAP, f"leads to unit {node}", f"0 to {len(self._units) - 1}")
        return self._units[node]

    def _replacement(self, at: int) -> str:
        end = self._replacements.find(0, at)
        if end < 0:
            raise self._fields.fault(CHARSMAP, f"replacement at {at} has no end", "a zero byte after each")
        return self._replacements[at:end].decode("utf-8", "replace")


def _character_bytes(first: int) -> int:
    """How many bytes the character has whose first byte is `first`."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
