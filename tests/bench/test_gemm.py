"""`octavo bench gemm`: what it says, and when it fails. Times are not looked at."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from octavo import ops
from octavo.bench import limits
from octavo.bench.gemm import limits as gemm_limits
from octavo.bench.gemm import measure, stored
from octavo.graph.executor import Executor
from tests.cli.conftest import Run
from tests.sampling import some


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "read_limit", lambda threads: 40.0)
    monkeypatch.setattr(measure, "SECONDS", 0.01)
    monkeypatch.setattr(measure, "COLD_BYTES", 1 << 16)


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
    assert result["ratio"] == pytest.approx(result["library_seconds"] / result["seconds"])
    assert (result["limit"] is None) == scheme.startswith("fp8")


@pytest.mark.parametrize("name", some(stored.STORED, 1))
@pytest.mark.parametrize("m", [1, 40])
def test_every_stored_format_passes(name: str, m: int) -> None:
    result = measure.bench_gemm(m, 264, 512, name.upper(), "cpu")
    assert result["passed"]
    assert result["scheme"] == name
    assert result["bound"] / 8 < result["rel_l2"] <= result["bound"] == stored.bound(stored.STORED[name])
    assert result["own_error"] < 1e-6
    assert result["library"] == "float32 BLAS"


def test_bounds_that_are_promised(octavo: Run) -> None:
    bounds = {name: stored.bound(fmt) for name, fmt in stored.STORED.items()}
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
    assert lines[5] == "PASSED"


def spoiled(change: Any) -> Any:
    right = ops.int8_gemm
    return lambda *arguments: change(right(*arguments))


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
) -> None:  # fmt: skip
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
