"""What methods write does not hang on threads, on being killed, or on the layout."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.calibrate import SchemeMethod
from octavo.calibrate.gguf.gguf_method import GgufMethod
from octavo.formats import dequantize, unpack
from octavo.huggingface import open_model_file
from octavo.quantizers import quantize_checkpoint, quantize_file
from tests.runtime import tiny
from tests.sampling import slow

OPTIONS: dict[str, Any] = {"context": 32, "samples": 8}
LAYERS = 6
"""Of the model that is killed."""


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SCHEMES = [
    ("w4a16-g128", "gptq", {}), *map(slow, [
        ("w4a16-g128", "auto", {}), ("w4a16", "qronos", {"rotate": True}), ("w4a8-g128", "qqq", {"rotate": True}),
        ("int8-w8a8", "smoothquant", {}), ("int8-w8a8", "rptq", {}), ("fp8", "gptq", {"activations": "static"}),
        ("fp8-block", "awq", {"kv": "fp8"}), ("mxfp4a16", "gptq", {}), ("nvfp4a16", "qronos", {"kv": "int8"}),
    ]),
]


@pytest.mark.parametrize(("scheme", "kind", "options"), SCHEMES)
def test_threads_make_the_same_checkpoint(
    scheme: str, kind: str, options: dict[str, Any], source: str, text: str, tmp_path: Path
) -> None:
    made = []
    for threads in (1, 2, 3):
        method = SchemeMethod(text, kind, device="cpu", threads=threads, **OPTIONS, **options)
        quantize_checkpoint(source, tmp_path / f"{threads}", scheme, method=method, threads=threads)
        made.append(files(tmp_path / f"{threads}"))
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize(("preset", "kind"), [
    ("Q4_K_M", "gptq"),
    *map(slow, [("Q4_0", "qronos"), ("Q2_K", "qronos"), ("Q3_K_M", "gptq"), ("IQ4_XS", "gptq"), ("Q5_K_M", "qronos")]),
])
def test_threads_make_the_same_file(preset: str, kind: Any, source: str, text: str, tmp_path: Path) -> None:
    made = []
    for threads in (1, 2, 3):
        method = GgufMethod(text, kind, device="cpu", threads=threads, **OPTIONS)
        quantize_file(source, tmp_path / "out.gguf", preset, method=method, threads=threads)
        made.append((tmp_path / "out.gguf").read_bytes())
    assert made[0] == made[1] == made[2]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
@pytest.mark.parametrize("kills", [1, slow(3)])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    kills: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, killed so often, each time at another moment of its work."""
    tiny.widen(monkeypatch)
    weights, keys = tiny.tensors("qwen3", LAYERS), {"qwen3.block_count": LAYERS}
    source = tiny.write(tmp_path / "src.gguf", weights=weights, keys=keys)

    def started(out: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "octavo.cli", "quantize", source, str(tmp_path / out), "--scheme", "w4a16-g128",
            "--method", "gptq", "--calibration", text, "-c", "32", "--samples", "16", "--device", "reference",
            "--resume",
        ]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    begun, whole = time.monotonic(), started("whole")
    while whole.poll() is None and not (tmp_path / "whole.work").exists():
        time.sleep(0.005)
    first = time.monotonic() - begun
    assert whole.wait() == 0
    rest, moments = time.monotonic() - begun - first, list[float]()
    for _ in range(kills):
        run = started("again")
        moments.append(first + random.random() * rest)
        time.sleep(moments[-1])
        run.kill()
        assert run.wait() in (-signal.SIGKILL, 0), moments
        if (tmp_path / "again").exists():
            break  # all was done: what an earlier run had made was not made again
    else:
        assert started("again").wait() == 0, moments
        assert not (tmp_path / "again.work").exists(), moments
    assert files(tmp_path / "again") == files(tmp_path / "whole"), moments


@pytest.mark.few(1)
@pytest.mark.parametrize(("layout", "scheme", "kind"), [
    ("qqq", "w4a8-g128", "gptq"), ("gptq", "w4a16-g128", "gptq"), *map(slow, [
        ("qqq", "w4a8", "qqq"), ("qqq", "w4a8-g128", "auto"), ("gptq", "w4a16", "qronos"), ("gptq", "w8a16", "gptq"),
        ("gptq", "w4a16-g128", "awq"),
    ]),
])
def test_codes_are_the_same_in_each_layout(
    layout: str, scheme: str, kind: str, source: str, text: str, tmp_path: Path
) -> None:
    """Codes and scales of the other layout, read again, are those of compressed-tensors; so are values, bit for bit."""
    for name in (layout, "compressed-tensors"):
        method = SchemeMethod(text, kind, device="reference", threads=1, **OPTIONS)
        quantize_checkpoint(source, tmp_path / name, scheme, method=method, layout=name, threads=1)
    with open_model_file(tmp_path / layout) as file, open_model_file(tmp_path / "compressed-tensors") as other:
        made = [name for name, info in file.tensors.items() if info.type_name not in ("F32", "F16")]
        assert len(made) == 14
        for name in made:
            ours, theirs = file.tensor(name), other.tensor(name)
            np.testing.assert_array_equal(unpack(ours).q, unpack(theirs).q, err_msg=name)
            np.testing.assert_array_equal(dequantize(ours), dequantize(theirs), err_msg=name)
