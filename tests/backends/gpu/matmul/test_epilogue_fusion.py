"""Steps of one token whose products leave what the next ones multiply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device.torch_device import target
from octavo.backends.gpu.launch.arguments import FusedEpilogue, Q8Token
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul import dispatch, epilogue_fusion
from octavo.backends.gpu.matmul.matvec_persistent.launch import multiply
from octavo.backends.gpu.matmul.matvec_persistent.persistent_shape import PersistentShape
from octavo.backends.gpu.weights.load import load
from octavo.backends.reference import ReferenceBackend
from octavo.bench import synthetic
from octavo.bench.synthetic import ModelShape, random_matrix
from octavo.formats import by_name, dequantize
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.sampling import slow

N, K, EPS = 128, 1024, 1e-3


def token(codes: np.ndarray, scale: np.ndarray, squares: np.ndarray | None) -> Q8Token:
    """Codes [K] with scales of 16 values each."""
    device = target().device
    of, sums = torch.from_numpy(codes).to(device), codes.reshape(-1, 16).sum(1, dtype=np.float32) * scale
    parts = [torch.from_numpy(a).to(device) for a in (scale, sums)]
    norm = None if squares is None else torch.from_numpy(squares).to(device)
    return Q8Token(of.view(torch.int32), parts[0], None, parts[1], 1, norm, EPS)


@pytest.mark.parametrize(
    ("name", "ends", "normed", "shape"),
    [
        ("Q8_0", "rms_norm", False, (1, 4, 2)), ("Q8_0", "swiglu", True, (1, 8, 2)),
        *(slow((name, ends, normed, shape)) for name in ("Q8_0", "Q4_K", "Q6_K") for ends, normed, shape in (
            ("rms_norm", True, (2, 2, 4)), ("rms_norm", False, (1, 16, 1)), ("swiglu", False, (2, 1, 2)),
            ("swiglu", True, (1, 8, 1)), ("", True, (1, 2, 2)),
        )),
    ],
)
def test_products(name: str, ends: Any, normed: bool, shape: tuple[int, int, int]) -> None:
    """What is stored is what float64 makes of it: codes nearest, whose scale is the largest of 16 over 127."""
    c, rng = Context(target()), np.random.default_rng(3)
    tensor = random_matrix("w", by_name(name), (N, K), rng)
    w: Any = load(tensor, c.target.device)
    codes, scale = rng.integers(-127, 128, K, np.int8), np.exp2(rng.integers(-8, -4, K // 16)).astype(np.float32)
    squares = rng.uniform(1, 3, K // 16).astype(np.float32) if normed else None
    x = codes * scale.repeat(16).astype(np.float64)
    if squares is not None:
        x /= np.sqrt(squares.astype(np.float64).sum() / K + EPS)
    y = dequantize(tensor).astype(np.float64) @ x
    if ends == "swiglu":
        gate, up = y[: N // 2], y[N // 2 :]
        value = gate / (1 + np.exp(-gate)) * up
    weight, term = (rng.uniform(-2, 2, N).astype(np.float32) for _ in range(2))
    terms = () if ends == "swiglu" else (torch.from_numpy(term[None]).to(c.target.device),)
    if terms:
        y = y + term
        value = y * weight
    made = torch.full((2 * N,), 0xFF, dtype=torch.uint8, device=c.target.device)
    count = len(value)
    floats = [made[count + i * count // 4 :][: count // 4].view(torch.float32) for i in range(3)]
    norm = torch.from_numpy(weight).to(c.target.device) if ends == "rms_norm" else None
    end = FusedEpilogue(
        made[:count].view(torch.int8), floats[0], floats[1], floats[2] if ends == "rms_norm" else None, norm
    )
    out = torch.full((1, N), torch.nan, device=c.target.device)
    multiply(c, PersistentShape(*shape, ends), w, token(codes, scale, squares), None if ends == "swiglu" else out,
             terms, end if ends else None)()
    if ends != "swiglu":
        np.testing.assert_allclose(out.cpu().numpy()[0], y, rtol=2e-5, atol=4e-6 * np.abs(y).max())
    if not ends:
        return
    largest = np.abs(value).reshape(-1, 16).max(1)
    got = end.codes.cpu().numpy().astype(np.float64)
    np.testing.assert_allclose(end.scale.cpu().numpy(), largest / 127, rtol=1e-4)
    np.testing.assert_allclose(got, value * (127 / largest).repeat(16), atol=0.51)
    np.testing.assert_allclose(
        end.sums16.cpu().numpy(), got.reshape(-1, 16).sum(1) * end.scale.cpu().numpy(), rtol=1e-6
    )
    if ends == "rms_norm":
        np.testing.assert_allclose(floats[2].cpu().numpy(), (y * y).reshape(-1, 16).sum(1), rtol=1e-4)


@contextmanager
def counted() -> Iterator[list[tuple[int, int]]]:
    """Calls of a run as they are bound, and those that are left."""
    real, found = epilogue_fusion.fuse_epilogues, list[tuple[int, int]]()

    def fuse_epilogues(c: Context, bound: Sequence[epilogue_fusion.BoundNode], graph: Any) -> Any:
        calls = real(c, bound, graph)
        found.append((sum(len(b.calls) for b in bound), len(calls)))
        return calls

    with patch.object(epilogue_fusion, "fuse_epilogues", fuse_epilogues):
        yield found


def logits(path: Path, backend: Any) -> np.ndarray:
    return Engine(read_model(GGUFFile.open(path)), [backend], EngineConfig(n_ctx=64)).step([Feed(Tokens(), [5])])[0]


@pytest.mark.slow
def test_model(tmp_path: Path) -> None:
    """A step of a model: norms and SwiGLU take no launches of their own, but for the first and the last norm."""
    shape = ModelShape("llama", 1, 256, 256, 2, 1, 128, 66, False)
    with patch.dict(synthetic.SHAPES, {"tiny": shape}):
        synthetic.make("tiny", "Q8_0", tmp_path / "model.gguf")
    some = PersistentShape(1, 8, 2)
    with (
        patch.object(epilogue_fusion, "epilogue_shape", lambda *args: replace(some, epilogue=args[-1])),
        patch.object(dispatch, "persistent", lambda *_: some),
        counted() as found,
    ):
        ours = logits(tmp_path / "model.gguf", GpuBackend())
    assert found[0][0] - found[0][1] == 2
    wanted = logits(tmp_path / "model.gguf", ReferenceBackend())
    assert ((ours - wanted) ** 2).sum() / (wanted**2).sum() < 1e-3
