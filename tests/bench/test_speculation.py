"""Replies with drafts compared with those without: simulated drafts are right as often as they are to be."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from octavo.bench.render import speculation_table, to_markdown
from octavo.bench.result import BenchOptions, bench_model
from octavo.bench.serving.serving_report import to_markdown as serving_table
from octavo.bench.speculation import Drafts, compared
from octavo.errors import UsageError
from octavo.io.model_path import resolve
from octavo.runtime.loading import load
from octavo.runtime.model import Model
from octavo.runtime.speculation.draft_lengths import DraftLengths, StepCosts
from octavo.runtime.speculation.draft_model import DraftModel
from octavo.runtime.speculation.step_sizes import StepSizes


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load("demo", device="cpu", threads=1, n_ctx=160, max_sequences=3, speculate="lookup") as model:
        yield model


@pytest.fixture(autouse=True)
def _free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drafts pay whatever time they take here."""
    monkeypatch.setattr(StepCosts, "factor", lambda *_: 1.0)
    monkeypatch.setattr(StepSizes, "fitted", lambda _, replies, lengths, seconds: list(lengths))
    monkeypatch.setattr(DraftModel, "seconds", lambda *_: 0.0)
    monkeypatch.setattr(DraftLengths, "rests", lambda *_: False)


@pytest.mark.parametrize(("acceptance", "low", "high"), [(0.75, 0.3, 0.9), (1.0, 0.95, 1.0)])
def test_simulated_drafts(model: Model, acceptance: float, low: float, high: float) -> None:
    row = compared(model, Drafts("simulated", acceptance), "sampled", 3, 48, turns=1)
    assert row["same"]
    assert row["drafted"] > 0
    assert low <= row["acceptance"] <= high
    assert row["tokens_a_step"] > 3.5
    assert row["gain"] > 0


def test_bench_model_tells_of_drafts() -> None:
    options = BenchOptions(0, 0, rounds=1, threads=1, device="cpu", drafts=Drafts("simulated", 0.9))
    told, shown = list[str](), list[str]()
    text = to_markdown(bench_model(resolve("demo"), options, shown.append, told.append))
    assert "| simulated 0.9 | 1 | greedy |" in text
    assert "only the choice is replaced" in text
    assert "another than without" not in text
    assert "\nReplies are the same with drafts and without.\n" in text
    assert "simulated 0.9, sampled, 1 at a time, 96 tokens each: turn 1 of 1" in shown
    begun = [f"simulated 0.9, {how}, 1 at a time" for how in ("greedy", "sampled")]
    assert [line.split(":")[0] for line in told] == begun


ROW = {"drafts": "auto", "simulated": None, "settings": "greedy", "replies": 1, "rate": 10.0, "rate_without": 9.0,
       "drafted": 50, "acceptance": 0.5, "tokens_a_step": 2.0, "others_cpu": 0.01, "same": True}


@pytest.mark.parametrize(("gains", "others", "cell", "below"), [
    ([0.1, 1.2, 1.25, 1.3], 0.01, "| **1.25** (1.20 to 1.30) |", ""),
    ([0.1, 0.9, 1.1, 1.3], 0.01, "| 1.10 (0.90 to 1.30) |", "by up to 44% between turns: more turns (-r) tell more."),
    ([0.1, 1.1, 1.2, 1.5], 0.3, "| 1.20 (1.10 to 1.50) |", "by up to 36% between turns: other programs took up to 30%"),
    ([0.1, 1.3], 0.01, "| 1.30 (1.30 to 1.30) |", ""),
])
def test_how_sure_a_gain_is(gains: list[float], others: float, cell: str, below: str) -> None:
    row = ROW | {"gains": gains, "gain": statistics.median(gains[1:]), "others_cpu": others}
    text = "\n".join(speculation_table([row]))
    assert cell in text
    assert below in text
    assert bool(below) == ("Gains of one row differ" in text)


def test_what_is_there_is_taken_with_auto(model: Model) -> None:
    row = compared(model, Drafts("auto"), "greedy", 2, 24, turns=1)
    assert row["drafts"] == "auto"
    assert row["same"]
    with load("demo", device="reference", n_ctx=64, speculate="off") as plain, pytest.raises(UsageError, match="auto"):
        Drafts("auto").core(plain)


def test_what_does_not_go_together(model: Model) -> None:
    for kind, acceptance in (("lookup", 0.5), ("simulated", None), ("simulated", 1.5), ("guess", None)):
        with pytest.raises(UsageError, match=r"acceptance|unknown drafts"):
            Drafts(kind, acceptance)
    with pytest.raises(UsageError, match="no draft model or head"):
        Drafts("draft").core(model)
    with pytest.raises(UsageError, match="unknown settings"):
        compared(model, Drafts("lookup"), "loud", 1, 4, 1)


def test_a_server_tells_of_drafts() -> None:
    run = {"streams": 1, "requests": 2, "failed": 0, "failures": [], "client_cpu": 0.1, "output_tokens": 100}
    where = {"cpu": "a CPU", "cores": 2, "os": "Linux"}
    result = {
        "server": {"model": "m", "url": "http://x", "product": None}, "versions": {"octavo": "0", "commit": None},
        "machine": where, "date": "2026-11-30", "workload": "a", "input": 1, "output": 50, "prompts": "tokens",
        "rate": None, "goodput": {}, "runs": [run | {"accepted_tokens": 60, "rejected_tokens": 20}],
    }
    assert "| 75% of 80 | 2.50 |" in serving_table(result)
    result["runs"] = [run | {"accepted_tokens": 0, "rejected_tokens": 0}]
    assert "drafts accepted" not in serving_table(result)
