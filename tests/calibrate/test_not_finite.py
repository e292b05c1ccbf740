"""NaN and Inf in a weight: whatever a method does first, the error names the tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.calibrate.schemes.scheme_method import SchemeMethod
from octavo.errors import NonFiniteError, QuantFormatError
from octavo.quantizers import Choices, quantize_checkpoint, quantize_file
from tests.runtime import tiny

OPTIONS: dict[str, Any] = {"context": 32, "samples": 2, "device": "reference", "threads": 1}


def model(path: Path, name: str, value: float, arch: str = "qwen3") -> str:
    weights = tiny.tensors(arch)
    weights[name][..., 5, 3] = value
    return str(tiny.write(path, arch, weights=weights))


@pytest.mark.parametrize(
    ("scheme", "kind", "more"),
    [
        ("w4a16-g128", "gptq", {}),
        ("w4a16-g128", "qronos", {}),
        ("w4a16-g128", "awq", {}),
        ("int8-w8a8", "smoothquant", {}),
        ("int8-w8a8", "rtn", {"activations": "static"}),
        ("nvfp4a16", "rtn", {}),
        ("w4a16-g128", "gptq", {"rotate": True}),
        ("w4a8-g128", "qqq", {}),
    ],
)
def test_a_scheme(
    scheme: str, kind: str, more: dict[str, Any], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.widen(monkeypatch)
    src = model(tmp_path / "src.gguf", "blk.0.attn_k.weight", np.nan)
    with pytest.raises(NonFiniteError, match=re.escape("tensor 'blk.0.attn_k.weight': ") + ".*nan at .*5, .*3"):
        quantize_checkpoint(src, tmp_path / "out", scheme, method=SchemeMethod(text, kind, **more, **OPTIONS))


@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "blk.1.ffn_up.weight", "token_embd.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gguf_file(name: str, value: float, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    src = model(tmp_path / "src.gguf", name, value)
    with pytest.raises(NonFiniteError, match=re.escape(f"tensor '{name}': ") + f".*{value} at .*5, .*3"):
        quantize_file(src, tmp_path / "out.gguf", "Q4_K_S", choices=Choices(pure=True),
                      method=GgufMethod(text, **OPTIONS))


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "output_norm.weight", "token_embd.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_a_scheme_copies(name: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a method nothing is computed with it, and nothing else would tell of it."""
    tiny.widen(monkeypatch)
    weights = tiny.tensors("qwen3")
    weights[name].reshape(-1)[3] = value
    src = tiny.write(tmp_path / "src.gguf", weights=weights)
    with pytest.raises(NonFiniteError, match=re.escape(f"tensor '{name}': 1 of ")):
        quantize_checkpoint(src, tmp_path / "out", "int8-w8a8", threads=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("gguf", [True, False])
def test_an_expert(gguf: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    weights = tiny.tensors("qwen3moe")
    weights["blk.1.ffn_gate_exps.weight"][2, 5, 3] = np.nan
    src = tiny.write(tmp_path / "src.gguf", "qwen3moe", weights=weights)
    started: Callable[[], object] = partial(
        quantize_checkpoint, src, tmp_path / "out", "w4a16-g128", method=SchemeMethod(text, **OPTIONS)
    )
    if gguf:
        started = partial(quantize_file, src, tmp_path / "out.gguf", "Q4_K_S", method=GgufMethod(text, **OPTIONS))
    with pytest.raises(NonFiniteError, match=re.escape("tensor 'blk.1.ffn_gate_exps.weight, expert 2': ")):
        started()


def test_a_norm_that_a_rotation_takes_in(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    weights = tiny.tensors("qwen3")
    weights["blk.1.ffn_norm.weight"][3] = np.inf
    src = tiny.write(tmp_path / "src.gguf", weights=weights)
    with pytest.raises(NonFiniteError, match=re.escape("tensor 'blk.1.ffn_norm.weight': inf at [3]")):
        quantize_checkpoint(src, tmp_path / "out", "w4a16-g128", method=SchemeMethod(text, rotate=True, **OPTIONS))


def test_a_value_that_a_scale_cannot_hold(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    src = model(tmp_path / "src.gguf", "blk.0.attn_v.weight", 1e30)
    with pytest.raises(QuantFormatError, match=re.escape("tensor 'blk.0.attn_v.weight': the value 1e+30 is beyond")):
        quantize_checkpoint(src, tmp_path / "out", "w4a16-g128", method=SchemeMethod(text, "rtn", **OPTIONS))
