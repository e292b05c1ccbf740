"""`octavo bench gemm`: what it says, and when it fails. Times are not looked at."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from octavo import ops
from octavo.backends.gpu.device import torch_device
from octavo.bench import limits
from octavo.bench.gemm import gemm_limits, measure, stored_formats
from octavo.graph.executor import Executor
from tests.cli.conftest import Run
from tests.sampling import some


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "read_limit", lambda threads: 40.0)
    monkeypatch.setattr(measure, "SECONDS", 0.01)
    monkeypatch.setattr(measure, "COLD_BYTES", 1 << 16)


@pytest.mark.few(6)
@pytest.mark.parametrize("scheme", measure.PRODUCTS)
@pytest.mark.parametrize("m", [1, 40])
def test_every_scheme_passes(octavo: Run, scheme: str, m: int) -> None:
    done = octavo("bench", "gemm", str(m), "264", "256", "--scheme", scheme, "--device", "cpu", "--json")
    result = json.loads(done.out)
    assert done.status == 0
    assert result["passed"]
    assert 0 < result["rel_l2"] <= result["bound"] == measure.PRODUCTS[scheme].bound
    assert result["own_error"] < 1e-6
    assert result["seconds"] > 0
    ((library),) = result["libraries"]
    assert library["name"] == "float32 BLAS"
    assert library["ratio"] == pytest.approx(library["seconds"] / result["seconds"])
    assert (result["limit"] is None) == scheme.startswith("fp8")


@pytest.mark.parametrize("name", some(stored_formats.STORED, 1))
@pytest.mark.parametrize("m", [1, 40])
def test_every_stored_format_passes(name: str, m: int) -> None:
    result = measure.bench_gemm(m, 264, 512, name.upper(), "cpu")
    assert result["passed"]
    assert result["scheme"] == name
    bound = stored_formats.bound(stored_formats.STORED[name])
    assert result["bound"] / 8 < result["rel_l2"] <= result["bound"] == bound
    assert result["own_error"] < 1e-6
    assert [each["name"] for each in result["libraries"]] == ["float32 BLAS"]


def test_bounds_that_are_promised(octavo: Run) -> None:
    bounds = {name: stored_formats.bound(fmt) for name, fmt in stored_formats.STORED.items()}
    assert bounds["q8_0"] == measure.PRODUCTS["int8"].bound == 0.03
    assert {bounds[name] for name in ("q4_0", "q4_1", "q4_k", "iq4_nl", "iq4_xs", "mxfp4", "nvfp4")} == {0.15}
    lines = octavo("bench", "gemm", "16", "16", "256", "--scheme", "q8_0", "--device", "cpu").out.splitlines()
    assert lines[0] == "q8_0 on cpu, 16 x 16 x 256"
    assert lines[1].endswith("(allowed: rel_L2 0.03)")
    assert lines[-1] == "PASSED"


@pytest.mark.parametrize("n", [1, 2])
def test_results_too_few_to_average_are_not_judged(octavo: Run, n: int) -> None:
    """A single result may be nearly zero, and its error any multiple of it."""
    done = octavo("bench", "gemm", "1", str(n), "256", "--scheme", "w4a8", "--device", "cpu")
    assert done.status == 0
    assert done.out.splitlines()[1].endswith(" (too few results to judge)")
    result = measure.bench_gemm(1, n, 256, "w4a8", "cpu")
    assert result["rel_l2"] > measure.PRODUCTS["w4a8"].bound
    assert result["bound"] is None


def test_a_wrong_stored_product_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Executor.run

    def wrong(self: Any, *arguments: Any) -> Any:
        return [y * np.float32(1.002) for y in right(self, *arguments)]

    monkeypatch.setattr(Executor, "run", wrong)
    result = measure.bench_gemm(3, 16, 256, "q8_0", "cpu")
    assert result["own_error"] == pytest.approx(0.002, rel=0.01)
    assert not result["passed"]


ASKED = (
    ("int8", "--scale-a", "tensor", "--bias"),
    ("int8", "--scale-a", "64", "--activation", "relu"),
    ("int8", "--bias", "--activation", "gelu", "--residual"),
    ("w4a8-g128", "--scale-a", "tensor", "--residual"),
    ("fp8", "--fp8", "e5m2", "--scale-a", "tensor"),
    ("fp8", "--fp8", "e4m3-e5m2", "--activation", "silu", "--residual"),
    ("fp8-blocks", "--fp8", "e5m2-e4m3", "--bias"),
)


@pytest.mark.few(5)
@pytest.mark.parametrize("asked", ASKED, ids=" ".join)
def test_every_option_of_a_product(octavo: Run, asked: tuple[str, ...]) -> None:
    scheme, *options = asked
    done = octavo("bench", "gemm", "9", "40", "256", "--scheme", scheme, *options, "--device", "cpu", "--json")
    result = json.loads(done.out)
    assert done.status == 0, result
    assert result["bound"] == (0.1 if "e5m2" in str(options) else measure.PRODUCTS[scheme].bound)
    assert result["bound"] / 8 < result["rel_l2"]
    assert result["own_error"] < 1e-6


def test_what_follows_the_sums_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product without its bias, its activation or its residual fails."""
    right = ops.int8_gemm
    how = measure.How(bias=True, activation="silu", residual=True)
    assert measure.bench_gemm(9, 40, 64, "int8", "cpu", how)["passed"]
    for left_out in ("bias", "activation", "residual"):

        def without(*arguments: Any, left_out: str = left_out, **after: Any) -> Any:
            return right(*arguments, **{name: value for name, value in after.items() if name != left_out})

        monkeypatch.setattr(ops, "int8_gemm", without, raising=False)
        assert not measure.bench_gemm(9, 40, 64, "int8", "cpu", how)["passed"]


def test_a_seed_draws_other_values(octavo: Run) -> None:
    def errors(*seed: str) -> Any:
        result = json.loads(octavo("bench", "gemm", "9", "40", "64", *seed, "--device", "cpu", "--json").out)
        return result["rel_l2"], result["max_abs_err"]

    assert errors() == errors("--seed", "0") != errors("--seed", "7") == errors("-s", "7")


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What others take of the machine, and the least milliseconds that each of two looks at the limit finds."""
    found = {"others": 0.0, "before": 1e-6, "after": 1e-6}
    looks = iter(["before", "after"] * 9)
    monkeypatch.setattr(measure.LoadWatch, "others", lambda self: found["others"])
    monkeypatch.setattr(gemm_limits, "limit", lambda *_: gemm_limits.Limit("9 GOPS", found[next(looks)]))
    return found


def test_a_busy_machine_has_no_ratio(octavo: Run, beside: dict[str, float]) -> None:
    asked = ("bench", "gemm", "9", "40", "64", "--device", "cpu")
    quiet = octavo(*asked).out.splitlines()
    assert quiet[3].endswith("% of 9 GOPS")
    assert quiet[4].endswith("x")
    beside["others"] = 0.31
    busy = octavo(*asked).out.splitlines()
    assert busy[3].endswith("  Limit: ? of 9 GOPS")
    assert busy[4].endswith("  Ratio: withheld")
    assert busy[5] == "Busy machine: other programs took up to 31% of the CPU; rates mislead."


def test_more_than_the_limit_has_no_ratio(octavo: Run, beside: dict[str, float]) -> None:
    """Unless what was measured after the product is more: the most counts."""
    asked = ("bench", "gemm", "9", "40", "64", "--device", "cpu")
    beside["before"] = 1e9
    assert "Ratio: withheld" not in octavo(*asked).out
    beside["after"] = 1e9
    said = octavo(*asked).out
    assert "Ratio: withheld" in said
    assert "of the limit was reached, so that others had the machine while the limit was measured" in said


@pytest.mark.parametrize("asked", [("int8",), ("int8", "--scale-a", "64"), ("fp8", "--fp8", "e4m3-e5m2"),
                                   ("w4a8-g128", "--bias", "--residual"), ("q4_k",)], ids=" ".join)
def test_the_interpreter_runs_the_kernels_of_the_gpu(
    octavo: Run, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch_device.interpreted():
        pytest.skip("kernels run on a GPU here")
    for name in ("int8_gemm", "w4a8_gemm", "fp8_gemm"):  # which NumPy's arrays go to, and tensors in the host's memory
        monkeypatch.setattr(ops, name, None, raising=False)
    done = octavo("bench", "gemm", "2", "32", "256", "--scheme", *asked, "--device", "gpu")
    lines = done.out.splitlines()
    assert done.status == 0
    assert lines[0].startswith(f"{asked[0]} on Triton's interpreter, 2 x 32 x 256")
    assert lines[3].endswith(" s, in the interpreter, not on a GPU")
    assert lines[4:] == ["PASSED"]


def test_the_interpreter_refuses_what_takes_minutes(octavo: Run) -> None:
    if not torch_device.interpreted():
        pytest.skip("kernels run on a GPU here")
    error = octavo("bench", "gemm", "--device", "gpu").error()
    assert "M x N x K is 268,435,456 with scheme int8 in Triton's interpreter" in error
    assert "(allowed: up to 33,554,432, or a GPU)" in error


def test_default_prints_its_lines(octavo: Run) -> None:
    lines = octavo("bench", "gemm", "--device", "cpu").out.splitlines()
    assert lines[0] == "int8 on cpu, 512 x 512 x 1024"
    assert lines[1].startswith("Validation: rel_L2=0.011")
    assert ", max_abs_err=" in lines[1]
    assert lines[2].startswith("Kernel: rel_L2=")
    assert lines[3].startswith("Time: ")
    assert " ms  Throughput: " in lines[3]
    assert " GOPS  Limit: " in lines[3]
    assert lines[4].startswith("Library: float32 BLAS ")
    assert lines[-1] == "PASSED"


def spoiled(change: Any) -> Any:
    right = ops.int8_gemm
    return lambda *arguments, **after: change(right(*arguments, **after))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("change", "field", "size"),
    [
        (lambda y: y * np.float32(1.002), "own_error", 0.002),  # still within the scheme's bound
        (lambda y: np.roll(y, 1, axis=1), "rel_l2", 1.41),
        (lambda y: np.where(y == y[0, 0], np.nan, y), "rel_l2", float("inf")),
    ],
)
def test_wrong_results_fail(
    octavo: Run, change: Any, field: str, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "int8_gemm", spoiled(change), raising=False)
    result = measure.bench_gemm(40, 48, 256, "int8", "cpu")
    assert not result["passed"]
    assert result[field] == pytest.approx(size, rel=0.1)
    done = octavo("bench", "gemm", "40", "48", "256", "--device", "cpu")
    assert done.status == 1
    assert done.out.splitlines()[-1] == "FAILED"


def test_every_product_of_many_tokens_is_looked_at_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more tokens than are checked, the first and the last are among those that are."""
    monkeypatch.setattr(measure, "CHECKED_ROWS", 5)

    def last_row(y: Any) -> Any:
        y[-1] = 0
        return y

    monkeypatch.setattr(ops, "int8_gemm", spoiled(last_row), raising=False)
    assert not measure.bench_gemm(64, 32, 64, "int8", "cpu")["passed"]


def test_what_is_refused(octavo: Run) -> None:
    wrong = octavo("bench", "gemm", "1", "1", "100", "--scheme", "w4a8", "--device", "cpu")
    assert "a product of 1 x 1 x 100" in wrong.error()
    assert "K a multiple of 128" in wrong.error()
    unknown = octavo("bench", "gemm", "--scheme", "q9_0", "--device", "cpu").error()
    assert "scheme 'q9_0' (allowed: int8, w4a8, w4a8-g128, fp8, fp8-blocks, q4_0, " in unknown
    blocks = octavo("bench", "gemm", "1", "1", "128", "--scheme", "q4_k", "--device", "cpu").error()
    assert "K a multiple of 256" in blocks
    zero = octavo("bench", "gemm", "0", "1", "1", "--device", "cpu").error()
    assert zero.endswith("a product of 0 x 1 x 1 (allowed: from 1 on, up to 2^31 values of a matrix)")
    assert "values of a matrix" in octavo("bench", "gemm", "999999", "999999", "1", "--device", "cpu").error()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--scheme", "w4a8", "--scale-a", "64"), "--scale-a 64 with scheme w4a8 and K = 256"),
        (("--scale-a", "48"), "(allowed: token or tensor; with int8 a multiple of 32 that divides K)"),
        (("--scale-a", "row"), "--scale-a is 'row' (allowed: token, tensor, or how many values of K share a scale)"),
        (("--fp8", "e5m2"), "--fp8 e5m2-e5m2 with scheme int8 (allowed with it: fp8 and fp8-blocks)"),
        (("--scheme", "fp8-blocks", "--scale-a", "tensor"), "whose activations have a scale for 128 values"),
        (("--scheme", "q8_0", "--bias"), "scheme q8_0 is a model's product"),
    ],
)
def test_options_that_a_scheme_has_not(octavo: Run, asked: tuple[str, ...], said: str) -> None:
    assert said in octavo("bench", "gemm", "4", "16", "256", *asked, "--device", "cpu").error()


def test_too_little_memory_is_a_line(octavo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*sizes: int) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr(measure, "drawn", drawn)
    error = octavo("bench", "gemm", "--device", "cpu").error()
    assert error == "octavo: error: out of memory: Unable to allocate 8.00 GiB"


def test_limit_is_what_takes_longer() -> None:
    memory = gemm_limits.limit(1, 40_000_000, 1, "int8")
    assert memory is not None
    assert memory.name == "40 GB/s"
    assert memory.seconds == pytest.approx(1e-3)
    work = gemm_limits.limit(10**12, 1, 1, "int8")
    assert work is not None
    assert work.name.endswith(" GOPS")


@pytest.mark.parametrize(
    ("scheme", "names"), [("int8", ["int8", "float16"]), ("w4a8", ["float16"]), ("q8_0", ["float16"])]
)
def test_float16_stands_beside_every_scheme_on_a_gpu(scheme: str, names: list[str]) -> None:
    """And the vendor's int8 beside int8; here torch multiplies on the CPU."""
    from octavo.bench.gemm import library

    x, w = measure.drawn(32, 48, 64)
    placed = tuple(torch.from_numpy(np.round(each).astype(np.int8)) for each in (x, w))
    found = library.calls(scheme, x, w, placed, 2)
    assert [name.split()[1] for name in found] == names
    y: Any = list(found.values())[-1][1]()
    assert np.linalg.norm(y.float().numpy() - x @ w.T) < 0.01 * np.linalg.norm(x @ w.T)
    assert all(call() is not None for calls in found.values() for call in calls)
