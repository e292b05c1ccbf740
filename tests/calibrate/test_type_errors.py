"""What types do to weights, against products of what they make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.gguf.gguf_method import TIED, GgufMethod
from octavo.calibrate.gguf.type_errors import type_errors
from octavo.calibrate.runner import Layerwise, Samples
from octavo.errors import UsageError
from octavo.formats import QTensor, by_name, dequantize
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers import Choices, quantize_file
from octavo.quantizers.encoding.encoder import encode

SAMPLES = Samples(np.random.default_rng(0).integers(97, 123, (16, 128)).tolist())
KINDS = ("IQ3_S", "Q4_K", "F16")


def test_errors_are_those_of_products(source: str) -> None:
    names = ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"]
    offered = {name: [by_name(kind) for kind in KINDS] for name in names}
    with GGUFFile.open(source) as file:
        spec = read_model(file)
        found = dict(type_errors(spec, [ReferenceBackend()], SAMPLES, offered, threads=1))
        run = Layerwise(spec, [ReferenceBackend()], SAMPLES)
        for stage in run.run():
            for given in stage.inputs:
                for name in set(given.names) & set(names):
                    x, weight = given.some(10**6).astype(np.float64), stage.weight(name)
                    by, on = x[:-512], x[-512:]  # the last quarter is kept apart
                    for kind in KINDS[:2]:
                        fmt = by_name(kind)
                        packed = encode(weight, fmt, importance=np.square(by).mean(0).astype(np.float32), threads=1)
                        made = dequantize(QTensor(fmt, weight.shape, packed))
                        want = np.square(on @ (made - weight).T).sum() / np.square(on @ weight.T).sum()
                        assert found[name][kind].encoded == pytest.approx(want, rel=1e-3)
    for name in names:
        assert found[name].keys() == {"IQ3_S", "Q4_K"}
        assert found[name]["Q4_K"].made < found[name]["Q4_K"].encoded
        assert found[name]["IQ3_S"].made == found[name]["IQ3_S"].encoded


def test_types_without_levels_beside_others(source: str, text: str, tmp_path: Any) -> None:
    """They are the encoder's, and weights after them are made for what they give."""
    options: dict[str, Any] = {"context": 32, "device": "reference", "threads": 1}
    up = r"ffn_(up|gate)", "IQ3_S"
    choices = Choices(pure=True, tensor_types=(up,))
    with pytest.raises(UsageError, match="IQ3_S, a format that GPTQ has no levels for"):
        quantize_file(source, tmp_path / "no.gguf", "Q4_K_S", choices=choices, method=GgufMethod(text, **options))
    made = {}
    for name, chosen in (("with", choices), ("without", Choices(pure=True))):
        report = quantize_file(source, tmp_path / name, "Q4_K_S", choices=chosen, threads=1,
                               method=GgufMethod(text, grids=True, **options))
        made[name] = {row.name: row for row in report.rows}
    grid = made["with"]["blk.0.ffn_up.weight"]
    assert (grid.type, grid.error) == ("IQ3_S", grid.before)
    with GGUFFile.open(tmp_path / "with") as one, GGUFFile.open(tmp_path / "without") as other:
        same = {name for name in one.tensors if (one.tensor(name).data.tobytes() == other.tensor(name).data.tobytes())}
    assert {TIED, "blk.0.attn_q.weight", "blk.0.attn_output.weight"} <= same
    assert not {"blk.0.ffn_down.weight", "blk.1.attn_q.weight"} & same
