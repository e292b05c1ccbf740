"""What a model with rounded activations computes, and how far kernels may be off that err in last bits of products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend, ops
from octavo.formats import codec
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.backends.row_products import nmse

OFF = 1e-3
"""Of a product's values. Float16 in attention and in products, and sums of fp8 with 14 bits, err half of it at most."""


def reference(folder: Path, tokens: list[int]) -> tuple[F32, float]:
    """Logits with activations rounded as kernels round them, and twice the normalized squared error of the same ones
    where each value of a product is off by OFF, normally distributed.

    That is far more than OFF squared. An activation near the middle between two codes becomes the other code, and what
    it changes takes more of them over in the layers after it. Numbers of e4m3 are 6 to 12% apart: in a model of two
    layers OFF comes to 0.003, and a hundredth of it to 0.001, where rounding itself costs 0.0045. Scales of groups that
    the reference folds into codes may also be left to multiply sums, as kernels do for a few tokens.
    """
    rng, expected = np.random.default_rng(0), _logits(folder, tokens)

    def nudged(product: Callable[..., F32]) -> Callable[..., F32]:
        def function(*inputs: Any) -> F32:
            y = product(*inputs)
            return y + y * rng.normal(scale=OFF, size=y.shape).astype(np.float32)

        return function

    with pytest.MonkeyPatch.context() as patched:
        for name in ("mul_mat", "mul_mat_id"):
            patched.setattr(ops, name, nudged(getattr(ops, name)))
        patched.setattr(codec, "fold", lambda groups, scales: np.multiply(groups, scales[..., None], out=groups))
        return expected, 2 * nmse(_logits(folder, tokens), expected)


def _logits(folder: Path, tokens: list[int]) -> F32:
    with open_model_file(folder) as file:
        backend = ReferenceBackend(quantize_activations=True)
        return Engine(read_model(file), [backend], EngineConfig(n_ctx=64)).logits(tokens)
