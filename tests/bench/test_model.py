"""Timing of models: which tests are run, in what order, and what is made of the times."""

from __future__ import annotations

import json
import os

import pytest

from octavo.bench.cost import Cost
from octavo.bench.model_bench import Timing, Trial, make_tests, report, room, summary, time_test
from octavo.bench.result import BenchOptions, bench_model
from octavo.errors import UsageError


class Scripted:
    """A subject that writes down what it is asked, and takes `seconds` for everything."""

    def __init__(self, name: str, seconds: float, log: list[str]) -> None:
        self.name, self.pid, self._seconds, self._log = name, os.getpid(), seconds, log

    def prepare(self, depth: int, batch: int) -> None:
        self._log.append(f"{self.name} prepare {depth} {batch}")

    def prefill(self, n: int) -> float:
        self._log.append(f"{self.name} prefill {n}")
        return self._seconds

    def decode(self, n: int) -> float:
        self._log.append(f"{self.name} decode {n}")
        return self._seconds


def test_tests_of_a_run() -> None:
    tests = make_tests(256, 64, [1, 4], [0, 4096])
    assert [t.name for t in tests] == ["prefill 256", "decode 64", "decode 64 x4", "decode 64 @4096"]
    assert room(tests) == 4160
    assert make_tests(0, 8) == [Trial("decode", 8)]
    assert make_tests(8, 0, [2]) == [Trial("prefill", 8)]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((-1, 1), r"-p is -1 \(allowed: 0 or more\)"),
        ((1, -1), "-n is -1"),
        ((0, 0), "nothing to time"),
        ((1, 1, [1, 0]), r"--batch is 0 \(allowed: 1 or more\)"),
        ((1, 1, [1], [-4]), "--depth is -4"),
    ],
)
def test_numbers_out_of_range(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_tests(*numbers)  # type: ignore[arg-type]


def test_subjects_take_turns() -> None:
    log: list[str] = []
    subjects = [Scripted("a", 0.5, log), Scripted("b", 0.25, log)]
    limits = iter([30.0, 40.0, 35.0, 38.0])
    timing = time_test(Trial("decode", 10, depth=7), subjects, 3, lambda: next(limits))
    assert log[:4] == ["a prepare 7 1", "a decode 2", "b prepare 7 1", "b decode 2"]
    assert log[4:] == ["a decode 10", "b decode 10"] * 3
    assert timing.rates == {"a": [20.0] * 3, "b": [40.0] * 3}
    assert timing.limits == [30.0, 40.0, 35.0, 38.0], "before the test, and after each round"


def test_rates_count_the_tokens_of_all_sequences() -> None:
    timing = time_test(Trial("decode", 10, batch=4), [Scripted("a", 0.5, [])], 1)
    assert timing.rates == {"a": [80.0]}
    assert timing.limits == []


def test_summary() -> None:
    assert summary([1.0, 2.0, 6.0]) == {"median": 2, "mean": 3, "deviation": pytest.approx(7**0.5), "rounds": [1, 2, 6]}
    assert summary([4.0])["deviation"] == 0


def test_what_a_row_says() -> None:
    timing = Timing(Trial("decode", 10, batch=4), {"octavo": [70.0, 80.0, 90.0], "peer": [20.0, 40.0, 50.0]}, [38.0])
    timing.baseline = [20.0, 25.0, 45.0]  # in the same rounds: the ratios are 3.5, 3.2, 2
    cost = Cost(weights=10**9, cache=10**9, operations=3 * 10**9)  # of a step, of which there are 80 / 4 a second
    row = report(timing, cost, 40.0)
    assert row["ratio"] == {"peer": 2.0}
    assert row["weights_gbps"] == 20.0
    assert row["share_of_read_limit"] == 0.5
    assert row["to_first"] == 3.2
    assert row["gops"] == 60.0


def test_a_prefill_row_has_operations_and_no_reads() -> None:
    timing = Timing(Trial("prefill", 10), {"octavo": [50.0]})
    row = report(timing, Cost(weights=10**9, operations=10**9), 40.0)
    assert row["gops"] == 5.0
    assert "weights_gbps" not in row


def test_a_result_says_everything(model: str, fixed_limit: None) -> None:
    options = BenchOptions(
        prompt=5, generate=3, rounds=2, batches=(1, 2), depths=(0, 9), device="reference", command="c"
    )
    result = json.loads(json.dumps(bench_model(model, options), allow_nan=False))
    assert result["model"]["file"] == "tiny.gguf"
    assert result["model"]["bits_per_weight"] == 32
    assert (result["device"], result["kv"]) == ("reference", "f16")
    assert result["machine"]["cores"] >= 1
    assert [t["test"] for t in result["tests"]] == ["prefill 5", "decode 3", "decode 3 x2", "decode 3 @9"]
    for test in result["tests"]:
        assert len(test["rates"]["octavo"]["rounds"]) == 2
        assert test["rates"]["octavo"]["median"] > 0
        assert test["read_limits"] == [40.0] * 3
        assert test["gops"] > 0
    assert result["tests"][1]["to_first"] is None
    assert result["tests"][2]["to_first"] > 0
    assert 0 < result["tests"][3]["share_of_read_limit"] == result["tests"][3]["weights_gbps"] / 40


def test_decode_of_a_step_costs_the_weights_once(model: str, fixed_limit: None) -> None:
    """All matrices are read, the embedding but for a row."""
    from octavo.backends.reference import ReferenceBackend
    from octavo.bench.subject import EngineSubject
    from octavo.io.gguf import GGUFFile
    from octavo.models import read_model
    from octavo.runtime import Engine, EngineConfig

    with GGUFFile.open(model) as file:
        engine = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, max_sequences=4))
        subject = EngineSubject(engine)
        matrices = sum(t.nbytes for t in file.tensors.values() if len(t.shape) > 1)
        table = file.tensors["token_embd.weight"]
        cost = subject.decode_cost(4, 10)
        # the rows of tokens, and those of the last layer whose logits are wanted
        assert cost.weights == matrices - table.nbytes + 4 * table.nbytes // table.shape[0]
        attention = 2 * 4 * 4 * 16 * 4 * 11  # layers, 4, heads, dim, sequences, positions
        assert cost.operations == 2 * 4 * (matrices - table.nbytes) // 4 + attention
        assert cost.cache == 2 * 2 * 2 * 16 * 2 * 4 * 11  # layers, k and v, heads, dim, bytes, sequences, positions


def test_with_a_peer(model: str, fixed_limit: None, fake_peer: None) -> None:
    options = BenchOptions(
        prompt=4, generate=2, rounds=2, batches=(1, 2), device="reference", peer="llama.cpp", kv="f32"
    )
    result = bench_model(model, options)
    assert result["versions"]["llama.cpp"] == "0.0.fake"
    assert result["peers"] == {"llama.cpp": {"flash_attention": True}}
    prefill, decode, batch = result["tests"]
    for test in (prefill, decode):
        ours, other = (test["rates"][name]["median"] for name in ("octavo", "llama.cpp"))
        assert test["ratio"] == {"llama.cpp": ours / other}
    assert list(batch["rates"]) == ["octavo"]
    assert batch["ratio"] == {}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (BenchOptions(rounds=0, device="reference"), UsageError, r"-r is 0 \(allowed: 1 or more\)"),
        (BenchOptions(generate=8, depths=(505,), device="reference"), UsageError, "take a context of 513"),
        (BenchOptions(threads=0, device="reference"), UsageError, "threads is 0"),
    ],
)
def test_options_that_can_not_be(model: str, options: BenchOptions, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bench_model(model, options)
