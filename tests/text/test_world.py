"""RWKV World: the longest token at each place, escapes in files, and the template that files name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.errors import TemplateError, TokenizerError
from octavo.text import Tokenizer
from octavo.text.world import escaped, unescaped

K = "tokenizer.ggml."
WORDS = ["ab", "abcd", "bc", "User", "\n\n", "日本", "é"]


def keys(*more: bytes, **values: Any) -> dict[str, Any]:
    """Bytes, some words and more of these, behind a token that ends a text; the last one fills up an embedding."""
    tokens = [*(bytes([b]) for b in range(256)), *(word.encode() for word in WORDS), *more]
    texts = ["<s>", *map(escaped, tokens), "[PAD300]"]
    return {
        f"{K}model": "rwkv", f"{K}tokens": texts, f"{K}token_type": [3, *[1] * len(tokens), 5], f"{K}bos_token_id": 0,
        f"{K}eos_token_id": 0, **{K + key: value for key, value in values.items()},
    }


def test_the_longest_token_at_each_place() -> None:
    """At "abc" three tokens begin with "ab" and none is "abc"; the rest of a text may be shorter than the longest."""
    tokenizer = Tokenizer.from_metadata(keys("本".encode()[:2], b"c\xe6"))
    assert [tokenizer.texts[i] for i in tokenizer.encode("abcabcdbcab")] == ["ab", "c", "abcd", "bc", "ab"]
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("c本")] == [b"c\xe6", b"\x9c", b"\xac"]
    for text in ("", "日本é\u00e9 \\ \\n ' \" \t\r\n\n\n\0", "😀abcd"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.least_tokens("abcd" * 3) == 2  # of six bytes each, as "日本" has them
    assert not tokenizer.add_bos
    assert tokenizer.stop_ids == {0}


def test_greedy_as_the_definition_says() -> None:
    rng = np.random.default_rng(0)
    tokens = dict.fromkeys(bytes(rng.integers(97, 100, rng.integers(2, 7)).tolist()) for _ in range(60))
    tokenizer = Tokenizer.from_metadata(keys(*(t for t in tokens if t.decode() not in WORDS)))
    known = {tokenizer.token_bytes(i): i for i in range(1, tokenizer.n_vocab - 1)}
    text, want, at = bytes(rng.integers(97, 100, 400).tolist()), [], 0
    while at < len(text):
        longest = next(text[at : at + n] for n in range(7, 0, -1) if text[at : at + n] in known)
        want.append(known[longest])
        at += len(longest)
    assert tokenizer.encode(text.decode()) == want


def test_control_tokens_and_those_that_fill_up_are_in_no_text() -> None:
    """llama.cpp finds both of them in any text."""
    tokenizer = Tokenizer.from_metadata(keys())
    assert tokenizer.encode("<s>ab") == [0, 257]
    assert [tokenizer.texts[i] for i in tokenizer.encode("<s>[PAD300]", parse_special=False)] == [*"<s>[PAD300]"]
    assert tokenizer.decode([tokenizer.n_vocab - 1]) == ""


@pytest.mark.parametrize("token", [b"\\", b"\\n", b"\n\t\r", b"'\"", b"\x00\xff", b"\\x41", "é".encode(), b"~ "])
def test_escapes(token: bytes) -> None:
    assert unescaped(escaped(token)) == token


def test_texts_that_need_no_escapes() -> None:
    assert unescaped("é 日\\q\\'") == "é 日q'".encode()


@pytest.mark.parametrize("text", ["\\x4", "\\xg1", "ab\\", "\\x"])
def test_what_is_no_escape(text: str) -> None:
    found = keys()
    found[f"{K}tokens"][5] = text
    with pytest.raises(TokenizerError, match=r"tokenizer.ggml.tokens: token 5 has the escape"):
        Tokenizer.from_metadata(found)


def test_vocabularies_without_what_a_text_has() -> None:
    found = keys()
    found[f"{K}token_type"][1 + ord("q")] = 5
    with pytest.raises(TokenizerError, match=r"byte b'q' is not a token"):
        Tokenizer.from_metadata(found).encode("aq")
    with pytest.raises(TokenizerError, match=r"has no normal tokens"):
        Tokenizer.from_metadata(found | {f"{K}token_type": [3] * len(found[f"{K}tokens"])})


def test_the_template_that_files_name() -> None:
    """An empty line ends a turn, so that it has to be a token of its own that ends an answer."""
    end = 1 + 256 + WORDS.index("\n\n")
    tokenizer = Tokenizer.from_metadata(keys(eot_token_id=end) | {"tokenizer.chat_template": "rwkv-world"})
    messages = [{"role": "system", "content": "x "}, {"role": "user", "content": " y\n"},
                {"role": "assistant", "content": "z"}]
    assert tokenizer.chat_template().render(messages) == "System: x\n\nUser: y\n\nAssistant: z\n\nAssistant:"
    assert tokenizer.chat_template().render(messages, False).endswith("z\n\n")
    assert tokenizer.stop_ids == {0, end}
    assert tokenizer.encode_chat(tokenizer.chat_template(), messages).count(end) == 3
    with pytest.raises(TemplateError):
        tokenizer.chat_template().render([{"role": "tool", "content": "x"}])
