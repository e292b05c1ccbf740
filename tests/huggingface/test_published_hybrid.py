"""Layers with states in published layouts; of the delta rule GGUF has heads, rows and columns, in another order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.huggingface import open_model_file
from tests.huggingface.published_layouts import PUBLISHED
from tests.huggingface.published_models import publish, same_logits
from tests.models.tiny_checkpoints import TABLE, wide
from tests.sampling import slow

SIZES = {
    **{case: {"linear_key_head_dim": 128, "linear_value_head_dim": 128} for case in ("qwen35", "qwen3next")},
    **{case: {"mamba_num_heads": 8} for case in ("nemotron_h", "nemotron_h_moe")},
}
"""As real ones have, and rows of whole words."""
ORDERED = ["gptq-act-order", "ct-w8a8", "ct-nvfp4"]
NAMES = [*ORDERED, "fp8-tensor", "fp8-block", "ct-act-order", "mlx-4", "qqq", "qqq-g128"]
CELLS = [(case, name) for case in ("qwen35", "qwen3next") for name in NAMES]
CELLS += [
    (case, name) for case in ("granitehybrid", "nemotron_h", "nemotron_h_moe", "mamba", "jamba") for name in NAMES[:-2]
]
CELLS += [("falcon-h1", name) for name in [*NAMES[:-2], "gptq-v1-asym", "gptq-16", "mlx-3"] if name != "ct-nvfp4"]
"""The layout of QQQ has rows in multiples of 64, and what a scan is given is an odd number."""
QUICK = [*(("qwen35", name) for name in ORDERED), ("qwen3next", ORDERED[0]), ("granitehybrid", "fp8-tensor")]
QUICK.append(("falcon-h1", "gptq-v1-asym"))


@pytest.mark.few(3)
@pytest.mark.parametrize(("case", "name"), [cell if cell in QUICK else slow(cell) for cell in CELLS])
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, case: str, name: str) -> None:
    layout, of = PUBLISHED[name], TABLE[case]
    model = publish(tmp_path, name, replace(of, options=wide(of.options) | SIZES.get(case, {})))
    with open_model_file(tmp_path) as file:
        rows = re.sub("_F16$", "_F32", layout.rows) if case == "falcon-h1" else layout.rows  # which are multiplied
        assert file.tensors["blk.0.ssm_out.weight"].type_name == rows
    same_logits(tmp_path, model)
