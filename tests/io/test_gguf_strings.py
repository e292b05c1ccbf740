"""Arrays of texts are read all at once where that can be, and are what reading one by one gives."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.io.gguf import values
from octavo.io.gguf.values import ValueType, decode_string, decode_strings

CASES: dict[str, list[bytes]] = {
    "plain": [b"a", b"bc", "Ġü🙂".encode()] * 50, "none": [], "one": [b"x"], "one empty": [b""],
    "empty": [b"a", b"", b"b"],
    "the last empty": [b"a", b""], "long": [b"a" * 255, b"b" * 256, b"c" * 70_000], "NUL": [b"a\0b", b"c"],
    "NULs": [b"a", b"\0" * 20, b"b"], "not UTF-8": [b"a", b"\xff\xfe", b"b"],
    "half a character": ["ü".encode()[:1], b"\xbcx"],
    "a header in a text": [b"ab" + struct.pack("<Q", 3) + b"xyz", b"c"], "lines": [b"a\nb", b"\r\n"],
}


def encoded(texts: list[bytes]) -> bytes:
    parts = [struct.pack("<IQ", ValueType.STRING, len(texts))]
    return b"".join([*parts, *(struct.pack("<Q", len(text)) + text for text in texts)])


@pytest.mark.parametrize("name", CASES)
def test_texts(name: str) -> None:
    assert decode_strings(encoded(CASES[name])) == [decode_string(text) for text in CASES[name]]


@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=8).map(str.encode)), max_size=12))
@settings(deadline=None)
def test_any_texts(texts: list[bytes]) -> None:
    assert decode_strings(encoded(texts)) == list(map(decode_string, texts))


def test_a_vocabulary_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "split_strings", None)
    assert decode_strings(encoded(CASES["plain"])) == list(map(decode_string, CASES["plain"]))
