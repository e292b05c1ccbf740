"""The byte-level alphabet of GPT-2: each of the 256 bytes written as one printable character.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), its published encoder. Bytes that
print as themselves in Latin-1 keep their character; the other 68 take U+0100 and up, in order.
"""

from __future__ import annotations


def _alphabet() -> str:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(0x100 + i) for i in range(256 - len(printable)))
    return "".join(chr(b) if b in printable else next(others) for b in range(256))


BYTE_TO_CHAR = _alphabet()
_CHAR_TO_BYTE = {c: b for b, c in enumerate(BYTE_TO_CHAR)}


def token_to_bytes(text: str) -> bytes:
    """The bytes that a byte-level token stands for; a token outside the alphabet stands for its own UTF-8."""
    try:
        return bytes(_CHAR_TO_BYTE[c] for c in text)
    except KeyError:
        return text.encode("utf-8", "surrogatepass")
