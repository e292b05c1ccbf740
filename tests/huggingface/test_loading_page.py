"""docs/loading.md names every key of the tables; what generation_config.json says and is not done is named."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from octavo.huggingface import added, generation, sentence, steps
from octavo.huggingface.generation import sampling_keys
from octavo.io.safetensors import Checkpoint

PAGE = (Path(__file__).parents[2] / "docs/loading.md").read_text()
NORM = "Normalize"
KEYS = {
    *generation.READ, *generation.HARMLESS, *generation.NEUTRAL, *steps.TOP, *added.KNOWN,
    *(key for table in (sentence.READ, sentence.HARMLESS) for kind in table if kind != NORM for key in table[kind]),
}  # fmt: skip
NOT_NAMED = {f"pooling_mode_{mode}" for mode in (*sentence.MODES, *sentence.OTHER_MODES)}
"""Names that Pooling's modes have in several versions."""


def test_the_page_names_every_key() -> None:
    assert not [key for key in KEYS - NOT_NAMED if f"`{key}`" not in PAGE]


@pytest.mark.parametrize(("config", "said"), [
    ({"temperature": 0.5, "do_sample": True, "num_beams": 1, "typical_p": 1.0, "stop_strings": None}, None),
    ({"stop_strings": ["END"], "num_beams": 4}, "what it says of stop_strings ['END'], num_beams 4 is left out"),
    ({"suppress_tokens": [1, 2]}, "suppress_tokens [1, 2] is left out"),
])  # fmt: skip
def test_what_is_not_done_is_named(
    tmp_path: Path, config: dict[str, object], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.WARNING, "octavo"):
        keys = sampling_keys(Checkpoint(str(tmp_path), {}, {}))
    assert ("general.sampling.temp" in keys) is ("temperature" in config)
    assert said is None or said in caplog.text
    assert bool(caplog.text) is (said is not None)
