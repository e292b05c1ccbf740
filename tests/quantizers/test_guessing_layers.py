"""Layers that guess tokens, which no importance matrix knows, get types that need none."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.formats import by_name, quantize_reference
from octavo.quantizers.imatrix import Imatrix, SquareSums
from octavo.quantizers.job.job_plan import plan, require_weighted
from octavo.quantizers.job.job_source import ModelSource, SourceTensor
from octavo.quantizers.mix.mixing import Choices, Facts
from octavo.quantizers.mix.presets import find_preset

SHAPE = (4, 256)
NAMES = ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "blk.1.nextn.eh_proj.weight")


def tensor(name: str) -> SourceTensor:
    values = np.ones(SHAPE, np.float32)
    return SourceTensor(name, SHAPE, "F32", lambda: quantize_reference(values, by_name("F32"), name))


@pytest.mark.parametrize(("preset", "other"), [("IQ2_XS", "IQ4_NL"), ("Q2_K_S", "Q4_0"), ("Q4_K_M", "Q4_K")])
def test_types(preset: str, other: str) -> None:
    source = ModelSource("m.gguf", "qwen35", {}, tuple(map(tensor, NAMES)), Facts(2))
    seen = SquareSums(np.ones((1, SHAPE[1]), np.float32), np.ones(1, np.int64))
    job = plan(source, find_preset(preset), Choices(), Imatrix({NAMES[0]: seen}))
    require_weighted(job)
    assert [job.types[name].name for name in NAMES[1:]] == [other] * 2
    assert (job.types[NAMES[0]].name == other) == (preset == "Q4_K_M")
