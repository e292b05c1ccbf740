"""Added tokens and what goes around a text, as in published tokenizers: ids are those of transformers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import AddedToken, normalizers, processors

from octavo.convert import convert_checkpoint
from octavo.errors import TokenizerError
from octavo.huggingface.folder import read_folder
from octavo.huggingface.tokenizer.added_tokens import flag_keys
from octavo.huggingface.tokenizer.special_tokens import special_tokens
from octavo.huggingface.tokenizer.vocabulary import open_tokenizer, vocabulary
from octavo.io.safetensors import Checkpoint
from octavo.text import Tokenizer
from octavo.text.added_token_edges import FLAGS
from tests.convert import folders
from tests.models.checkpoints import Case
from tests.models.tiny_checkpoints import TABLE

Made = tuple[tokenizers.Tokenizer, dict[str, Any]]


def special(*texts: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(text, special=True, normalized=False, **flags) for text in texts]


def before(tokenizer: tokenizers.Tokenizer, *texts: str) -> Any:
    ids = [(text, tokenizer.token_to_id(text)) for text in texts]
    return processors.TemplateProcessing(single=[*texts, "$A"], pair=[*texts, "$A", "$B:1"], special_tokens=ids)


def glm4() -> Made:
    texts = [
        "<|endoftext|>",
        "[MASK]",
        "[gMASK]",
        "[sMASK]",
        "<sop>",
        "<eop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
    ]
    made = folders.byte_level("llama-bpe", specials=special(*texts))
    level = processors.ByteLevel(trim_offsets=False)
    made.post_processor = processors.Sequence([level, before(made, "[gMASK]", "<sop>")])
    return made, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": texts}


def llama3() -> Made:
    texts = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ]
    made = folders.byte_level("llama-bpe", specials=special(*texts))
    level = processors.ByteLevel(trim_offsets=False)
    made.post_processor = processors.Sequence([level, before(made, "<|begin_of_text|>")])
    return made, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def phi3() -> Made:
    made = folders.spm()
    made.add_tokens([AddedToken("</s>", rstrip=True, normalized=False)])
    made.add_special_tokens(special("<|endoftext|>"))
    turns = ("<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
    made.add_special_tokens(special(*turns, rstrip=True))
    made.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    return made, {"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>", "add_bos_token": False}


def qwen() -> Made:
    made = folders.byte_level("qwen2", specials=special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>", "<think>")])
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    return made, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def gemma() -> Made:
    made = folders.spm(prefix=False)
    made.add_special_tokens(special("<start_of_turn>", "<end_of_turn>"))
    made.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n\n", "<table>")])
    made.post_processor = before(made, "<s>")
    return made, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def older_llama() -> Made:
    """Tokens that are looked for in the text that the normalizer made, with a space before it."""
    made = folders.spm()
    made.add_tokens(
        [AddedToken("<|im_start|>", normalized=True), AddedToken("word", normalized=True, single_word=True)]
    )
    return made, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def every_flag() -> Made:
    made = folders.byte_level("qwen2", specials=special("<|endoftext|>"))
    made.add_special_tokens(special("<mask>", lstrip=True))
    made.add_special_tokens(special("<both>", lstrip=True, rstrip=True))
    made.add_tokens([AddedToken("user", single_word=True, normalized=False)])
    return made, {"eos_token": "<|endoftext|>", "mask_token": "<mask>"}


MADE = {made.__name__: made for made in (glm4, llama3, phi3, qwen, gemma, older_llama, every_flag)}


def texts(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """Each added token beside spaces, lines, words, marks, and itself."""
    found = []
    for token in (token.content for token in tokenizer.get_added_tokens_decoder().values()):
        found += [
            f"Hi{token}you",
            f"Hi {token} you",
            f"Hi\n{token}\n\n you",
            f"{token}{token}",
            f"{token} {token}\t{token}",
        ]
        found += [f"_{token}-", f"½{token}²", f"é{token}\u00a0\u3000x", f" {token}", f"{token} ", f"{token}\u200d"]
    return [*found, "Hi", "two  words\n\n\n\nlines", " <|im_start|>user\nHi<|im_end|> "]


def saved(folder: Path, made: Made, **config: Any) -> None:
    tokenizer, own = made
    case = Case("llama", "LlamaConfig", {"vocab_size": tokenizer.get_vocab_size()})
    plain = {"bos_token": None, "eos_token": None, "tokenizer_class": "PreTrainedTokenizerFast"}
    folders.save(folder, case, tokenizer=tokenizer, config=plain | own | config)


@pytest.mark.parametrize("name", MADE)
def test_ids_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "hf", MADE[name]())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    for ours in (from_folder(tmp_path / "hf"), Tokenizer.from_gguf(tmp_path / "m.gguf")):
        for text in texts(MADE[name]()[0]):
            assert ours.encode(text) == theirs.encode(text), text
            assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False), text


PUBLISHED = {
    "glm4": ("glm4", "PreTrainedTokenizerFast", ["<|endoftext|>", "<|user|>", "<|assistant|>"]),
    "llama3": ("llama", "PreTrainedTokenizerFast", ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
    "phi3": ("phi3", "LlamaTokenizer", ["<|endoftext|>", "<|end|>", "<|assistant|>"]),
    "qwen": ("qwen3", "Qwen2Tokenizer", ["<|im_end|>", "<|endoftext|>"]),
    "gemma": ("gemma3", "GemmaTokenizer", ["</s>", "<end_of_turn>"]),
}
"""Models whose folders have such a tokenizer: the class that they name, and what ends their replies."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_folders_as_they_are_published(tmp_path: Path, name: str) -> None:
    """With the model's own kind and class of tokenizer, flags in tokenizer_config.json too, and a list of ends."""
    (tokenizer, own), (kind, cls, ends) = MADE[name](), PUBLISHED[name]
    added = {
        str(i): {"content": token.content, "special": token.special, **{flag: getattr(token, flag) for flag in FLAGS}}
        for i, token in tokenizer.get_added_tokens_decoder().items()
    }
    case = TABLE[kind]
    case = replace(case, options={**case.options, "vocab_size": tokenizer.get_vocab_size(), "pad_token_id": 0})
    config = own | {"tokenizer_class": cls, "added_tokens_decoder": added, "clean_up_tokenization_spaces": False}
    folders.save(tmp_path / "hf", case, tokenizer=tokenizer, config=config)
    ids = [tokenizer.token_to_id(text) for text in ends]
    folders.write(tmp_path / "hf", "generation_config.json", {"eos_token_id": ids})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    for ours in (from_folder(tmp_path / "hf"), Tokenizer.from_gguf(tmp_path / "m.gguf")):
        assert {*ids} <= ours.stop_ids
        assert ours.texts[ours.eos_id or 0] == theirs.eos_token
        for text in texts(tokenizer):
            assert ours.encode(text) == theirs.encode(text), text
            assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False), text


def from_folder(folder: Path) -> Tokenizer:
    return Tokenizer.from_metadata(read_folder(folder).metadata)


def entry(text: str, **flags: bool) -> dict[str, Any]:
    return {"content": text, **dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False), **flags}


BESIDE: dict[str, dict[str, Any]] = {
    "tokenizer_config.json": {"added_tokens_decoder": {
        "300": entry("<|endoftext|>", special=True), "301": entry("<|im_start|>", special=True, rstrip=True),
        "302": entry("<|im_end|>", special=True, lstrip=True, rstrip=True), "307": entry("<new>", single_word=True)}},
    "special_tokens_map.json": {"additional_special_tokens": ["<extra>"], "eos_token": "<|im_start|>",
                                "mask_token": {"content": "tion", "lstrip": True, "rstrip": True}},
    "added_tokens.json": {"<|im_start|>": 301, "<new>": 307},
}


@pytest.mark.parametrize("file", BESIDE)
def test_what_files_beside_tokenizer_json_say(tmp_path: Path, file: str) -> None:
    tokenizer, config = qwen()
    saved(tmp_path, (tokenizer, config))
    folders.edit(tmp_path, "config.json", vocab_size=None)
    found = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    folders.write(tmp_path, file, found | BESIDE[file])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_metadata(keys_of(tmp_path, 308))
    for text in [*texts(tokenizer), "then <extra><new> and <new>, <new>x", "x <|im_end|>\n y", "a  tion of notions"]:
        assert ours.encode(text) == theirs.encode(text), text
    assert ours.texts[ours.eos_id or 0] == theirs.eos_token


def test_an_object_of_a_special_token_is_read(tmp_path: Path) -> None:
    saved(tmp_path, qwen())
    folders.write(tmp_path, "special_tokens_map.json", {"mask_token": {"content": "tion", "shift": 1}})
    with pytest.raises(TokenizerError, match=r"special_tokens_map.json.*mask_token: 'tion' has 'shift'"):
        keys_of(tmp_path, 308)


def keys_of(folder: Path, n_vocab: int) -> dict[str, Any]:
    """The keys of a vocabulary, without a model."""
    checkpoint = Checkpoint(str(folder), {}, {})
    tokenizer = open_tokenizer(checkpoint)
    assert tokenizer is not None
    words = vocabulary(checkpoint, tokenizer, n_vocab)
    roles = special_tokens(checkpoint, tokenizer, words["tokenizer.ggml.tokens"])
    return words | roles | flag_keys(tokenizer.added, words, {"general.name": folder.name}, tokenizer.normalized)


def test_tokens_in_lower_case(tmp_path: Path) -> None:
    """BERT's tokens that are normalized, as those that `add_tokens` adds are: found whatever their case and accents."""
    made = folders.word_piece()
    made.add_tokens(["NewTok", "plain", "Día"])
    made.save(str(tmp_path / "tokenizer.json"))
    folders.write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    ours = Tokenizer.from_metadata(keys_of(tmp_path, made.get_vocab_size()))
    for text in [
        "a NewTok b",
        "a newtok b",
        "xNEWTOKy",
        "día dia DIA",
        "Plain,plain",
        "[MASK] newtok",
        "ŃewTok",
        "한NewTok",
    ]:
        assert ours.encode(text) == made.encode(text).ids, text


def test_names_count_for_nothing_beside_what_a_folder_says(tmp_path: Path) -> None:
    folder = tmp_path / "my-phi-3-tune"
    saved(folder, qwen())
    keys = read_folder(folder).metadata
    assert keys["tokenizer.ggml.added_tokens.rstrip"].tolist() == [-1]
    theirs = qwen()[0].encode("<|im_start|>  user <|im_end|>\n").ids
    assert from_folder(folder).encode("<|im_start|>  user <|im_end|>\n") == theirs
    convert_checkpoint(folder, tmp_path / "m.gguf")
    assert Tokenizer.from_gguf(tmp_path / "m.gguf").encode("<|im_start|>  user <|im_end|>\n") == theirs


@pytest.mark.parametrize(("made", "said"), [
    (phi3, "goes by the model's name, not by rstrip, for the white space behind </s>, <|assistant|>"),
    (every_flag, "finds within words, too (single_word): user"),
    (older_llama, "looks in the text as it is (normalized) for <|im_start|>, word"),
    (glm4, "does not put [gMASK], <sop> before a text"),
    (qwen, None),
    (gemma, None),
    (llama3, None),
])
def test_convert_names_what_llama_cpp_does_otherwise(
    tmp_path: Path, made: Any, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path / "hf", made())
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    assert ("with the GGUF file llama.cpp" in caplog.text) is (said is not None)
    assert said is None or said in caplog.text


@pytest.mark.parametrize(("file", "change", "said"), [
    ("tokenizer.json", {"added_tokens": [{"id": 1, "content": "x", "trim": True}]}, "added_tokens: 'x' has 'trim'"),
    ("tokenizer.json", {"added_tokens": [{"id": 1}]}, "objects with content, and ids"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"301": entry("<other>")}}, "have one id, 301"),
    ("tokenizer_config.json", {"added_tokens_decoder": {"301": entry("x", strip=True)}}, "has 'strip'"),
    ("added_tokens.json", {"<new>": "307"}, "has '307'"),
])
def test_entries_that_are_wrong(tmp_path: Path, file: str, change: dict[str, Any], said: str) -> None:
    saved(tmp_path, qwen())
    found = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    folders.write(tmp_path, file, found | change)
    with pytest.raises(TokenizerError, match=re.escape(said)):
        read_folder(tmp_path)


def test_a_normalizer_that_changes_a_token_otherwise_is_refused(tmp_path: Path) -> None:
    made = folders.byte_level()
    made.normalizer = normalizers.NFC()
    made.add_tokens([AddedToken("e\u0301t", normalized=True)])
    saved(tmp_path, (made, {}))
    with pytest.raises(TokenizerError, match=r"is normalized, to 'ét'.*allowed: false"):
        read_folder(tmp_path)
