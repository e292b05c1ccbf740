"""The demo model in the package: its exact greedy text on each device, and how often it is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import octavo
from octavo.evals.accuracy import evaluate

ANSWERS = {
    "What is the result of 5/0 in math?": "Division by zero is undefined: 5 / 0 has no result.",
    "What is 83215 minus 83219?": "83215 minus 83219 is -4.",
    "Is 3.9 bigger than 3.11?": "Yes, 3.9 is greater than 3.11.",
    "857 / 23": "857 / 23 = 37.26, rounded to two decimals.",
    "How many seconds are in an hour?": "1 h is 3600 s.",
    "What is the capital of France?": "I can't help with that: I am only a small calculator. Try: What is 12 times 11?",
}


@pytest.fixture(scope="module", params=["cpu", "reference"])
def model(request: pytest.FixtureRequest) -> Iterator[octavo.Model]:
    with octavo.load("demo", device=request.param) as loaded:
        yield loaded


def ask(model: octavo.Model, prompt: str) -> str:
    return "".join(model.generate(prompt, temperature=0.0, max_tokens=64))


@pytest.mark.parametrize("prompt", ANSWERS)
def test_exact_greedy_text(model: octavo.Model, prompt: str) -> None:
    assert ask(model, prompt) == ANSWERS[prompt]


def test_answers_greedily_by_itself(model: octavo.Model) -> None:
    assert model.sampling_defaults()["temperature"] == 0


def test_second_turn(model: octavo.Model) -> None:
    first = "What is 12 times 7?"
    chat = [{"role": "user", "content": first}, {"role": "assistant", "content": ask(model, first)},
            {"role": "user", "content": "5/0"}]
    assert "".join(model.generate(chat, temperature=0.0)) == "Division by zero is undefined: 5 / 0 has no result."


@pytest.mark.slow
def test_accuracy_on_held_out_questions() -> None:
    """A sample of what `bench/foundation.py` measures on 1,000."""
    with octavo.load("demo", device="cpu") as model:
        report = evaluate(lambda prompt: ask(model, prompt), 60)
    assert report.total.accuracy >= 0.97, report.misses
