"""Streaming: pieces are whole characters, and joined they are what decoding at once gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.runtime.output.reply import Reply
from octavo.server.generation.output_parser import OutputParser
from octavo.text import Tokenizer
from tests.text.vocabularies import BYTE_TO_CHAR, CONTROL, UNUSED, byte_level, spm

BYTES = Tokenizer.from_metadata(byte_level([], special={"<s>": CONTROL, "gone": UNUSED}))
SPM = Tokenizer.from_metadata(spm({"▁": -1.0, "▁a": -2.0, "é": -3.0}, {"<|x|>": CONTROL}))


def ids_of(data: bytes) -> list[int]:
    return [BYTE_TO_CHAR.index(BYTE_TO_CHAR[b]) for b in data]


def test_never_half_a_character() -> None:
    stream = BYTES.stream()
    assert [stream.push(i) for i in ids_of("aé😀".encode())] == ["a", "", "é", "", "", "", "😀"]
    assert stream.flush() == ""


def test_what_is_left_becomes_the_replacement_character() -> None:
    stream = BYTES.stream()
    assert [stream.push(i) for i in ids_of("😀".encode()[:3])] == ["", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.push(ids_of(b"a")[0]) == "a"


def test_a_character_of_what_is_cut_is_left_out() -> None:
    stream = BYTES.stream()
    assert [stream.push(i) for i in ids_of("a😀".encode()[:3])] == ["a", "", ""]
    assert stream.flush(cut=True) == ""
    reply = Reply(BYTES, max_tokens=3)
    assert "".join(map(reply.add, ids_of("a😀".encode()[:3]))) == reply.text == "a"
    detail = OutputParser(BYTES)
    deltas = detail.push(ids_of("a😀".encode()[:3])) + detail.finish(cut=True)
    assert "".join(delta.content for delta in deltas) == "a"


def test_tokens_that_stand_twice_around_a_text_are_named(caplog: pytest.LogCaptureFixture) -> None:
    keys = byte_level([], special={"<s>": CONTROL, "</s>": CONTROL})
    keys |= {f"tokenizer.ggml.{role}_token_id": 256 + i for i, role in enumerate(("bos", "eos"))}
    words = Tokenizer.from_metadata(keys | {f"tokenizer.ggml.add_{role}_token": True for role in ("bos", "eos")})
    words.encode("a")
    assert not caplog.text
    assert words.encode("<s>a")[:2] == [256, 256]
    assert "the model adds BOS, and the text already begins with it: it occurs twice" in caplog.text
    words.encode("a</s>")
    assert "the model adds EOS, and the text already ends with it: it occurs twice" in caplog.text


def test_bytes_that_are_no_text() -> None:
    stream = BYTES.stream()
    assert [stream.push(i) for i in ids_of(b"\xffa\xc3(")] == ["\ufffd", "a", "", "\ufffd("]


def test_special_and_unused_tokens() -> None:
    assert BYTES.decode([256, 257, *ids_of(b"a")]) == "<s>a"
    assert BYTES.decode([256, 257, *ids_of(b"a")], skip_special=True) == "a"
    assert BYTES.token_bytes(257) == b""


@given(st.lists(st.integers(0, 257)), st.booleans())
@settings(max_examples=400, deadline=None)
def test_pieces_make_the_whole(ids: list[int], skip: bool) -> None:
    stream = BYTES.stream(skip)
    pieces = [stream.push(i) for i in ids]
    data = b"".join(BYTES.token_bytes(i) for i in ids if not (skip and BYTES.is_special(i)))
    assert "".join(pieces) + stream.flush() == data.decode("utf-8", "replace") == BYTES.decode(ids, skip)


@given(st.lists(st.integers(0, SPM.n_vocab - 1)), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_pieces_make_the_whole_with_spaces(ids: list[int], skip: bool, continued: bool) -> None:
    stream = SPM.stream(skip, continued=continued)
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.flush() == SPM.decode(ids, skip, continued=continued)
    whole = SPM.decode(ids, skip, continued=True)
    assert SPM.decode(ids, skip) in (whole, whole.replace(" ", "", 1))
