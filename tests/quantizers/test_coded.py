"""Schemes of checkpoints: what is read of a folder is what was rounded, whichever way it lies there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import NonFiniteError, QuantFormatError
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.huggingface.coded import nearest, values_of
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.quantizers import quantize_checkpoint
from tests.runtime import tiny

BITS = {"w4a16-g128": 4.125, "w4a16": 4.125, "w8a16": 8.125, "fp8-block": 8.01, "mxfp4a16": 4.25, "nvfp4a16": 4.501}
"""Of a weight [256, 256] in the file, scales included."""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("N_EMBD", 256), ("HEAD_DIM", 64), ("N_FF", 256)):
        monkeypatch.setattr(tiny, name, value)
    return tiny.write(tmp_path / "src.gguf")


@pytest.mark.parametrize("name", CHECKPOINT_SCHEMES)
def test_what_is_read_is_what_was_rounded(name: str, source: Path, tmp_path: Path) -> None:
    scheme = CHECKPOINT_SCHEMES[name]
    report = quantize_checkpoint(source, tmp_path / "out", name, threads=2)
    with open_model_file(tmp_path / "out") as made, open_model_file(source) as was:
        for weight in ("blk.0.attn_k.weight", "blk.1.ffn_down.weight"):
            values = dequantize(was.tensor(weight))
            got = dequantize(made.tensor(weight))
            if weight.replace("weight", "scale") in made.tensors:
                got = got * dequantize(made.tensor(weight.replace("weight", "scale")))
            np.testing.assert_array_equal(got, values_of(scheme, nearest(scheme, values)))
            row = next(row for row in report.rows if row.name == weight)
            lost = np.sqrt(np.square(got - values).sum() / np.square(values).sum())
            assert lost == pytest.approx(row.error, rel=1e-4)
            assert lost < {4: 0.15, 8: 0.04}[scheme.bits]
            if name in BITS and weight.endswith("ffn_down.weight"):
                assert 8 * row.nbytes / values.size == pytest.approx(BITS[name], rel=0.01)
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    (group,) = config["config_groups"].values()
    assert (group["weights"]["num_bits"], group["format"]) == (scheme.bits, scheme.layouts[0])
    assert (group["input_activations"] is not None) == scheme.tokens


def test_values_that_a_scheme_has_no_scales_for() -> None:
    values = np.full((4, 128), 1e9, np.float32)
    with pytest.raises(QuantFormatError, match="1e\\+09 is beyond the range"):
        nearest(CHECKPOINT_SCHEMES["w4a16-g128"], values)
    values[1, 7] = np.nan
    for scheme in CHECKPOINT_SCHEMES.values():
        with pytest.raises(NonFiniteError):
            nearest(scheme, values)


@pytest.mark.parametrize("name", ["fp8-block", "nvfp4a16", "w4a16-g128"])
def test_rows_that_a_scheme_cannot_hold(name: str) -> None:
    with pytest.raises(QuantFormatError, match=r"a row of 40 values \(allowed: multiples of"):
        nearest(CHECKPOINT_SCHEMES[name], np.ones((2, 40), np.float32))
