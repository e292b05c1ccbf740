"""Vocabularies of tokens by rank and of PLaMo's kind, and those behind which a class's own code puts tokens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import legacy_cases  # noqa: F401 (its cases are in the table)
from octavo.errors import TokenizerError
from octavo.huggingface import open_model_file
from octavo.huggingface.tokenizer.token_lines import BREAKS
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.text import Tokenizer
from octavo.text.bytelevel import token_to_bytes
from tests.convert.folders import SPECIALS, TEXT, byte_level, spm, write
from tests.convert.test_vocabulary import sentencepiece_of
from tests.huggingface import test_token_lines as token_lines
from tests.huggingface.test_tiktoken import folder_of, ranked


def test_tokens_by_rank_are_joined_as_merges_say(tmp_path: Path) -> None:
    want = byte_level("chatglm-bpe")
    folder_of(tmp_path, "chatglm-first")
    words = sorted((i, text) for text, i in want.get_vocab(with_added_tokens=False).items())
    (tmp_path / "tokenizer.model").write_text(ranked([token_to_bytes(text) for _, text in words]))
    added = {str(len(words) + i): {"content": text, "special": True} for i, text in enumerate(SPECIALS)}
    write(tmp_path, "tokenizer_config.json", {"added_tokens_decoder": added})
    with open_model_file(tmp_path) as file:
        got = Tokenizer.from_metadata(file.metadata, file="m")
    for line in (*TEXT, "a  b\n\n 1234567 it's IT'S \u00e9\u00e8 \u4e2d\u6587", f"{SPECIALS[0]} x"):
        assert got.encode(line, add_special=False) == want.encode(line, add_special_tokens=False).ids


def test_tokens_that_the_code_of_qwen_has(tmp_path: Path) -> None:
    folder_of(tmp_path, "qwen")
    (tmp_path / "qwen.tiktoken").write_text(ranked([bytes([i]) for i in range(100)]))
    with open_model_file(tmp_path) as file:
        texts, kinds = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.token_type"]
        assert [texts[i] for i in (100, 102, 103, 307, 308)] == [
            "<|endoftext|>", "<|im_end|>", "<|extra_0|>", "<|extra_204|>", "[PAD308]",
        ]
        assert [int(kinds[i]) for i in (99, 100, 307, 308)] == [1, 3, 3, 5]
        assert file.metadata.get_bool("tokenizer.ggml.normalizer.nfc")


def test_tokens_that_the_code_of_chatglm_has_behind_pieces(tmp_path: Path) -> None:
    """ChatGLM 2 and 3 have a SentencePiece model under the same name."""
    folder_of(tmp_path, "chatglm-first")
    first = SimpleNamespace(texts={i: text for text, i in spm().get_vocab().items() if i < 300})
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_of(cast(TokenizerJson, first)))
    with open_model_file(tmp_path) as file:
        texts, kinds = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.token_type"]
        assert texts[300:310] == [
            "[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
            "[PAD309]",
        ]
        assert set(map(int, kinds[300:309])) == {3}


def test_more_tokens_than_the_embedding_has(tmp_path: Path) -> None:
    folder_of(tmp_path, "qwen")
    (tmp_path / "qwen.tiktoken").write_text(ranked([bytes([i]) for i in range(200)]))
    with pytest.raises(TokenizerError, match="408 tokens for an embedding of 320"):
        open_model_file(tmp_path)


def test_a_folder_without_any_names_the_file_of_its_class(tmp_path: Path) -> None:
    folder_of(tmp_path, "qwen")
    with pytest.raises(TokenizerError, match=r"allowed: tokenizer.json or tokenizer.model or qwen.tiktoken"):
        open_model_file(tmp_path)


@pytest.mark.parametrize(("said", "pre", "runs"), [({}, "default", 2), (BREAKS, "plamo3", 3)])
def test_vocabulary_of_a_folder_of_plamo_2(tmp_path: Path, said: dict[str, Any], pre: str, runs: int) -> None:
    token_lines.test_vocabulary_of_a_folder(tmp_path, "plamo2", said, pre, runs)
