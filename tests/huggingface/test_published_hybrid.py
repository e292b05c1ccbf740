"""Layers of the delta rule in published layouts: GGUF has their heads, rows and columns, in another order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.huggingface import open_model_file
from tests.huggingface.published import PUBLISHED
from tests.huggingface.publishing import publish, same_logits
from tests.models.tiny_checkpoints import TABLE, wide
from tests.sampling import slow

SIZES = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
"""As real ones have."""
ORDERED = ["gptq-act-order", "ct-w8a8", "ct-nvfp4"]
NAMES = [*ORDERED, "fp8-tensor", "fp8-block", "qqq", "qqq-g128", "ct-act-order", "mlx-4"]
CELLS = [*(("qwen35", name) for name in NAMES), *(("qwen3next", name) for name in NAMES)]


@pytest.mark.parametrize(
    ("case", "name"), [cell if cell[1] in ORDERED[: 3 if cell[0] == "qwen35" else 1] else slow(cell) for cell in CELLS]
)
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, case: str, name: str) -> None:
    layout, of = PUBLISHED[name], TABLE[case]
    model = publish(tmp_path, name, replace(of, options=wide(of.options) | SIZES))
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.0.ssm_out.weight"].type_name == layout.rows
    same_logits(tmp_path, model)
