"""What only a GPU can show: run with TRITON_INTERPRET=0 where there is one."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import octavo
from octavo.backends import select
from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.attention import decode_mma_launch, prefill_hopper_launch
from octavo.backends.gpu.attention.prefill_hopper_launch import BEYOND
from octavo.backends.reference import ReferenceBackend
from octavo.bench import gpu
from octavo.bench.cases import OpCase, run
from octavo.bench.limits import read_limit_of
from octavo.bench.op_bench import time_cases
from octavo.bench.profile import profile
from octavo.errors import BackendError, UsageError
from octavo.graph.node import Attention
from octavo.torch import QuantLinear
from tests.backends.comparison import compare
from tests.backends.op_cases import CASES

PROMPTS = ("What is 12 times 7?", "Convert 3 km to meters.")
MIB = 1 << 20


def replies(**options: object) -> list[str]:
    with octavo.load("demo", **options) as model:  # type: ignore[arg-type]
        return ["".join(model.generate(p, temperature=0.0, max_tokens=60)) for p in PROMPTS]


@pytest.fixture(scope="module")
def on_cpu() -> list[str]:
    return replies(device="cpu")


@pytest.mark.parametrize("layers", ["all", 1, 5, 9, "auto", 99])
def test_layers_on_both_say_what_either_says(layers: int | str, on_cpu: list[str]) -> None:
    assert replies(device="gpu", gpu_layers=layers) == on_cpu


def test_threads_take_turns(on_cpu: list[str]) -> None:
    with octavo.load("demo", device="gpu") as model, ThreadPoolExecutor(4) as threads:
        said = threads.map(lambda p: model.generate(p, temperature=0.0, max_tokens=60).text, PROMPTS * 4)
        assert list(said) == on_cpu * 4


def test_a_q8_0_cache_on_both() -> None:
    assert replies(device="gpu", gpu_layers=5, cache_type="q8_0") == replies(device="gpu", cache_type="q8_0")


DECODING = [c for c in CASES if "attention" in c.op and c.tokens == len(c.past) and c.shape["dim"] in (64, 128)]


@pytest.mark.parametrize("case", DECODING, ids=lambda case: case.name)
def test_single_tokens_by_the_kernel_of_gluon(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the portable kernel otherwise, because there is little to read."""
    for name in ("FLOATS", "CODES"):
        monkeypatch.setattr(decode_mma_launch, name, 1)
    built = case.build()
    found = compare(case, run(built, [GpuBackend()]), run(built, [ReferenceBackend()]))
    assert found.ok, found


PARTS = [
    c for c in CASES
    if c.op == "attention" and c.tokens > len(c.past) and c.shape["dim"] in (64, 128)
    and c.shape.get("cache") in ("f16", *prefill_hopper_launch.KINDS) and not {*c.shape} & {*BEYOND, "sinks", "shared"}
]


@pytest.mark.parametrize("attention", ["exact", "int8", "fp8"])
@pytest.mark.parametrize("case", PARTS, ids=lambda case: case.name)
def test_prompts_by_kernels_of_gluon(case: OpCase, attention: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes the portable kernel otherwise, as there is little of it; 8-bit products come near what is exact."""
    for name in ("FEW_QUERIES", "FEW_PAGES"):
        monkeypatch.setattr(prefill_hopper_launch, name, 1)
    built = case.build()
    found = compare(case, run(built, [GpuBackend(attention=attention)]), run(built, [ReferenceBackend()]))
    if attention == "exact":
        assert found.ok, found
    else:
        assert 1e-5 < found.nmse < (4e-3 if attention == "int8" else 1.5e-2), found


def test_auto_is_the_gpu() -> None:
    assert select("auto")[0].name == "gpu"


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little memory is free that some layers of the demo model do not fit; other processes use the card, too."""
    with octavo.load("demo", device="gpu") as model:
        placement = model.engine._placement
        wanted = placement.needed((placement.n_layer,))[0] - 4 * MIB
    monkeypatch.setattr(GpuBackend, "free", lambda backend: wanted)


@pytest.mark.usefixtures("scarce")
def test_what_does_not_fit_says_what_would(on_cpu: list[str]) -> None:
    with pytest.raises(
        BackendError, match=r"device gpu: 10 of 10 layers take .* --gpu-layers \d+ would fit$"
    ) as raised:
        octavo.load("demo", device="gpu")
    (layers,) = re.findall(r"--gpu-layers (\d+)", str(raised.value))
    assert 0 < int(layers) < 10
    assert replies(device="gpu", gpu_layers=int(layers)) == on_cpu
    assert replies(device="auto") == on_cpu


def test_steps_that_are_captured_take_no_memory() -> None:
    with octavo.load("demo", device="gpu") as model:
        model.generate(PROMPTS[0], temperature=0.0, max_tokens=60)  # captures what it needs
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        model.generate(PROMPTS[0], temperature=0.0, max_tokens=60)
        assert torch.cuda.max_memory_allocated() - before < 4 * MIB


def test_a_profile_has_every_node() -> None:
    with octavo.load("demo", device="gpu") as model:
        for new in (1, 64):
            found = profile(model.engine, new, depth=20, rounds=2)
            assert all(0 < n.seconds < 1 for n in found.nodes)
            assert 0 < found.step_seconds < 1


def test_ops_are_timed_with_the_gpu_s_events() -> None:
    case = OpCase("mul_mat", 1, {"n": 1024, "k": 1024}, ("Q4_K",))
    backends = select("gpu")
    limit = read_limit_of(backends[0], 1)
    assert limit is gpu.read_limit
    (row,) = time_cases([case], backends, limit=limit)
    assert 0 < row["share_of_read_limit"] < 1


def test_a_layer_elsewhere_is_refused() -> None:
    layer = QuantLinear.from_linear(torch.nn.Linear(128, 8))
    with pytest.raises(UsageError, match="all torch on one device"):
        layer(torch.zeros(2, 128, device="cuda"))
    assert layer.to("cuda")(torch.zeros(2, 128, device="cuda")).device.type == "cuda"
