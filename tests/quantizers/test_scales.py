"""Scales beside weights of few bits: a weight that gets another type takes its scale in, one that stays keeps it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.quantizers import Choices, quantize_file
from tests.models.checkpoints import CASES, make, metadata, tensors
from tests.models.test_against_transformers import engine, error
from tests.models.test_beside_weights import PRODUCTS
from tests.runtime import tiny

NVFP4 = by_name("NVFP4")
TOKENS = [5, 3, 60, 7, 21]


def write(path: Path, name: str) -> Path:
    """A model whose products are NVFP4 with scales, one for each expert, and scales of inputs."""
    case, rng = CASES[name], np.random.default_rng(1)
    model = make(case)
    out = dict(tensors(case, model))
    for weight, w in tensors(case, model).items():
        if weight.endswith(".weight") and any(part in weight for part in PRODUCTS):
            scale = rng.uniform(0.001, 0.01, len(w) if w.ndim == 3 else 1).astype(np.float32)
            out[weight] = quantize_reference(w / (scale[:, None, None] if w.ndim == 3 else scale), NVFP4, weight)
            out |= {weight.replace("weight", "scale"): scale, weight.replace("weight", "input_scale"): scale}
    write_gguf(path, case.arch, metadata(case, model.config) | tiny.TOKENIZER, out)
    return path


@pytest.mark.parametrize("name", ["mixtral", "qwen2"])
def test_a_type_that_changes_takes_the_scale_in(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "m.gguf", name)
    report = quantize_file(source, tmp_path / "q8.gguf", "Q8_0", allow_requantize=True)
    choices = Choices(leave_output=True)
    quantize_file(source, tmp_path / "some.gguf", "Q8_0", choices=choices, allow_requantize=True)
    with GGUFFile.open(source) as file:
        want = engine(file).logits(TOKENS)
        first = dequantize(file.tensor("output.weight")) * dequantize(file.tensor("output.scale"))
    with GGUFFile.open(tmp_path / "q8.gguf") as file:
        assert [row.name for row in report.rows] == list(file.tensors)
        assert not [n for n in file.tensors if "scale" in n]
        assert np.abs(dequantize(file.tensor("output.weight")) - first).max() < 0.01
        assert error(engine(file).logits(TOKENS), want) < 0.05
    with GGUFFile.open(tmp_path / "some.gguf") as file:
        assert [n for n in file.tensors if "scale" in n] == ["output.scale", "output.input_scale"]
        assert error(engine(file).logits(TOKENS), want) < 0.05


def test_what_is_copied_keeps_everything(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "llama")
    quantize_file(source, tmp_path / "copy.gguf", "COPY")
    with GGUFFile.open(source) as file, GGUFFile.open(tmp_path / "copy.gguf") as copy:
        assert {n: t.type_name for n, t in copy.tensors.items()} == {n: t.type_name for n, t in file.tensors.items()}


def test_a_scale_of_another_size(tmp_path: Path) -> None:
    weights = tiny.tensors() | {"blk.0.attn_q.scale": np.ones(2, np.float32)}
    path = tiny.write(tmp_path / "m.gguf", weights=weights)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.scale': has shape \[2\] \(allowed: \[1\]\)"):
        quantize_file(path, tmp_path / "out.gguf", "Q8_0")
