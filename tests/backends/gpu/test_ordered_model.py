"""A whole model whose products take activations in the order of `w4a16_hopper`: whatever goes before a product
writes them so, at its place in memory. The kernels are interpreted; that of the product is a plain one here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul import launch as matmul
from octavo.backends.gpu.matmul.w4a16.w4a16_shapes import MIN_TOKENS
from octavo.backends.gpu.weights.device_weights import QuantWeight
from octavo.graph.protocol import Call
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence as Tokens
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.backends.gpu.matmul.test_w4a16 import PLACE
from tests.backends.gpu.test_model import SMALL
from tests.models.checkpoints import CASES, make, metadata, stored

NATURAL = np.argsort([PLACE[i] for i in range(16)]).tolist()


def plain_product(
    c: Context, shape: object, w: QuantWeight, x: Activation, y: torch.Tensor, terms: Sequence[torch.Tensor],
    otherwise: Callable[[], list[Call]],
) -> list[Call]:
    halves, unpack = matmul.unpacked(c, w)
    ordered: Any = x.ordered

    def multiply() -> None:
        values = ordered.unflatten(-1, (-1, 16))[..., NATURAL].flatten(-2)
        matmul.library_product(values, halves, y)
        for term in terms:
            y.add_(term)

    return [unpack, multiply]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of few tokens and of many, and a step of six sequences, as with int8 activations or natural order."""
    case = replace(CASES["qwen3"], options=CASES["qwen3"].options | SMALL | {"num_hidden_layers": 1})
    model = make(case)
    write_gguf(tmp_path / "m.gguf", case.arch, metadata(case, model.config), stored(case, model, "Q8_0"))

    def logits() -> list[np.ndarray]:
        with GGUFFile.open(tmp_path / "m.gguf") as file:
            engine = Engine(read_model(file), [GpuBackend()], EngineConfig(n_ctx=64, max_sequences=6, strict=True))
            prompts = [engine.logits([int(t) % 60 for t in range(3, 3 + n)]) for n in (7, 34)]
            feeds = [Feed(Tokens(), [t]) for t in (5, 3, 50, 7, 21, 9)]
            return [*prompts, engine.step(feeds), engine.step([Feed(f.sequence, [4]) for f in feeds])]

    expected = logits()
    taken: list[int] = []

    def in_registers(layout: object, n: int, kp: int, tokens: int, arch: str) -> bool:
        taken.append(tokens)
        return tokens >= MIN_TOKENS

    monkeypatch.setattr(dispatch, "ordered", lambda tokens, arch: tokens >= MIN_TOKENS)
    monkeypatch.setattr(dispatch, "w4a16", in_registers)
    monkeypatch.setattr(matmul, "w4a16_product", plain_product)
    for found, right in zip(logits(), expected, strict=True):
        assert np.square(found - right).mean() < 1e-3 * np.square(right).mean()
    assert {7, 34, 6} <= set(taken)
