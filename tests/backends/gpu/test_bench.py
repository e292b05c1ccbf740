"""Measuring on a GPU, as far as it goes without one: kernels interpreted, the host's clock instead of events."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.device.bandwidth import read_kernel
from octavo.bench import gpu
from octavo.bench.cases import OpCase, executor
from octavo.bench.limits import read_limit_of
from octavo.bench.op_bench import time_cases
from octavo.bench.synthetic import random_matrix
from octavo.formats import by_name

CASE = OpCase("mul_mat", 1, {"n": 16, "k": 256}, ("Q4_K",))


def test_an_interpreted_gpu_has_no_events_and_no_read_limit() -> None:
    backend = GpuBackend()
    assert not gpu.has_events(backend)
    assert read_limit_of(backend, 1) is None
    assert gpu.describe(backend) == {"gpu": "Triton's interpreter", "arch": "interpreter"}
    assert gpu.versions().keys() == {"torch", "triton"}


def test_what_reads_memory_reads_all_of_it() -> None:
    x, out = torch.randint(-9, 9, (4 * 3 * 64,), dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    read_kernel[(4,)](x, out, 64, 3, num_warps=1, enable_fp_fusion=True)
    assert out.tolist() == x.view(4, -1).sum(dim=1).tolist()


def test_a_case_without_a_limit() -> None:
    (row,) = time_cases([CASE], [GpuBackend()], limit=read_limit_of(GpuBackend(), 1), seconds=0.0)
    assert row["seconds"] > 0
    assert row["share_of_read_limit"] is None


@pytest.mark.parametrize("name", ["Q4_K", "F16", "F32"])
def test_each_executor_has_weights_of_its_own(name: str) -> None:
    tensor = random_matrix("w", by_name(name), (4, 256), np.random.default_rng(0))
    backend = gpu.Copying()
    first, second = backend.load(tensor), backend.load(tensor)
    parts = [list(w.parts.values()) if hasattr(w, "parts") else [w.data] for w in (first, second)]
    for a, b in zip(*parts, strict=True):
        assert a.equal(b)
        assert a.data_ptr() != b.data_ptr()


def test_the_quantization_of_activations_is_not_in_a_product_s_time() -> None:
    built = CASE.build()
    ready = executor(built, [GpuBackend()])
    plan = ready.plan(built.steps[-1][1])
    assert [n.op for n, _ in plan.calls] == ["quantize", "mul_mat"]
    assert len(gpu.calls_of(plan).calls) == 1
