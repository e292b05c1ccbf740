"""WordPiece and Unigram tokenizers of checkpoint folders give the ids that the `tokenizers` package gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.errors import TokenizerError
from octavo.huggingface.tokenizer.special_tokens import special_tokens
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.huggingface.tokenizer.vocabulary import vocabulary
from octavo.io.safetensors import Checkpoint
from octavo.text import Tokenizer
from tests.convert import folders

TEXTS = [*folders.TEXT[:30], "Naïve CAFÉ, 日本 x", "un\tknown ½ é", "[MASK] and <pad> here", "a" * 120, ""]


def converted(tokenizer: Any, folder: Path, n_vocab: int, **config: Any) -> Tokenizer:
    tokenizer.save(str(folder / "tokenizer.json"))
    folders.write(folder, "tokenizer_config.json", config)
    checkpoint, listed = Checkpoint(str(folder), {}, {}), TokenizerJson.open(folder / "tokenizer.json")
    keys = vocabulary(checkpoint, listed, n_vocab)
    return Tokenizer.from_metadata(keys | special_tokens(checkpoint, listed, keys["tokenizer.ggml.tokens"]))


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_piece(tmp_path: Path, lowercase: bool) -> None:
    original = folders.word_piece(lowercase=lowercase)
    tokenizer = converted(original, tmp_path, 410)
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.unk_id) == (2, 0, 1)
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text).ids
    assert tokenizer.decode(tokenizer.encode("the software", add_special=False)) == "the software"


@pytest.mark.parametrize("t5", [True, False])
def test_unigram(tmp_path: Path, t5: bool) -> None:
    original = folders.unigram(t5=t5)
    tokenizer = converted(original, tmp_path, 310, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    for text in TEXTS:
        assert tokenizer.encode(text) == original.encode(text).ids, text
    assert tokenizer.decode(tokenizer.encode("the software", add_special=False)) == "the software"


@pytest.mark.parametrize(("path", "value", "message"), [
    ("normalizer", None, r"normalizer: is missing \(allowed: BertNormalizer\)"),
    ("normalizer.clean_text", False, r"normalizer.clean_text: is False"),
    ("pre_tokenizer.type", "Whitespace", r"pre_tokenizer: is Whitespace"),
    ("model.continuing_subword_prefix", "@@", r"continuing_subword_prefix: is '@@' \(allowed: ##\)"),
    ("model.type", "WordLevel", r"model.type: is 'WordLevel' \(allowed: BPE, WordPiece, Unigram\)"),
])
def test_other_word_pieces_are_refused(tmp_path: Path, path: str, value: Any, message: str) -> None:
    values = json.loads(folders.word_piece().to_str())
    *outer, last = path.split(".")
    part = values
    for name in outer:
        part = part[name]
    part[last] = value
    folders.write(tmp_path, "tokenizer.json", values)
    with pytest.raises(TokenizerError, match=message):
        vocabulary(Checkpoint(str(tmp_path), {}, {}), TokenizerJson.open(tmp_path / "tokenizer.json"), 410)


@pytest.mark.parametrize(("change", "message"), [
    ({"vocab": {"a": 1}}, "model.vocab: is dict"),
    ({"vocab": [["a", 0.0], ["b"]]}, r"model.vocab: holds \['b'\]"),
    ({"vocab": [["a", 0.0], ["a", 1.0]], "unk_id": None}, "'a' is there twice"),
    ({"unk_id": 7000}, "model.unk_id: is 7000"),
    ({"byte_fallback": True}, "model.byte_fallback: is true"),
])
def test_other_unigrams_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    values = json.loads(folders.unigram().to_str())
    values["model"] |= change
    folders.write(tmp_path, "tokenizer.json", values)
    with pytest.raises(TokenizerError, match=message):
        vocabulary(Checkpoint(str(tmp_path), {}, {}), TokenizerJson.open(tmp_path / "tokenizer.json"), 310)
