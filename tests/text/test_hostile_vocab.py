"""Vocabularies that make no sense: one TokenizerError each, naming file and field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo.errors import TokenizerError
from octavo.text import Tokenizer
from tests.text.vocabularies import BYTE, CONTROL, byte_level, spm

T = "tokenizer.ggml."
Change = Callable[[dict[str, Any]], object]


def change(**values: object) -> Change:
    return lambda m: m.update({T + key: value for key, value in values.items()})


def drop(key: str) -> Change:
    return lambda m: m.pop(T + key)


CASES: dict[str, tuple[Change, str, str]] = {  # what is wrong with it: how, the field, a part of the message
    "no model": (drop("model"), "model", "missing"),
    "hybriddna": (change(model="hybriddna"), "model", "'hybriddna' is not supported.*gpt2.*llama"),
    "model is a number": (change(model=3), "model", "is int"),
    "unknown pre": (change(pre="nobody"), "pre", "'nobody' is not known.*llama-bpe.*qwen2"),
    "no tokens": (drop("tokens"), "tokens", "missing"),
    "empty vocabulary": (change(tokens=[], token_type=[]), "tokens", "empty"),
    "tokens are numbers": (change(tokens=[1, 2]), "tokens", "array of texts"),
    "tokens are a text": (change(tokens="abc"), "tokens", "array of texts"),
    "duplicate token": (lambda m: m[T + "tokens"].__setitem__(7, m[T + "tokens"][5]), "tokens", "tokens 5 and 7"),
    "too few types": (lambda m: m[T + "token_type"].pop(), "token_type", "has 257 values for 258 tokens"),
    "too many types": (lambda m: m[T + "token_type"].append(1), "token_type", "has 259 values"),
    "types are floats": (change(token_type=[1.5] * 258), "token_type", "integers"),
    "types are nested": (change(token_type=[[1], [2]]), "token_type", "integers"),
    "types are ragged": (change(token_type=[[1], [2, 3]]), "token_type", "array of numbers"),
    "too few scores": (change(scores=[0.0]), "scores", "has 1 values"),
    "a score is NaN": (change(scores=np.r_[0.0, np.nan, np.zeros(256)]), "scores", "token 1 is NaN"),
    "scores are texts": (change(scores=["x"] * 258), "scores", "numbers"),
    "no merges": (drop("merges"), "merges", "missing"),
    "merge of one text": (change(merges=["ab"]), "merges", "merge 0 is 'ab'"),
    "merge with nothing": (change(merges=["a b", "a "]), "merges", "merge 1 is 'a '"),
    "BOS past the end": (change(bos_token_id=258), "bos_token_id", "token 258 is not in the vocabulary.*0 to 257"),
    "EOS of 2^32 - 1": (change(eos_token_id=2**32 - 1), "eos_token_id", "4294967295"),
    "EOT is negative": (change(eot_token_id=-1), "eot_token_id", "token -1"),
    "BOS is a text": (change(bos_token_id="1"), "bos_token_id", "is str"),
    "BOS is a bool": (change(bos_token_id=True), "bos_token_id", "is bool"),
    "add_bos is a number": (change(add_bos_token=1), "add_bos_token", "is int"),
}


@pytest.mark.parametrize("case", CASES)
def test_byte_level(case: str) -> None:
    how, field, message = CASES[case]
    metadata = byte_level(["a b"], special={"</s>": CONTROL})
    how(metadata)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_metadata(metadata, file="model.gguf")
    assert (caught.value.file, caught.value.field) == ("model.gguf", T + field)


@pytest.mark.parametrize("token", ["<0x-1>", "<0x1>", "<0xGG>", "<0x123>", "0x12", "<0xff>"])
def test_a_byte_token_that_is_no_byte(token: str) -> None:
    with pytest.raises(TokenizerError, match="byte token 259"):
        Tokenizer.from_metadata(spm({}, {token: BYTE}))


def test_no_scores() -> None:
    metadata = spm({"a": -1.0})
    del metadata[T + "scores"]
    with pytest.raises(TokenizerError, match="scores: missing"):
        Tokenizer.from_metadata(metadata)


def test_what_real_files_do_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_level(["a b", "a b"], special={"": CONTROL, "new": 77})  # a merge twice, an empty token, a new type
    change(padding_token_id=300)(metadata)
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.texts[257] == "[EMPTY_257]"
    assert tokenizer.token_bytes(258) == b""
    assert tokenizer.pad_id is None
    assert "padding_token_id: token 300" in caplog.text


@pytest.mark.parametrize("token", [-1, 258, 2**40])
def test_ids_out_of_range(token: int) -> None:
    tokenizer = Tokenizer.from_metadata(byte_level(["a b"], special={"</s>": CONTROL}))
    for use in (
        tokenizer.token_bytes,
        tokenizer.is_special,
        lambda i: tokenizer.decode([1, i]),
        tokenizer.stream().push,
    ):
        with pytest.raises(TokenizerError, match=rf"token id {token} is out of range.*0 to 257"):
            use(token)
