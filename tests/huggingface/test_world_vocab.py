"""Folders with the vocabulary of RWKV World."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.convert import convert_checkpoint
from octavo.errors import TokenizerError
from octavo.huggingface import open_model_file
from octavo.huggingface.tokenizer.world_vocab import FILE, read_world
from octavo.io.gguf import GGUFFile
from octavo.text import Tokenizer
from tests.convert import folders
from tests.models.table import save_only
from tests.models.tiny_checkpoints import TABLE

WORDS: list[str | bytes] = ["ab", "é", "日本", "\n\n", "it's", 'say "it\'s"', "  ", b"\xe6\x97", "\u2028", "\x85"]
BYTES: list[str | bytes] = [chr(b) if b < 128 else bytes([b]) for b in range(256)]


def lines(tokens: list[str | bytes]) -> list[str]:
    sizes = (len(token.encode() if isinstance(token, str) else token) for token in tokens)
    return [f"{i} {token!r} {size}" for i, (token, size) in enumerate(zip(tokens, sizes, strict=True), 1)]


def folder_of(path: Path, **config: Any) -> None:
    save_only(path, TABLE["rwkv7"])
    (path / "tokenizer.json").unlink()
    (path / FILE).write_text("\n".join(lines([*BYTES, *WORDS])) + "\n", encoding="utf-8")
    folders.write(path, "tokenizer_config.json", config)


def test_ids_and_texts(tmp_path: Path) -> None:
    """The GGUF file has the same. Ids that config.json has of its class's defaults, 1 and 2, say nothing."""
    folder_of(tmp_path / "hf")
    folders.edit(tmp_path / "hf", "config.json", bos_token_id=1, eos_token_id=2)
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    end = 1 + 256 + WORDS.index("\n\n")
    with open_model_file(tmp_path / "hf") as folder, GGUFFile.open(tmp_path / "m.gguf") as file:
        for opened in (folder, file):
            tokenizer = Tokenizer.from_metadata(opened.metadata)
            assert (tokenizer.model, tokenizer.n_vocab, tokenizer.add_bos) == ("rwkv", 320, False)
            assert (tokenizer.texts[0], tokenizer.bos_id, tokenizer.eos_id, tokenizer.eot_id) == ("<s>", 0, 0, end)
            assert tokenizer.stop_ids == {0, end}
            assert [tokenizer.token_bytes(257 + i) for i in range(len(WORDS))] == [
                word.encode() if isinstance(word, str) else word for word in WORDS
            ]
            assert tokenizer.unused_ids == list(range(257 + len(WORDS), 320))
            assert tokenizer.chat_template().render([{"role": "user", "content": "a"}]) == "User: a\n\nAssistant:"


def test_what_a_configuration_adds(tmp_path: Path) -> None:
    """The name of the token that ends a text, and tokens behind; "\\n\\n" is the one of the file, not one more."""
    end = "<|rwkv_tokenizer_end_of_text|>"
    added = {"0": {"content": end, "special": True}, "300": {"content": "\n\n", "special": True},
             "301": {"content": "<|tool|>", "special": True}, "302": {"content": "plain"}}
    folder_of(tmp_path, added_tokens_decoder=added, eos_token="\n\n", bos_token=end, chat_template="{{ 'a' }}")
    with open_model_file(tmp_path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    assert tokenizer.encode(f"{end}ab\n\n<|tool|>plain") == [0, 257, 260, 301, 302]
    assert (tokenizer.texts[300], tokenizer.eos_id) == ("[PAD300]", 0)
    assert tokenizer.chat_template().render([]) == "a"


@pytest.mark.parametrize(("changed", "message"), [
    (lambda found: [*found, "267 'x'"], r"line 267 is \"267 'x'\" \(allowed: an id, a text"),
    (lambda found: [*found, "267 'xy' 1"], "line 267 is"),
    (lambda found: [*found, "267 __import__('os') 3"], "line 267 is"),
    (lambda found: [*found, "267 '\\ud800' 3"], "line 267 is"),
    (lambda found: [*found, "267 b'é' 2"], "line 267 is"),
    (lambda found: [*found, "267 'x\\q' 3"], "line 267 is"),
    (lambda found: [*found, "267 '' 0"], "line 267 is"),
    (lambda found: [*found, ""], "line 267 is"),
    (lambda found: [*found, "266 'x!' 2"], "has two tokens 266"),
    (lambda found: [*found, "267 'ab' 2"], "has a token twice"),
    (lambda found: [*found, "0 'x!' 2"], "has a token 0"),
    (lambda found: [*found, "9999999 'x!' 2"], "has a token 9999999"),
])
def test_lines_that_are_no_tokens(tmp_path: Path, changed: Any, message: str) -> None:
    path = tmp_path / FILE
    path.write_text("\n".join(changed(lines([*BYTES, *WORDS]))) + "\n", encoding="utf-8")
    with pytest.raises(TokenizerError, match=message) as caught:
        read_world(path)
    assert FILE in str(caught.value)


def test_more_tokens_than_the_embedding(tmp_path: Path) -> None:
    folder_of(tmp_path)
    words: list[str | bytes] = [f"word {i}" for i in range(64)]
    (tmp_path / FILE).write_text("\n".join(lines([*BYTES, *words])), encoding="utf-8")
    with pytest.raises(TokenizerError, match="321 tokens for an embedding of 320"), open_model_file(tmp_path):
        pass


def test_a_folder_without_any(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(TokenizerError, match=rf"has no tokenizer \(allowed: .*{FILE}\)"), open_model_file(tmp_path):
        pass
