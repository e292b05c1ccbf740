"""PLaMo's tokenizer.jsonl: a token a line, with its score and what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.convert import convert_checkpoint
from octavo.errors import TokenizerError
from octavo.huggingface import open_model_file
from octavo.huggingface.tokenizer.token_lines import BREAKS, FIRST, read_token_lines
from octavo.text import Tokenizer
from tests.convert.folders import write
from tests.models.table import save_only
from tests.models.tiny_checkpoints import TABLE

ROWS: list[list[Any]] = [
    ["<|plamo:unk|>", 0, "UNKNOWN"], ["<|plamo:bos|>", 0, "CONTROL"], ["<|plamo:eos|>", 0, "CONTROL"],
    ["<|plamo:pad|>", 0.0, "CONTROL"], ["<|plamo:op|>", 0.0, "NORMAL", 1, 2],
    *([f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256)),
    ["a", -1.5], ["ab", -2.25, "NORMAL"], ["日本", -3.0, "NORMAL"], ["  ", -1.0, "OTHER"],
]
SAID = {"bos_token": "<|plamo:bos|>", "eos_token": "<|plamo:eos|>", "add_bos_token": True}


def folder_of(path: Path, case: str, **said: Any) -> Path:
    save_only(path, TABLE[case])
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n")
    write(path, "tokenizer_config.json", SAID | said)
    return path


@pytest.mark.parametrize(("case", "said", "pre", "runs"), [
    ("plamo3", BREAKS, "default", 3), ("plamo3", {}, "plamo2", 2),
])
def test_vocabulary_of_a_folder(tmp_path: Path, case: str, said: dict[str, Any], pre: str, runs: int) -> None:
    """A run of four characters is apart where text is cut first: of "aaaab" the last two are not tokens."""
    folder = folder_of(tmp_path / "hf", case, **said)
    convert_checkpoint(folder, tmp_path / "m.gguf", "F16")
    with open_model_file(folder) as file:
        got, metadata = Tokenizer.from_metadata(file.metadata, file="m"), file.metadata
        assert [metadata.get_str(f"tokenizer.ggml.{key}") for key in ("model", "pre")] == ["plamo2", pre]
        assert metadata["tokenizer.ggml.token_type"].tolist() == [2, 3, 3, 3, 3, *[6] * 256, 1, 1, 1, 1, *[5] * 55]
    for tokenizer in (got, Tokenizer.from_gguf(tmp_path / "m.gguf")):
        assert tokenizer.encode("abé日本<|plamo:op|>a  ") == [1, 262, 200, 174, 263, 4, 261, 264]
        assert tokenizer.encode("aaaab", add_special=False).count(261) == runs + 1
        assert {2, 4} <= tokenizer.stop_ids
        assert tokenizer.token_bytes(319) == b""


@pytest.mark.parametrize(("line", "problem"), [
    ('["a"]', "line 2 is"), ("{}", "line 2 is"), ('[1, 2.0, "NORMAL"]', "line 2 is"), ('["a", null]', "line 2 is"),
    ("[", "line 2 is"), ('["a", 1' + "0" * 400 + "]", "line 2 is"),
])
def test_lines_that_are_no_token(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "tokenizer.jsonl"
    path.write_text(f'["b", 0.0, "NORMAL"]\n{line}\n')
    with pytest.raises(TokenizerError, match=problem):
        read_token_lines(path)
    path.write_text("\n")
    with pytest.raises(TokenizerError, match="has 0 tokens"):
        read_token_lines(path)


@pytest.mark.parametrize("said", [{**BREAKS, FIRST: 8}, {FIRST: 4}, {**BREAKS, FIRST: None}])
def test_other_breaks_are_refused(tmp_path: Path, said: dict[str, Any]) -> None:
    """No key of GGUF's says how long runs are."""
    with pytest.raises(TokenizerError) as caught, open_model_file(folder_of(tmp_path, "plamo3", **said)):
        pass
    assert str(caught.value.field).startswith("break_around_")


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "plamo3")
    (folder / "tokenizer.jsonl").write_text("".join(f'["t{i}", 0.0]\n' for i in range(321)))
    with pytest.raises(TokenizerError, match="321 tokens for an embedding of 320"), open_model_file(folder):
        pass
