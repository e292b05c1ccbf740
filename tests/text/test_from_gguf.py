"""Tokenizers from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.errors import GGUFError, TemplateError, TokenizerError
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.text import Tokenizer
from tests.limits import processor_time
from tests.text.vocabularies import CONTROL, TRICKY, byte_level, train_merges


def write(path: Path, metadata: dict[str, object]) -> Path:
    """A file with a vocabulary and no tensors."""
    types = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    write_gguf(path, "llama", {**metadata, "tokenizer.ggml.token_type": types}, {})
    return path


def test_a_vocabulary_only_file(tmp_path: Path) -> None:
    merges = train_merges(TRICKY, 100)
    metadata = byte_level(merges, "qwen2", {"<|im_end|>": CONTROL}, eos_token_id=356)
    path = write(tmp_path / "vocab.gguf", {**metadata, "tokenizer.chat_template": "{{ eos_token }}"})
    tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.encode(TRICKY) == Tokenizer.from_metadata(metadata).encode(TRICKY)
    with GGUFFile.open(path) as file:
        opened = Tokenizer.from_gguf(file)
    assert opened.encode(TRICKY) == tokenizer.encode(TRICKY)  # the file is closed by now
    assert opened.chat_template().render([]) == "<|im_end|>"


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.gguf", byte_level(["a b"], bos_token_id=999))
    with pytest.raises(TokenizerError, match=r"vocab\.gguf, tokenizer\.ggml\.bos_token_id: token 999"):
        Tokenizer.from_gguf(path)
    path.write_bytes(b"no")
    with pytest.raises(GGUFError, match=r"vocab\.gguf"):
        Tokenizer.from_gguf(path)


def test_templates_by_name() -> None:
    key = "tokenizer.chat_template"
    metadata = {**byte_level([]), key: "plain", f"{key}.tool_use": "tools", f"{key}.rag": "documents"}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.chat_template().render([]) == "plain"
    assert tokenizer.chat_template("tool_use").render([]) == "tools"
    with pytest.raises(TemplateError, match=r"'nobody' \(allowed: default, rag, tool_use\)"):
        tokenizer.chat_template("nobody")


def test_a_model_without_a_template_uses_chatml() -> None:
    template = Tokenizer.from_metadata(byte_level([])).chat_template()
    assert template.render([{"role": "user", "content": "hi"}]) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_large_vocabulary_loads_fast(tmp_path: Path) -> None:
    letters = [chr(c) for c in range(0x4E00, 0x4E00 + 390)]
    pairs = [f"{a} {b}" for a in letters for b in letters]  # 152,100 merges
    metadata = byte_level([])
    tokens = [*metadata["tokenizer.ggml.tokens"], *letters, *(p.replace(" ", "") for p in pairs)]
    metadata.update(
        {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * len(tokens),
            "tokenizer.ggml.merges": pairs,
        }
    )
    path = write(tmp_path / "large.gguf", metadata)
    with processor_time(4):  # about 0.5 s
        tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.n_vocab == 256 + 390 + 390**2


def test_the_demo_model_by_its_name() -> None:
    assert Tokenizer.from_gguf("demo").n_vocab == 1024
