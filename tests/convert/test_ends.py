"""Ends of a reply: each id that a folder lists, from the folder and from the GGUF file that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.convert import convert_checkpoint
from octavo.errors import TokenizerError
from octavo.huggingface.config.config_out import generation_config
from octavo.huggingface.folder import read_folder
from octavo.io.gguf import GGUFFile
from octavo.text import Tokenizer
from tests.convert import folders
from tests.models.checkpoints import CASES

GLM4 = ["<|endoftext|>", "<|user|>", "<|observation|>"]
PHI3 = ["<|endoftext|>", "<|assistant|>", "<|end|>"]
LLAMA3 = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
MANY = ["<|endoftext|>", "<|user|>", "<|observation|>", "<|system|>", "<|tool|>"]


def saved(folder: Path, texts: list[str], file: str, value: Any = None) -> list[int]:
    """A folder whose `file` lists the ids of `texts`, or `value`; the ids."""
    tokenizer = folders.byte_level(specials=texts)
    folders.save(folder, CASES["qwen3"], tokenizer=tokenizer, config={"eos_token": texts[0]})
    ids = [tokenizer.token_to_id(text) for text in texts]
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    folders.write(folder, "config.json", config | {"eos_token_id": None})
    found = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    folders.write(folder, file, found | {"eos_token_id": ids if value is None else value})
    return ids


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(("texts", "keys"), [
    (GLM4, {"eot": "<|user|>", "eom": "<|observation|>"}),
    (PHI3, {"eom": "<|assistant|>"}),
    (LLAMA3, {}),
    (MANY, {"eot": "<|user|>", "eom": "<|observation|>"}),
])
def test_each_id_of_a_list_ends_a_reply(
    tmp_path: Path, texts: list[str], keys: dict[str, str], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = saved(tmp_path / "hf", texts, file)
    assert {*ids} <= Tokenizer.from_metadata(read_folder(tmp_path / "hf").metadata).stop_ids
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    assert ("llama.cpp does not end a reply at <|system|>, <|tool|>; Octavo does" in caplog.text) is (texts == MANY)
    with GGUFFile.open(tmp_path / "m.gguf") as gguf:
        words = Tokenizer.from_gguf(gguf)
        assert {*ids} <= words.stop_ids
        assert words.eos_id == ids[0]
        roles = {role: gguf.metadata.get_int(f"tokenizer.ggml.{role}_token_id", None) for role in ("eot", "eom")}
        assert roles == {role: words.special_id(keys[role]) if role in keys else None for role in roles}
        assert gguf.metadata.get_ints("tokenizer.ggml.eos_token_ids").tolist() == ids
        assert sorted(generation_config(gguf)["eos_token_id"]) == sorted(ids)


def stops(folder: Path) -> frozenset[int]:
    return Tokenizer.from_metadata(read_folder(folder).metadata).stop_ids


def test_what_generation_config_says_comes_before_one_id_of_config(tmp_path: Path) -> None:
    """As in transformers, which reads config.json's only where there is no generation_config.json."""
    ids = saved(tmp_path, MANY, "generation_config.json")
    folders.write(tmp_path, "generation_config.json", {"eos_token_id": ids[1]})
    folders.edit(tmp_path, "config.json", eos_token_id=ids[2])
    assert ids[1] in stops(tmp_path)
    assert ids[2] not in stops(tmp_path)
    folders.edit(tmp_path, "config.json", eos_token_id=None, text_config={"eos_token_id": [65]})
    assert {65, ids[1]} <= stops(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    folders.edit(tmp_path, "config.json", eos_token_id=ids[2], text_config=None)
    assert ids[2] in stops(tmp_path)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_an_ordinary_token_ends_nothing_where_the_tokenizer_names_another(tmp_path: Path, file: str) -> None:
    """Configurations of transformers say 2 where nobody said anything."""
    saved(tmp_path, GLM4, file, 2)
    assert 2 not in stops(tmp_path)
    folders.edit(tmp_path, "tokenizer_config.json", eos_token=None)
    assert 2 in stops(tmp_path)


def test_an_end_that_no_token_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, GLM4, "generation_config.json", [300, 50256])
    assert 300 in Tokenizer.from_metadata(read_folder(tmp_path).metadata).stop_ids
    assert "token 50256 ends a reply and is not in the vocabulary; left out" in caplog.text


@pytest.mark.parametrize("value", ["2", [2, "3"], {"id": 2}, True, 2.0])
def test_ends_that_are_no_ids_are_refused(tmp_path: Path, value: Any) -> None:
    saved(tmp_path, GLM4, "generation_config.json", value)
    with pytest.raises(TokenizerError, match=r"generation_config.json.*eos_token_id.*the id of a token, or a list"):
        read_folder(tmp_path)


def test_a_list_of_a_file_is_in_the_vocabulary() -> None:
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.merges": []}
    assert Tokenizer.from_metadata({**keys, "tokenizer.ggml.eos_token_ids": [0, 1]}).stop_ids == {0, 1}
    with pytest.raises(TokenizerError, match=r"eos_token_ids.*token 2 is not in the vocabulary"):
        Tokenizer.from_metadata({**keys, "tokenizer.ggml.eos_token_ids": [2]})
