"""The simulator of replicas: what goes in comes out, and where theory knows the answer it finds that."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

TOOL = Path(__file__).parents[1] / "tools" / "scale_simulator.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_simulator", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale_simulator"] = module  # its records look their annotations up there
    spec.loader.exec_module(module)
    return module


def grid(seconds: Callable[[int, int], float]) -> list[dict[str, float]]:
    points = [(n, p) for n in (0, 1, 8, 32) for p in (0, 64, 512)]
    return [{"replies": n, "prompt_tokens": p, "seconds": seconds(n, p)} for n, p in points]


def real(n: int, p: int) -> float:
    """Seconds of a step as those of a GPU: a fixed part, and one for each reply and token."""
    return (0.01 if n or p else 0.0) + 0.0005 * n + 0.0001 * p


def simulated(tool: ModuleType, requests: list[Any], n: int = 1, steps: Any = real, **more: Any) -> Any:
    found = tool.Simulation(tool.step_time(grid(steps)), [tool.Replica() for _ in range(n)], **more)
    found.run(requests)
    return found


def test_times_between_measured_points(tool: ModuleType) -> None:
    seconds = tool.step_time(grid(lambda n, p: 0.002 * n + 0.0001 * p + 1e-6 * n * p))
    for n, p in ((0, 64), (5, 0), (20, 300), (64, 1024)):  # the last one lies beyond them
        assert seconds(n, p) == pytest.approx(0.002 * n + 0.0001 * p + 1e-6 * n * p)
    with pytest.raises(ValueError, match=r"are missing: \[\(8, 64\)\]"):
        tool.step_time([row for row in grid(real) if (row["replies"], row["prompt_tokens"]) != (8, 64)])


@pytest.mark.parametrize("routing", ["prefix", "round-robin"])
def test_what_goes_in_comes_out(tool: ModuleType, routing: str) -> None:
    asked = list(tool.poisson(30, 2000, 700, 40, prefixes=20, shared=600))
    found = simulated(tool, asked, 3, routing=routing)
    assert sorted(map(id, found.done)) == sorted(map(id, asked))
    assert all(r.written == r.reply and r.at < r.first <= r.end and not r.left for r in asked)
    assert sum(count for _, count in found.gaps) == sum(r.reply - 1 for r in asked)
    assert all(not r.load and not r.running and not r.waiting and not r.prefilling for r in found.replicas)
    figures = found.figures(price=2.0)
    hours = 3 * (max(r.end for r in asked) - min(r.at for r in asked)) / 3600
    assert figures["price_per_million"] == pytest.approx(2.0 * hours / sum(r.reply for r in asked) * 1e6)


def test_one_server_with_equal_times_waits_as_theory_says(tool: ModuleType) -> None:
    """M/D/1: at load r the queue takes r / (2 (1 - r)) times the service on average (Pollaczek and Khinchine)."""
    service = real(0, 64)
    for load in (0.3, 0.6, 0.8):
        asked = list(tool.poisson(load / service, 30_000, 64, 1, seed=1))
        for request in asked:
            request.reply = 1
        found = simulated(tool, asked, slots=1)
        waited = np.mean([r.first - r.at for r in asked]) - service
        assert waited == pytest.approx(service * load / (2 * (1 - load)), rel=0.08)
        assert found.figures()["computing"] == pytest.approx(load, rel=0.03)  # the utilisation law


def test_alone_and_at_the_limit(tool: ModuleType) -> None:
    one = tool.Request(0.0, 512, 11)
    simulated(tool, [one])
    assert (one.first, one.end) == pytest.approx((real(0, 512), real(0, 512) + 10 * real(1, 0)))
    long = [tool.Request(0.0, 1, 2000) for _ in range(64)]  # 32 at a time, replies alone
    figures = simulated(tool, long).figures()
    assert figures["tokens_per_s"] == pytest.approx(32 / real(32, 0), rel=0.01)
    assert figures["itl_p50_ms"] == pytest.approx(1e3 * real(32, 0))
    assert figures["computing"] == pytest.approx(1.0)


def test_steps_that_are_taken_together_are_those_one_by_one(tool: ModuleType) -> None:
    ends = []
    for most in (1, 1 << 30):
        asked = list(tool.poisson(20, 300, 1, 60, seed=3))
        simulated(tool, asked, 2, routing="round-robin", most=most)
        ends.append([(r.first, r.end) for r in asked])
    assert np.allclose(ends[0], ends[1])


def test_prefixes_stay_where_they_are_and_loads_are_bounded(tool: ModuleType) -> None:
    def asked(**more: Any) -> list[Any]:
        return list(tool.poisson(10, 3000, 1000, 20, prefixes=40, shared=900, **more))

    alone = simulated(tool, asked(), 1, cache=10**9).figures()["cached"]
    found = simulated(tool, asked(), 4, cache=10**9).figures()
    scattered = simulated(tool, asked(), 4, cache=10**9, routing="round-robin").figures()
    assert found["cached"] > 0.9 * alone
    hot = [tool.Request(i * 0.01, 1000, 50, prefix=7, shared=900) for i in range(400)]  # more than one can take
    spread = simulated(tool, hot, 4, cache=10**9)
    assert min(r.busy for r in spread.replicas) > 0.5 * max(r.busy for r in spread.replicas)
    small = simulated(tool, asked(), 4, cache=3000).figures()
    assert small["cached"] < scattered["cached"] <= found["cached"]


def test_as_a_program(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "steps.json").write_text(json.dumps({"steps": grid(real)}))
    arguments = [str(tmp_path / "steps.json"), "--rate", "4", "--count", "200", "--replicas", "1,1000", "--price", "2"]
    monkeypatch.setattr(sys, "argv", ["scale_simulator.py", *arguments])
    tool.main()
    one, many = map(json.loads, capsys.readouterr().out.splitlines())
    assert (one["replicas"], many["replicas"]) == (1, 1000)
    assert many["computing"] < one["computing"]
    assert many["ttft_p99_ms"] <= one["ttft_p99_ms"]
    assert many["price_per_million"] > 100 * one["price_per_million"]


@pytest.mark.parametrize(("given", "said"), [
    (["--rate", "0"], "argument --rate: 0"),
    (["--rate", "nan"], "argument --rate: nan"),
    (["--rate", "1", "--replicas", "a,b"], "argument --replicas: 'a' is not a number"),
    (["--rate", "1", "--replicas", "100000000"], "allowed: up to 10000"),
    (["--rate", "1", "--slots", "0"], "argument --slots: 0"),
    (["--rate", "1", "--shared", "900"], "--shared is 900, longer than a prompt"),
    (["--rate", "1"], "has no step times: steps need two numbers of replies"),
])
def test_what_makes_no_sense_is_refused(
    given: list[str], said: str, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps({"steps": [{"replies": 1, "prompt_tokens": 0, "seconds": 0.01}]}))
    monkeypatch.setattr(sys, "argv", ["scale_simulator.py", str(steps), *given])
    with pytest.raises(SystemExit) as ended:
        tool.main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
