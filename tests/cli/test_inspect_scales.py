"""`octavo inspect MODEL --scales TENSOR`: what it says of a tensor's scales, taken from its bytes by another way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from tests.cli.conftest import Run
from tests.sampling import some

TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "MXFP4", "IQ4_XS")
TWO_LEVELS = ["d", "sc", "dmin", "m", "scale", "minimum"]
PARTS = {
    "Q4_0": ["d"], "Q4_1": ["d", "dmin"], "Q8_0": ["d"], "MXFP4": ["d"], "Q2_K": TWO_LEVELS, "Q4_K": TWO_LEVELS,
    "Q6_K": ["d", "sc", "scale"], "IQ4_XS": ["d", "sc", "scale"],
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with a tensor of each type, and one of floats."""
    from octavo.formats import by_name, quantize_reference
    from octavo.quantizers import ENCODABLE, encode

    values = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name in TYPES:
        fmt = by_name(name)
        data = encode(values, fmt) if name in ENCODABLE else quantize_reference(values, fmt).data
        writer.add_tensor(f"{name.lower()}.weight", data, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.add_tensor("norm.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(tmp_path / "m.gguf")


def of(octavo: Run, path: str, name: str) -> Any:
    return json.loads(octavo("inspect", path, "--scales", name, "--json").out)["scales"]


@pytest.mark.parametrize("name", some(TYPES, 4))
def test_parts_by_layout(octavo: Run, path: str, name: str) -> None:
    report = of(octavo, path, f"{name.lower()}.weight")
    assert report["type"] == name
    assert [part["name"] for part in report["parts"]] == PARTS[name]
    for part in report["parts"]:
        assert sum(part["histogram"]) == part["count"]
        assert part["least"] <= part["percentiles"]["50%"] <= part["greatest"]
    got = octavo("inspect", path, "--scales", f"{name.lower()}.weight")
    assert got.status == 0
    assert got.out.splitlines()[0] == f"{name.lower()}.weight: {name}, 6 x 512; a value is {report['value']}"
    assert sum("█" in line for line in got.out.splitlines()) == len(PARTS[name])


def test_numbers_are_those_of_the_bytes(octavo: Run, path: str) -> None:
    """Q4_K by hand: float16 d and dmin, then scales and minima of six bits."""
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    blocks = np.asarray(tensors["q4_k.weight"].data).reshape(-1, 144)
    d, dmin = (np.ascontiguousarray(blocks[:, i : i + 2]).view(np.float16)[:, 0].astype(np.float64) for i in (0, 2))
    packed = blocks[:, 4:16]
    low, high = packed[:, :8] & 63, packed[:, 8:]
    sc = np.concatenate([low[:, :4], (high & 15) | (packed[:, :4] >> 6 << 4)], axis=1)
    m = np.concatenate([low[:, 4:], (high >> 4) | (packed[:, 4:8] >> 6 << 4)], axis=1)
    report = of(octavo, path, "q4_k.weight")
    assert (report["super"], report["group"], report["value"]) == (256, 32, "d * sc * code - dmin * m")
    parts = {part["name"]: part for part in report["parts"]}
    wanted = {"d": d, "dmin": dmin, "sc": sc, "m": m, "scale": d[:, None] * sc, "minimum": dmin[:, None] * m}
    for name, values in wanted.items():
        found = parts[name]
        assert found["count"] == values.size
        assert found["mean"] == pytest.approx(values.mean(), rel=1e-6)
        assert (found["least"], found["greatest"]) == pytest.approx((values.min(), values.max()), rel=1e-6)
        assert found["histogram"] == np.histogram(values.astype(np.float32).astype(np.float64), 48)[0].tolist()


def test_what_has_no_scales_or_is_not_there(octavo: Run, path: str) -> None:
    assert "--scales TENSOR" in octavo("inspect", path).out.splitlines()[-1]
    lines = octavo("inspect", path, "--scales", "norm.weight").out.splitlines()
    assert lines[1:] == ["A tensor of plain numbers has no scales."]
    error = octavo("inspect", path, "--scales", "q4k.weight").error()
    assert "no tensor 'q4k.weight'" in error
    assert "q4_k.weight" in error
