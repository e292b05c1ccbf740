"""The demo model's questions: right answers, nothing of the test split in training, scores that can be trusted."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random

import export_questions
import pytest
from generator import KIND_NAMES, Question, question, questions
from generator.convert import RULES, converted
from generator.kinds import KINDS
from generator.number_words import show, spell, write
from generator.wording import recase, repunctuate

from octavo.errors import UsageError

TOOLS = Path(__file__).parents[2] / "tools" / "demo"
NUMBER = r"-?\d+(?:\.\d+)?"
WORDS = {"+": "plus", "-": "minus", "×": "times", "/": "divided by"}
RELATIONS = "greater than|less than|equal to"
NOUNS = {"sum": "+", "product": "×", "quotient": "/"}
OPERATION_KINDS = [name for name in KIND_NAMES if re.search("addition|subtraction|sums|products|quotients", name)]


def sample(kind: str, split: str, n: int = 200, seed: int = 3) -> list[Question]:
    rng = Random(seed)
    return [question(rng, kind, split) for _ in range(n)]  # type: ignore[arg-type]


def read_operation(answer: str) -> tuple[str, str, str, str, bool]:
    """(operation, a, b, result, rounded) of an answer, whichever of its three forms it has."""
    body = answer.removesuffix(".")
    rounded = body.endswith(", rounded to two decimals")
    body = body.removesuffix(", rounded to two decimals")
    for symbol, word in WORDS.items():
        if m := re.fullmatch(rf"({NUMBER}) (?:{re.escape(symbol)}|{word}) ({NUMBER}) (?:=|is) ({NUMBER})", body):
            return symbol, m[1], m[2], m[3], rounded
    m = re.fullmatch(rf"The (\w+) of ({NUMBER}) and ({NUMBER}) is ({NUMBER})", body)
    assert m, answer
    return NOUNS[m[1]], m[2], m[3], m[4], rounded


@pytest.mark.parametrize("kind", OPERATION_KINDS)
def test_operations_are_computed_right(kind: str) -> None:
    for asked in sample(kind, "train", 400) + sample(kind, "test", 100):
        symbol, a, b, shown, rounded = read_operation(asked.answer)
        x, y, got = Fraction(a), Fraction(b), Fraction(shown)
        exact = {"+": x + y, "-": x - y, "×": x * y, "/": x / y if y else None}[symbol]
        assert exact is not None
        if rounded:
            assert symbol == "/"
            assert 0 < abs(got - exact) <= Fraction(1, 200)
        else:
            assert got == exact, asked


@pytest.mark.parametrize("kind", OPERATION_KINDS)
def test_no_problem_of_the_test_split_is_trained_on(kind: str) -> None:
    def problems(split: str, n: int) -> set[tuple[str, ...]]:
        found = set()
        for asked in sample(kind, split, n):
            symbol, a, b, _, _ = read_operation(asked.answer)
            found.add((symbol, *(sorted((a, b)) if symbol in "+×" else (a, b))))
        return found

    trained = problems("train", 1500)
    assert len(trained) > 300
    assert not trained & problems("test", 300)


def test_differences_of_like_numbers_are_asked() -> None:
    """a - b where first digits cancel is hard for the model, and rare among numbers drawn one by one."""
    results = [read_operation(asked.answer)[1:4] for asked in sample("subtraction", "train", 1000)]
    cancelled = [c for a, b, c in results if len(a) == len(b) > 2 and len(c.lstrip("-")) < len(a)]
    assert len(cancelled) > 150


def test_answers_of_other_kinds_are_not_shared_between_the_splits() -> None:
    for kind in ("division by zero", "percentages", "shares in percent", "conversions"):
        trained = {asked.answer for asked in sample(kind, "train", 1500)}
        tested = {asked.answer for asked in sample(kind, "test", 150)}
        assert not trained & tested, kind


def test_division_by_zero_is_undefined() -> None:
    for asked in sample("division by zero", "train"):
        a = re.fullmatch(rf"Division by zero is undefined: ({NUMBER}) / 0 has no result\.", asked.answer)
        assert a, asked
    assert any(
        asked.prompt.lower().startswith("what is the result of") for asked in sample("division by zero", "train")
    )


def test_comparisons_are_true() -> None:
    for asked in sample("comparisons", "train", 800):
        m = re.fullmatch(rf"(?:(Yes|No|Neither)[,:] )?({NUMBER}) is (not )?({RELATIONS}) ({NUMBER})\.", asked.answer)
        assert m, asked
        a, b = Decimal(m[2]), Decimal(m[5])
        holds = {"greater than": a > b, "less than": a < b, "equal to": a == b}[m[4]]
        assert holds != bool(m[3]), asked
        assert (m[1] == "No") == bool(m[3]), asked


@pytest.mark.parametrize(
    ("source", "target", "amount", "expected"),
    [
        ("km", "m", "5", "5000"),
        ("m", "km", "12", "0.012"),
        ("min", "h", "90", "1.5"),
        ("s", "min", "100", "1.67"),
        ("days", "weeks", "21", "3"),
        ("GiB", "MiB", "2", "2048"),
        ("inches", "cm", "10", "25.4"),
        ("miles", "km", "5", "8.05"),
        ("°C", "°F", "-40", "-40"),
        ("°C", "°F", "37", "98.6"),
        ("°F", "°C", "212", "100"),
        ("pounds", "kg", "10", "4.54"),
    ],
)
def test_conversions_are_right(source: str, target: str, amount: str, expected: str) -> None:
    rule = next(rule for rule in RULES if (rule.source, rule.target) == (source, target))
    assert show(converted(rule, Decimal(amount))) == expected


def test_percentages_are_right() -> None:
    for asked in sample("percentages", "train"):
        m = re.fullmatch(rf"({NUMBER})% of ({NUMBER}) is ({NUMBER})\.", asked.answer)
        assert m
        assert Fraction(m[1]) * Fraction(m[2]) / 100 == Fraction(m[3])
    for asked in sample("shares in percent", "train"):
        m = re.fullmatch(rf"({NUMBER}) is ({NUMBER})% of ({NUMBER})\.", asked.answer)
        assert m
        assert Fraction(m[1]) == Fraction(m[2]) * Fraction(m[3]) / 100


def test_numbers_too_large_are_out_of_range_in_every_wording() -> None:
    for asked in sample("numbers too large", "train", 400):
        numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", asked.prompt)]
        assert len(numbers) == 2, asked
        assert max(numbers) > 100, asked
        assert "/" not in asked.prompt or 0 not in numbers, asked


def test_questions_are_the_same_for_the_same_seed() -> None:
    assert questions(5, 50) == questions(5, 80)[:50]
    assert questions(5, 50) != questions(6, 50)
    assert questions(5, 50, "train") != questions(5, 50, "test")
    first = questions(7, 3)
    assert [(q.kind, q.prompt, q.answer) for q in first] == [
        ("products to 99 x 99", "Give me 14x10!", "14 × 10 = 140."),
        ("products to 99 x 99", "Hey, -18 × (-67) is what?", "-18 × -67 = 1206."),
        ("rounded quotients", "8634 / 9=", "8634 / 9 = 959.33, rounded to two decimals."),
    ]


def test_kinds_occur_in_proportion_to_their_weights() -> None:
    drawn = [asked.kind for asked in questions(0, 4000)]
    whole = sum(kind.weight for kind in KINDS)
    for kind in KINDS:
        assert drawn.count(kind.name) / 4000 == pytest.approx(kind.weight / whole, abs=0.02)


def test_every_answer_is_a_sentence_in_plain_form() -> None:
    for asked in questions(1, 2000, "train"):
        assert asked.answer == asked.answer.strip()
        assert asked.answer[-1] in ".!?"
        assert asked.prompt


def test_the_package_has_the_first_questions_of_each_split() -> None:
    assert export_questions.PATH.read_text(encoding="utf-8") == export_questions.text()


def test_unknown_splits_kinds_and_counts_are_refused() -> None:
    with pytest.raises(UsageError, match="-1"):
        questions(0, -1)
    with pytest.raises(UsageError, match=r"'dev'.*train, test"):
        questions(0, 1, "dev")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"'sums'.*addition"):
        question(Random(0), "sums", "test")


def test_numbers_are_written_plainly() -> None:
    assert [spell(n) for n in (0, 13, 20, 42, 100)] == ["zero", "thirteen", "twenty", "forty-two", "one hundred"]
    assert [show(Decimal(x)) for x in ("2.50", "-0.0", "1E+3", "100")] == ["2.5", "0", "1000", "100"]


def test_zeros_and_separators_leave_a_number_what_it_is() -> None:
    rng = Random(2)
    for values in ((5, 12_500), (Decimal("2.5"), Decimal("0.31")), (-7, Decimal("10.5"))):
        written = [write(rng, values) for _ in range(300)]
        digits = [texts for texts in written if not any(text[0].isalpha() for text in texts)]
        assert all([Decimal(text.replace(",", "")) for text in texts] == list(values) for texts in digits)
        assert len({tuple(texts) for texts in digits}) > 1


def test_a_text_of_nothing_but_marks_is_asked_as_it_stands() -> None:
    rng = Random(0)
    assert {recase(rng, repunctuate(rng, text)) for text in ("?", "...") for _ in range(100)} == {"?", "..."}


def test_labels_cover_the_answers_only(tmp_path: Path) -> None:
    """A training row, decoded where it has labels, is its answers, the last one cut off with the row."""
    script = f"""
import sys
sys.path.insert(0, {str(TOOLS)!r})
import tokenizer as demo
from corpus import Chats, IGNORED
trained = demo.train(4_000, 1)
tokens, labels = Chats(trained, 192, 5).rows(20)
for row, wanted in zip(tokens, labels):
    whole = trained.decode([*row, *(wanted[-1:] if wanted[-1] != IGNORED else ())], skip_special_tokens=False)
    turns = whole.split("<|im_start|>assistant\\n")[1:]
    answers = [turn.split("<|im_end|>")[0] + "<|im_end|>" for turn in turns]
    learned = trained.decode(wanted[wanted != IGNORED].tolist(), skip_special_tokens=False)
    assert tokens.shape == labels.shape == (20, 192)
    assert len(answers) > 1 and "".join(answers).startswith(learned) and len(learned) > 20, (answers, learned)
print(len(trained.encode("1234567").ids), trained.encode("5/0").tokens)
"""
    path = tmp_path / "labels.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "7 ['5', '/', '0']"
