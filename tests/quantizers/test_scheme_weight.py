"""Schemes of checkpoints: what is read of a folder is what was rounded, whichever way it lies there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import NonFiniteError, QuantFormatError, UsageError
from octavo.formats import dequantize, unpack
from octavo.huggingface import CheckpointFile, open_model_file, scheme_weight
from octavo.huggingface.scheme_weight import nearest, planes_of, values_of
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES, with_whole_groups
from octavo.huggingface.writers import WRITERS
from octavo.io.safetensors import Checkpoint
from octavo.ops import export_qqq, quantize_w4a8
from octavo.quantizers import quantize_checkpoint
from tests.runtime import tiny

BITS = {
    "w4a16-g128": 4.125, "w4a16-g64": 4.25, "w4a16-g32": 4.5, "w4a16": 4.125, "w8a16": 8.125, "fp8-block": 8.01,
    "mxfp4a16": 4.25, "nvfp4a16": 4.501,
}
"""Of a weight [256, 256] in the file, scales included."""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.widen(monkeypatch)
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CHECKPOINT_SCHEMES)
def test_rows_of_zeros_stay_zeros_without_a_warning(name: str) -> None:
    scheme, rows = CHECKPOINT_SCHEMES[name], np.zeros((128, 256), np.float32)
    assert not values_of(scheme, nearest(scheme, rows)).any()


LAYOUTS = [(name, scheme) for name, writer in WRITERS.items() for scheme in writer.rows if name != "compressed-tensors"]


@pytest.mark.parametrize(("layout", "name"), LAYOUTS)
def test_layouts_of_others_are_read_again_bit_for_bit(layout: str, name: str, source: Path, tmp_path: Path) -> None:
    scheme = WRITERS[layout].scheme(CHECKPOINT_SCHEMES[name])
    quantize_checkpoint(source, tmp_path / "out", name, layout=layout, threads=2)
    with open_model_file(tmp_path / "out") as made, open_model_file(source) as was:
        assert isinstance(made, CheckpointFile)
        assert made.layout == layout
        for weight in ("blk.0.attn_k.weight", "blk.1.ffn_down.weight"):
            planes, fmt = planes_of(scheme, nearest(scheme, dequantize(was.tensor(weight))))
            got = unpack(made.tensor(weight))
            assert planes.d is not None
            assert got.d is not None
            np.testing.assert_array_equal(got.q, planes.q)
            np.testing.assert_array_equal(got.d, np.broadcast_to(planes.d, got.d.shape))
            for end in ("sc", "m"):
                want, found = getattr(planes, end), getattr(got, end)
                assert (want is None and found is None) or np.array_equal(found, want)
            assert (made.tensors[weight].type_name, name) in ((fmt.name, name), *OTHER_ROWS)


OTHER_ROWS = (("GROUP4_128_F32", "w4a16"), ("GROUP8_128_F32", "w8a16"))
"""Rows that are read in groups, with the row's scale in each."""


def test_the_kernels_own_words_are_those_of_the_operators(source: Path, tmp_path: Path) -> None:
    """QQQ's tensors are those that `ops.export_qqq` makes of the weight that `ops.quantize_w4a8` gives."""
    quantize_checkpoint(source, tmp_path / "out", "w4a8-g128", layout="qqq", threads=1)
    with open_model_file(source) as was:
        want = export_qqq(quantize_w4a8(dequantize(was.tensor("blk.0.ffn_up.weight")), 128))
    tensors = Checkpoint.open(tmp_path / "out").tensors
    for end, values in want.items():
        stored = tensors[f"model.layers.0.mlp.up_proj.{end}"]
        np.testing.assert_array_equal(stored.array() if end == "B" else stored.floats(), values)


def test_layouts_and_schemes_that_do_not_go_together(source: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"layout awq does not hold w4a8; use layout compress.*, or one of w4a16-g128, w4a16-g64, w4a16-g32",
    ):
        quantize_checkpoint(source, tmp_path / "out", "w4a8", layout="awq")
    with pytest.raises(UsageError, match=r"layout 'marlin' \(allowed: compressed-tensors, gptq, awq, qqq"):
        quantize_checkpoint(source, tmp_path / "out", "w4a8", layout="marlin")
    with pytest.raises(QuantFormatError, match="with 36 rows \\(allowed: multiples of 64"):
        WRITERS["qqq"].require((36, 128))


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


@pytest.mark.parametrize("name", CHECKPOINT_SCHEMES)
def test_rows_are_rounded_some_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = CHECKPOINT_SCHEMES[name]
    weight = np.random.default_rng(0).standard_normal((300, 256)).astype(np.float32)
    whole = nearest(scheme, weight)
    values = values_of(scheme, whole)
    monkeypatch.setattr(scheme_weight, "SLAB", 1)
    assert len(scheme_weight.row_parts(300, 256)) == 3
    parts = nearest(scheme, weight)
    for field in ("q", "scales", "zeros", "factor"):
        np.testing.assert_array_equal(getattr(parts, field), getattr(whole, field))
    np.testing.assert_array_equal(values_of(scheme, parts), values)


@pytest.mark.parametrize(("name", "sizes", "got"), [
    ("w4a16-g128", (256, 640), "w4a16-g128"), ("w4a16-g128", (576, 1536), "w4a16-g64"),
    ("w4a16-g64", (960, 96), "w4a16-g32"), ("w4a16-g128", (576, 40), "w4a16-g128"), ("w4a8-g128", (576,), "w4a8-g128"),
])
def test_groups_that_rows_are_whole_ones_of(name: str, sizes: tuple[int, ...], got: str) -> None:
    assert with_whole_groups(CHECKPOINT_SCHEMES[name], sizes).name == got
