"""docs/loading.md has the keys of the tables and no others; what a file says of replies and is not done is named."""

from __future__ import annotations

import json
import logging
import re
from itertools import chain
from pathlib import Path

import pytest

from octavo.huggingface.config import generation_config, sentence, unread
from octavo.huggingface.config.generation_config import sampling_keys
from octavo.huggingface.layouts import (
    auto_round,
    awq,
    bitnet,
    compressed_tensors,
    fp8,
    gptq,
    mlx,
    modelopt,
    mxfp4,
    qqq,
    writer_keys,
)
from octavo.huggingface.tokenizer import added_tokens, steps
from octavo.io.safetensors import Checkpoint
from octavo.models.shared import keys

PAGE = (Path(__file__).parents[2] / "docs/loading.md").read_text()
NORM = "Normalize"
METHODS = {
    "auto-round": (auto_round.USED, (*auto_round.OF_ACTIVATIONS, *writer_keys.AUTO_ROUND, *auto_round.OF_FP8)),
    "awq": (awq.USED, (*writer_keys.AWQ, *writer_keys.AUTO_ROUND)),
    "bitnet": (bitnet.USED, bitnet.OF_THE_WRITER),
    "compressed-tensors": (compressed_tensors.KEYS, ()),
    "its groups": (compressed_tensors.GROUP_KEYS, ()),
    "their weights": (compressed_tensors.ARGUMENTS, ()),
    "fp8": (fp8.USED, fp8.OF_THE_WRITER),
    "gptq": (gptq.USED, (*writer_keys.GPTQ, *writer_keys.AUTO_ROUND)),
    "mlx": (mlx.USED, mlx.OF_THE_WRITER),
    "modelopt": (modelopt.USED, modelopt.OF_THE_WRITER),
    "its scheme of the cache": (modelopt.CACHE, ()),
    "mxfp4": (mxfp4.USED, mxfp4.OF_THE_WRITER),
    "qqq": (qqq.USED, qqq.OF_THE_WRITER),
}
"""What is read, and what changes nothing, by the page's rows."""
OBJECTS = {"rope_parameters", "rope_scaling", "attn_config", "ffn_config", "block_configs"}
"""Objects of config.json that the page names as examples."""
ROWS: dict[str, set[str]] = {
    "config.json": {
        *unread.CONFIG_HARMLESS, *unread.NEUTRAL, *unread.OF_EXPERTS, *unread.BESIDE, *chain(*unread.BESIDE.values()),
    } - generation_config.HARMLESS - generation_config.NEUTRAL.keys()
    - {"temperature", "top_k", "top_p", "repetition_penalty"},
    "its objects": {*unread.HARMLESS_INSIDE, *unread.BESIDE_INSIDE, *chain(*unread.BESIDE_INSIDE.values()), *OBJECTS},
    "tokenizer_config.json": {*unread.TOKENIZER_READ, *unread.TOKENIZER_HARMLESS},
    "generation_config.json": {*generation_config.READ, *generation_config.HARMLESS, *generation_config.NEUTRAL},
    "tokenizer.json": {*steps.TOP},
    "its added tokens": {*added_tokens.KNOWN, "added_tokens_decoder"},
    **{method: {*used, *others} for method, (used, others) in METHODS.items()},
    **{f"`{part}`": {key for key in (*keys.READ, *keys.HARMLESS, *keys.OFF) if key.startswith(part)} | {part}
       for part in ("general.", "tokenizer.")},
}
SENTENCE = {
    *(key for table in (sentence.READ, sentence.HARMLESS) for kind in table if kind != NORM for key in table[kind]),
} - {f"pooling_mode_{mode}" for mode in (*sentence.MODES, *sentence.OTHER_MODES)}
"""Without names that Pooling's modes have in several versions."""


def row(start: str) -> set[str]:
    """The keys that a row of the page names."""
    (line,) = [line for line in PAGE.splitlines() if re.match(f"\\| {re.escape(start)}[ ,(]", line)]
    return {name for name in re.findall("`([^`]+)`", line) if not name.endswith(".py")}


@pytest.mark.parametrize("start", ROWS)
def test_a_row_names_every_key_and_no_other(start: str) -> None:
    assert row(start) == ROWS[start]


def test_the_page_names_every_key_of_sentence_transformers() -> None:
    assert not [key for key in SENTENCE if f"`{key}`" not in PAGE]


@pytest.mark.parametrize(("config", "said"), [
    ({"temperature": 0.5, "do_sample": True, "num_beams": 1, "typical_p": 1.0, "stop_strings": None}, None),
    ({"stop_strings": ["END"], "num_beams": 4}, "what it says of stop_strings ['END'], num_beams 4 is left out"),
    ({"do_sample": False, "temperature": 0.5, "max_new_tokens": 8, "max_length": 8}, None),
    ({"suppress_tokens": [1, 2]}, "suppress_tokens [1, 2] is left out"),
])
def test_what_is_not_done_is_named(
    tmp_path: Path, config: dict[str, object], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING, "octavo"):
        found = sampling_keys(Checkpoint(str(tmp_path), {}, {}))
    assert ("general.sampling.temp" in found) is ("temperature" in config)
    assert said is None or said in caplog.text
    assert bool(caplog.text) is (said is not None)
