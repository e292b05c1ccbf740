"""Vocabularies: every way of cutting words has its name, tokenizer.model is read, templates and flags are found."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import normalizers

from octavo.errors import TemplateError, TokenizerError
from octavo.huggingface.tokenizer.pretokenizer import PROBE, cuts, find_pre_tokenizer
from octavo.huggingface.tokenizer.sentencepiece import read_sentencepiece
from octavo.huggingface.tokenizer.special_tokens import chat_templates, special_tokens
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.huggingface.tokenizer.vocabulary import vocabulary
from octavo.io.safetensors import Checkpoint
from octavo.text import Tokenizer
from octavo.text.bpe import NFC, word_splitter
from octavo.text.pretokenize import PRE_TOKENIZERS
from tests.convert import folders
from tests.text.vocabularies import byte_level

ROWS = list({(row.patterns, row.ignore_merges): name for name, row in PRE_TOKENIZERS.items()}.values())


def opened(tokenizer: Any, path: Path) -> TokenizerJson:
    tokenizer.save(str(path))
    return TokenizerJson.open(path)


@pytest.mark.parametrize("name", ROWS)
def test_each_way_of_cutting_has_its_name(name: str, tmp_path: Path) -> None:
    found = find_pre_tokenizer(opened(folders.byte_level(name), tmp_path / "t.json"))
    ours, theirs = PRE_TOKENIZERS[found], PRE_TOKENIZERS[name]
    assert (ours.patterns, ours.ignore_merges) == (theirs.patterns, theirs.ignore_merges)


def test_the_probe_tells_all_patterns_apart() -> None:
    seen: dict[tuple[tuple[int, int], ...], tuple[str, ...]] = {}
    for row in PRE_TOKENIZERS.values():
        places = tuple(cuts(word_splitter(row)))
        assert seen.setdefault(places, row.patterns) == row.patterns


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
PHI4 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SHAPES: dict[str, tuple[dict[str, Any] | None, tuple[str, ...], bool, str]] = {
    "Qwen2.5, Qwen3": ({"type": "NFC"}, (QWEN2,), False, "qwen2"),
    "Llama 3": (None, (PHI4,), True, "llama-bpe"),
    "Phi-4": (None, (PHI4,), False, "dbrx"),
    "DeepSeek V3": ({"type": "Sequence", "normalizers": []}, DEEPSEEK_V3, False, "deepseek-v3"),
    "Pythia, ModernBERT": ({"type": "NFC"}, (), False, "gpt-2"),
}
"""As published tokenizer.json files have them: the normalizer, the patterns, ignore_merges; and GGUF's name."""
DECOMPOSED = "Vi\u0065\u0323\u0302t Nam \u1112\u1161\u11ab\u1100\u1173\u11af \u212b <|im_start|>e\u0301"


@pytest.mark.parametrize("name", SHAPES)
def test_published_shapes(name: str, tmp_path: Path) -> None:
    normalizer, patterns, ignore_merges, pre = SHAPES[name]
    values = json.loads(folders.byte_level().to_str())
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": not patterns}
    cut = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    values |= {"normalizer": normalizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cut, level]}}
    values["model"]["ignore_merges"] = ignore_merges
    original = tokenizers.Tokenizer.from_str(json.dumps(values))
    keys = vocabulary(checkpoint(tmp_path), opened(original, tmp_path / "tokenizer.json"), folders.VOCAB)
    assert keys["tokenizer.ggml.pre"] == pre
    assert keys.get(NFC) is (True if name.startswith(("Qwen", "Pythia")) else None)
    words = Tokenizer.from_metadata(keys)
    for text in (PROBE, DECOMPOSED):
        assert words.encode(text) == original.encode(text).ids


def test_text_is_composed_where_the_file_says_so() -> None:
    keys = {**byte_level([]), "tokenizer.ggml.normalizer.nfc": True}
    assert Tokenizer.from_metadata(keys).encode("e\u0301") == Tokenizer.from_metadata(byte_level([])).encode("\xe9")
    with pytest.raises(TokenizerError, match=r"tokenizer.ggml.normalizer.nfc: is int \(allowed: a bool\)"):
        Tokenizer.from_metadata({**keys, "tokenizer.ggml.normalizer.nfc": 1})


def test_pieces_of_characters_are_not_composed(tmp_path: Path) -> None:
    tokenizer = folders.spm()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), tokenizer.normalizer])
    with pytest.raises(TokenizerError, match=r"normalizer: is NFC, .*\(allowed: Prepend and Replace"):
        vocabulary(checkpoint(tmp_path), opened(tokenizer, tmp_path / "tokenizer.json"), folders.SPM_VOCAB)


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    """A field of a protocol buffer message."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def sentencepiece_of(tokenizer: TokenizerJson, kind: int = 2, prefix: int | None = None) -> bytes:
    """The tokenizer as a SentencePiece model: scores fall with the id, as its trainer gives them."""
    out = b""
    for i, text in sorted(tokenizer.texts.items()):
        number = {"<unk>": 2, "<s>": 3, "</s>": 3}.get(text, 6 if text.startswith("<0x") else 1)
        score = float(259 - i) if number == 1 else 0.0
        out += field(1, field(1, text.encode()) + field(2, score) + (field(3, number) if number != 1 else b""))
    trainer = field(2, field(3, kind) + field(40, 0))
    return out + trainer + field(3, field(1, b"identity") + (b"" if prefix is None else field(3, prefix)))


def checkpoint(folder: Path, **config: Any) -> Checkpoint:
    return Checkpoint(str(folder), config, {})


def test_tokenizer_model_gives_the_same_ids(tmp_path: Path) -> None:
    listed = opened(folders.spm(), tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_of(listed))
    both = vocabulary(checkpoint(tmp_path), listed, folders.SPM_VOCAB)
    folders.write(tmp_path, "tokenizer_config.json", {
        "added_tokens_decoder": {"2": {"content": "</s>", "special": True}, "515": {"content": "<new>"}},
    })
    alone = vocabulary(checkpoint(tmp_path), None, 520)
    assert both["tokenizer.ggml.scores"][300] == 259 - 300
    assert list(alone["tokenizer.ggml.token_type"][:4]) == [2, 3, 3, 6]
    assert (alone["tokenizer.ggml.tokens"][515], alone["tokenizer.ggml.token_type"][515]) == ("<new>", 4)
    assert (alone["tokenizer.ggml.tokens"][516], alone["tokenizer.ggml.token_type"][516]) == ("[PAD516]", 5)
    assert alone["tokenizer.ggml.add_space_prefix"] is True
    words, original = Tokenizer.from_metadata(alone), folders.spm()
    for text in folders.TEXT[:40]:
        assert words.encode(text.strip()) == original.encode(text.strip()).ids


def test_no_space_before_a_text(tmp_path: Path) -> None:
    listed = opened(folders.spm(), tmp_path / "t.json")
    (tmp_path / "m").write_bytes(sentencepiece_of(listed, prefix=0))
    assert read_sentencepiece(tmp_path / "m").adds_space is False


@pytest.mark.parametrize("raw", [
    b"", b"\x00", b"\x0a\xff", b"\x0a\x02\x0a\x05", b"\x0b", b"\xff" * 11, field(1, field(2, 1.0)), field(1, 7),
    field(1, field(1, b"\xff\xfe")),
])
def test_broken_models(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(raw)
    with pytest.raises(TokenizerError, match=r"tokenizer\.model.*SentencePiece"):
        read_sentencepiece(tmp_path / "tokenizer.model")


def test_other_algorithms_are_refused(tmp_path: Path) -> None:
    listed = opened(folders.spm(), tmp_path / "t.json")
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_of(listed, kind=1))
    with pytest.raises(TokenizerError, match=r"type 1 \(allowed: 2 \(BPE\)\)"):
        read_sentencepiece(tmp_path / "tokenizer.model")


@pytest.mark.parametrize(("bos", "config", "adds"), [
    (True, {}, True),
    (True, {"add_bos_token": False}, True),
    (False, {}, False),
    (False, {"add_bos_token": True}, True),
])
def test_what_goes_before_a_text(tmp_path: Path, bos: bool, config: dict[str, Any], adds: bool) -> None:
    tokenizer = opened(folders.byte_level(bos=bos), tmp_path / "tokenizer.json")
    folders.write(tmp_path, "tokenizer_config.json", {"bos_token": "<|begin|>"} | config)
    keys = special_tokens(checkpoint(tmp_path), tokenizer, [tokenizer.texts[i] for i in range(304)])
    assert keys["tokenizer.ggml.add_bos_token"] is adds
    assert keys["tokenizer.ggml.bos_token_id"] == 300


def test_roles_from_the_model_config(tmp_path: Path) -> None:
    tokenizer = opened(folders.byte_level(), tmp_path / "tokenizer.json")
    folders.write(tmp_path, "tokenizer_config.json", {"bos_token": None, "eos_token": "no such token"})
    found = special_tokens(
        checkpoint(tmp_path, bos_token_id=3, eos_token_id=[4, 5], pad_token_id=-1), tokenizer, ["a"] * 9
    )
    assert {k: v for k, v in found.items() if k.endswith("id")} == {"tokenizer.ggml.bos_token_id": 3}


def test_chat_templates(tmp_path: Path) -> None:
    assert chat_templates(checkpoint(tmp_path)) == {}
    folders.write(tmp_path, "chat_template.json", {"chat_template": "of a processor"})
    assert chat_templates(checkpoint(tmp_path)) == {"tokenizer.chat_template": "of a processor"}
    several = [{"name": "default", "template": "one"}, {"name": "tool use", "template": "two"}]
    folders.write(tmp_path, "tokenizer_config.json", {"chat_template": several})
    assert chat_templates(checkpoint(tmp_path)) == {
        "tokenizer.chat_template": "one", "tokenizer.chat_template.tool_use": "two",
        "tokenizer.chat_templates": ["tool_use"],
    }
    (tmp_path / "chat_template.jinja").write_text("from a file")  # it is the newer one where there are both
    assert chat_templates(checkpoint(tmp_path)) == {"tokenizer.chat_template": "from a file"}


def test_named_chat_templates(tmp_path: Path) -> None:
    """Those of a folder of their own, which transformers reads as the same ones."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=folders.byte_level())
    tokenizer.chat_template = {"default": "one\n", "tool_use": "two", "long-rag": "three"}
    tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "additional_chat_templates" / "long-rag.jinja").read_text() == "three"
    found = chat_templates(checkpoint(tmp_path))
    assert found == {
        "tokenizer.chat_template": "one\n", "tokenizer.chat_template.long_rag": "three",
        "tokenizer.chat_template.tool_use": "two", "tokenizer.chat_templates": ["long_rag", "tool_use"],
    }
    (tmp_path / "chat_template.jinja").unlink()
    folders.write(tmp_path, "tokenizer_config.json", {"chat_template": "of the configuration"})
    assert chat_templates(checkpoint(tmp_path)) == {**found, "tokenizer.chat_template": "of the configuration"}
    for i in range(31):
        (tmp_path / "additional_chat_templates" / f"{i}.jinja").write_text("x")
    with pytest.raises(TemplateError, match=r"has 33 templates \(allowed: 32\)"):
        chat_templates(checkpoint(tmp_path))
