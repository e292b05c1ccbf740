"""The demo model's questions in the package, and scores that can be trusted."""

from __future__ import annotations

import pytest

from octavo.data.questions import Question, most, questions
from octavo.errors import UsageError
from octavo.evals.accuracy import Tally, evaluate, score


def test_questions_depend_on_the_seed_alone() -> None:
    assert questions(5, 50) == questions(5, 80)[:50]
    assert questions(5, 50) != questions(6, 50)
    assert questions(0, 50) != questions(0, 50, "train")
    assert set(questions(5, most("test"))) == set(questions(0, most("test")))
    assert questions(7, 2)[1] == Question("eighty-two + eight equals", "82 + 8 = 90.", "addition")


def test_more_questions_than_there_are() -> None:
    with pytest.raises(UsageError, match=r"questions is 2001 \(allowed: 0 to 2,000\)"):
        questions(0, 2001)
    with pytest.raises(UsageError, match="-1"):
        questions(0, -1)
    with pytest.raises(UsageError, match=r"'dev'.*train, test"):
        questions(0, 1, "dev")  # type: ignore[arg-type]


def test_score_wants_the_exact_sentence() -> None:
    asked = Question("12+30", "12 + 30 = 42.", "addition")
    assert score("12 + 30 = 42.", asked)
    assert score(" 12 + 30 = 42.\n", asked)
    for wrong in ("12 + 30 = 43.", "12 + 30 = 42", "42", "", "12 + 30 = 42. 12 + 30 = 42."):
        assert not score(wrong, asked)


def test_evaluate_counts_by_kind() -> None:
    known = {asked.prompt: asked.answer for asked in questions(4, 300)}
    perfect = evaluate(known.__getitem__, 300, 4)
    assert perfect.total == Tally(300, 300)
    assert perfect.misses == ()
    fooled = evaluate(lambda prompt: "" if "/" in prompt else known[prompt], 300, 4)
    slashes = [asked for asked in questions(4, 300) if "/" in asked.prompt]
    assert fooled.total == Tally(300 - len(slashes), 300)
    assert [asked for asked, _ in fooled.misses] == slashes
    assert sum(tally.n for tally in fooled.by_kind.values()) == 300
    assert fooled.by_kind["addition"].accuracy == 1.0
    assert f"| all | {300 - len(slashes)} | 300 |" in str(fooled)
    assert fooled.to_dict()["total"]["n"] == 300  # type: ignore[index]


def test_interval_is_wilsons() -> None:
    low, high = Tally(95, 100).interval()
    assert low == pytest.approx(0.8882, abs=1e-4)
    assert high == pytest.approx(0.9785, abs=1e-4)
    assert Tally(50, 50).interval()[0] == pytest.approx(0.9287, abs=1e-4)
    assert Tally(0, 0).interval() == (0.0, 1.0)
