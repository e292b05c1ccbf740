"""Steps of a tokenizer.json: those that are not known are refused by name, and texts are those of the decoder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders, normalizers

from octavo.errors import TokenizerError
from octavo.huggingface.tokenizer.steps import STEPS, check_steps
from octavo.huggingface.tokenizer.tokenizer_json import TokenizerJson
from octavo.text import Tokenizer
from tests.convert import folders
from tests.convert.test_added_tokens import keys_of


@pytest.mark.parametrize(("change", "said"), [
    ({"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, "decoder: has a step 'BPEDecoder'"),
    ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "CTC"}]}}, "has a step 'CTC'"),
    ({"decoder": {"type": "Replace", "pattern": {"String": "_"}, "content": " "}}, "pattern is {'String': '_'}"),
    ({"decoder": {"type": "Strip", "content": " ", "start": 2, "stop": 0}}, "decoder Strip: start is 2"),
    ({"decoder": {"type": "ByteLevel", "reverse": True}}, "decoder ByteLevel: has a key 'reverse'"),
    ({"normalizer": {"type": "Replace", "pattern": {"String": "``"}, "content": '"'}}, "normalizer Replace: pattern"),
    ({"normalizer": {"type": "Rot13"}}, "normalizer: has a step 'Rot13'"),
    ({"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "x"}}, "has a step 'CharDelimiterSplit'"),
    ({"post_processor": {"type": "Sequence", "processors": ["x"]}}, "post_processor: has a step 'x'"),
    ({"version": "2.0"}, "version is 2.0"),
    ({"sampler": {}}, "has a key 'sampler'"),
])
def test_what_is_not_known_is_refused(change: dict[str, Any], said: str) -> None:
    values = json.loads(folders.byte_level().to_str()) | change
    with pytest.raises(TokenizerError, match=re.escape(said)):
        check_steps(TokenizerJson(json.dumps(values).encode(), "tokenizer.json"))


@pytest.mark.parametrize(("key", "value"), [
    ("dropout", 0.1), ("end_of_word_suffix", "</w>"), ("continuing_subword_prefix", "##"), ("cache_capacity", 5),
])
def test_keys_of_models_that_are_not_known(key: str, value: Any) -> None:
    values = json.loads(folders.byte_level().to_str())
    values["model"][key] = value
    with pytest.raises(TokenizerError, match=f"model: .*{key}"):
        check_steps(TokenizerJson(json.dumps(values).encode(), "tokenizer.json"))


def test_all_steps_are_steps_of_the_package() -> None:
    for part, module in (("decoder", decoders), ("normalizer", normalizers)):
        assert all(hasattr(module, kind) for kind in STEPS[part])


def test_texts_are_those_of_the_decoder(tmp_path: Path) -> None:
    made = folders.spm()
    strip = decoders.Strip(content=" ", left=1, right=0)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    made.save(str(tmp_path / "tokenizer.json"))
    folders.write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    ours = Tokenizer.from_metadata(keys_of(tmp_path, made.get_vocab_size()))
    for text in ["Hello  world", "é 日本 \n x", " a", "License, version"]:
        ids = made.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids) == made.decode(ids)
