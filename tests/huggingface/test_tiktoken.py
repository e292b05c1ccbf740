"""Vocabularies of tokens by rank, as tiktoken has them, and those behind which a class's own code puts tokens."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from octavo.errors import TokenizerError
from octavo.huggingface import open_model_file
from octavo.huggingface.tokenizer.tiktoken import merges_of, read_ranks
from octavo.text import Tokenizer
from octavo.text.bytelevel import token_to_bytes
from tests.convert.folders import SPECIALS, TEXT, byte_level, write
from tests.models.table import saved
from tests.models.tiny_checkpoints import TABLE


def ranked(tokens: list[bytes]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def folder_of(path: Path, case: str) -> None:
    """A folder of a class with remote code, without a tokenizer."""
    saved(path, TABLE[case])
    (path / "tokenizer.json").unlink()
    write(path, "tokenizer_config.json", {})


def test_tokens_by_rank_are_joined_as_merges_say(tmp_path: Path) -> None:
    want = byte_level("kimi-k2")
    folder_of(tmp_path, "kimi-linear")
    words = sorted((i, text) for text, i in want.get_vocab(with_added_tokens=False).items())
    (tmp_path / "tiktoken.model").write_text(ranked([token_to_bytes(text) for _, text in words]))
    added = {str(len(words) + i): {"content": text, "special": True} for i, text in enumerate(SPECIALS)}
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": added})
    with open_model_file(tmp_path) as file:
        got = Tokenizer.from_metadata(file.metadata, file="m")
    for line in (*TEXT, "a  b\n\n 1234567 it's IT'S \u00e9\u00e8 \u4e2d\u6587", f"{SPECIALS[0]} x"):
        assert got.encode(line, add_special=False) == want.encode(line, add_special_tokens=False).ids


def test_tokens_by_rank_of_kimi(tmp_path: Path) -> None:
    """Special tokens are those that tokenizer_config.json lists; words are cut as GGUF's kimi-k2 says."""
    folder_of(tmp_path, "kimi-linear")
    (tmp_path / "tiktoken.model").write_text(ranked([*(bytes([i]) for i in range(256)), b"ab", b"abc"]))
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": {"300": {"content": "<s>", "special": True}}})
    with open_model_file(tmp_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata, file="m")
        assert file.metadata.get_str("tokenizer.ggml.pre") == "kimi-k2"
        assert tokenizer.encode("<s>abca", add_special=False) == [300, 257, 97]


def test_tokens_by_rank_without_special_ones(tmp_path: Path) -> None:
    folder_of(tmp_path, "kimi-linear")
    (tmp_path / "tiktoken.model").write_text(ranked([bytes([i]) for i in range(256)]))
    with open_model_file(tmp_path) as file:
        assert Tokenizer.from_metadata(file.metadata, file="m").encode("ab", add_special=False) == [97, 98]


def test_what_is_joined_last() -> None:
    assert merges_of([b"a", b"b", b"c", b"ab", b"bc", b"abc", b"cab"]) == [
        ("a", "b"), ("b", "c"), ("ab", "c"), ("c", "ab"),
    ]
    assert merges_of([b"a", b"b", b"c", b"d", b"abcd"]) == [], "a token that no joins reach"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("YQ== 0\nYg==\n", r"line 2 is 'Yg=='.*allowed: a token in base64"),
        ("YQ== 0\nYg= 1\n", "line 2 is 'Yg= 1'"),
        ("YQ== 0\nYg== 2\n", "2 ranks have gaps"),
        ("YQ== 0\nYQ== 1\n", "has a token twice"),
    ],
)
def test_files_that_are_no_vocabulary(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "m").write_text(text)
    with pytest.raises(TokenizerError, match=problem):
        read_ranks(tmp_path / "m")


def test_more_tokens_than_the_embedding_has(tmp_path: Path) -> None:
    folder_of(tmp_path, "kimi-linear")
    (tmp_path / "tiktoken.model").write_text(ranked([bytes([i, j]) for i in range(2) for j in range(204)]))
    with pytest.raises(TokenizerError, match="408 tokens for an embedding of 320"):
        open_model_file(tmp_path)


def test_a_folder_without_any_names_the_file_of_its_class(tmp_path: Path) -> None:
    folder_of(tmp_path, "kimi-linear")
    with pytest.raises(TokenizerError, match=r"allowed: tokenizer.json or tokenizer.model or tiktoken.model"):
        open_model_file(tmp_path)
