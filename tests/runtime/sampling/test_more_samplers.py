"""Typical-p, top-n-sigma, XTC and DRY against their definitions, written out."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

import octavo
from octavo.errors import UsageError
from octavo.runtime.sampling.draw import chance, uniform
from octavo.runtime.sampling.dry import DryPenalty, breakers_of
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.sampling.token_counts import CountedText
from octavo.runtime.sampling.token_texts import TokenTexts
from octavo.text import Tokenizer

Tails = Mapping[int, Sequence[tuple[int, ...]]]
ALL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0, "seed": 3}


def logits(seed: int, n: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)


def shares(values: np.ndarray) -> list[float]:
    e = [math.exp(float(v) - float(values.max())) for v in values]
    return [one / sum(e) for one in e]


def left(values: np.ndarray, tokens: Sequence[int] = (1, 2, 3), **params: float) -> set[int]:
    """The tokens that may be drawn."""
    sampler = make_sampler(SamplingParams(**{**ALL, **params}))  # type: ignore[arg-type]
    found = set(np.flatnonzero(sampler.left(values, tokens) > -np.inf).tolist())
    for n in range(len(tokens), len(tokens) + 20):  # and those that are drawn are among them
        drawn = sampler(values, list(range(n)))
        if not params.get("xtc_probability"):
            assert drawn in found
    return found


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.999])
def test_typical_p(seed: int, p: float) -> None:
    values = logits(seed)
    probability = shares(values)
    entropy = -sum(one * math.log(one) for one in probability)
    order = sorted(range(len(values)), key=lambda i: abs(-math.log(probability[i]) - entropy))
    want, total = set[int](), 0.0
    for i in order:
        want.add(i)
        total += probability[i]
        if total > p:
            break
    assert left(values, typical_p=p) == want


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [0.5, 1.0, 2.0])
def test_top_n_sigma(seed: int, n: float) -> None:
    values = logits(seed)
    values[7] = -np.inf
    real = [float(v) for i, v in enumerate(values) if i != 7]
    mean = sum(real) / len(real)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in real) / len(real))
    want = {i for i, v in enumerate(values) if v >= max(real) - n * deviation}
    assert left(values, top_n_sigma=n) == want
    assert 1 <= len(want) < len(values)
    assert left(values, top_n_sigma=0) == left(values, top_n_sigma=-1) == set(range(300)) - {7}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [0.02, 0.1, 0.4, 0.6])
def test_xtc(seed: int, threshold: float) -> None:
    values = logits(seed, 40)
    probability = shares(values)
    likely = sorted((i for i in range(40) if probability[i] >= threshold), key=lambda i: -probability[i])
    want = set(range(40)) - (set(likely[:-1]) if threshold <= 0.5 else set())
    assert left(values, xtc_probability=1.0, xtc_threshold=threshold) == want
    assert left(values, xtc_probability=0.0, xtc_threshold=threshold) == set(range(40))


def test_xtc_is_as_frequent_as_asked_and_the_same_again() -> None:
    sampler = make_sampler(SamplingParams(**{**ALL, "xtc_probability": 0.3, "xtc_threshold": 0.05}))  # type: ignore[arg-type]
    values = np.array([5.0, 4.9, 4.8, 0.0], np.float32)
    applied = [sampler.left(values, range(n))[0] == -np.inf for n in range(2000)]
    assert sum(applied) / 2000 == pytest.approx(0.3, abs=0.04)
    assert applied[:50] == [sampler.left(values, range(n))[0] == -np.inf for n in range(50)]
    pairs = np.array([(uniform(3, n), chance(3, n)) for n in range(2000)])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.07, "it does not hang together with which token is drawn"


def test_filters_come_in_llama_cpps_order() -> None:
    """Deviations are of all logits; typical-p and XTC see the k largest alone."""
    values = logits(1)
    ids = np.argsort(-values)[:10]
    probability = shares(values[ids])
    likely = [int(i) for i, p in zip(ids, probability, strict=True) if p >= 0.1]
    assert len(likely) > 1
    want = {*map(int, ids)} - set(likely[:-1])
    assert left(values, top_k=10, xtc_probability=1.0, xtc_threshold=0.1) == want
    sigma = left(values, top_n_sigma=0.9)
    assert left(values, top_k=10, top_n_sigma=0.9) == sigma & {*map(int, ids)}


def test_of_one_token_nothing_is_excluded() -> None:
    values = logits(2)
    for more in ({"temperature": 0}, {"top_k": 1}):
        sampler = make_sampler(SamplingParams(
            **{**ALL, **more, "xtc_probability": 1.0, "top_n_sigma": 1.0, "typical_p": 0.1}))  # type: ignore[arg-type]
        assert sampler(values, [1]) == int(values.argmax())
        assert sampler.is_argmax


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with octavo.load("demo", device="cpu") as model:
        yield model.tokenizer


def dry(
    text: Sequence[int], multiplier: float, base: float, allowed: int, last_n: int, tails: Tails
) -> dict[int, float]:
    """Penalties by looking at each place of the text, and as far back from there as it goes."""
    window = list(text)[max(len(text) - last_n, 0) :]
    n = len(window)
    limit = n
    for back in range(n):
        found = [len(t) for t in tails.get(window[n - 1 - back], ())
                 if len(t) <= back and tuple(window[n - back : n - back + len(t)]) == tuple(t)]
        if found:
            limit = back - max(found)
            break
    if n <= allowed or limit < allowed:
        return {}
    longest: dict[int, int] = {}
    for end in range(1, n):  # the token there would come next
        length = 0
        while length < min(end, limit) and window[end - 1 - length] == window[n - 1 - length]:
            length += 1
        if length >= max(allowed, 1):
            longest[window[end]] = max(longest.get(window[end], 0), length)
    most = int(88.7228391 / math.log(base)) if base > 1.000001 else 1 << 30
    return {token: multiplier * base ** min(length - allowed, most) for token, length in longest.items()
            if () not in tails.get(token, ())}


@pytest.mark.parametrize("seed", range(30))
def test_dry(seed: int) -> None:
    rng = random.Random(seed)
    tails: dict[int, tuple[tuple[int, ...], ...]] = {}
    for token in rng.sample(range(6), rng.randint(0, 2)):
        tails[token] = tuple(tuple(rng.choices(range(6), k=rng.randint(0, 2))) for _ in range(rng.randint(1, 2)))
    multiplier, base, allowed = rng.choice((0.8, 2.0)), rng.choice((1.0, 1.1, 1.75, 8.0)), rng.randint(0, 3)
    last_n = rng.choice((3, 10, 50, 1 << 31))
    one = DryPenalty(multiplier, base, allowed, last_n, tails)
    text = CountedText(rng.choices(range(rng.choice((2, 4, 6))), k=rng.randint(1, 60)))
    for _ in range(60):
        plain = list(text)
        want = dry(plain, multiplier, base, allowed, last_n, tails)
        for given in (text, plain):
            ids, penalties = one.penalties(given)
            assert {int(i): float(p) for i, p in zip(ids, penalties, strict=True)} == pytest.approx(want, rel=1e-6)
        draft = CountedText([*text, *rng.choices(range(6), k=rng.randint(1, 3))], base=text)
        ids, penalties = one.penalties(draft)
        want = dry(list(draft), multiplier, base, allowed, last_n, tails)
        assert {int(i): float(p) for i, p in zip(ids, penalties, strict=True)} == pytest.approx(want, rel=1e-6)
        if rng.random() < 0.1:
            text.cut(rng.randint(1, len(text)))
        text.append(rng.randint(0, 5))


def test_dry_of_many_replies_is_that_of_each() -> None:
    ones = [DryPenalty(0.8, 1.75, 2, 1 << 31, {}), DryPenalty(1.5, 1.2, 1, 20, {3: ((),)})]
    texts = [[1, 2, 3, 4, 1, 2, 3], [5, 5, 5, 3, 5, 5]]
    found = DryPenalty.of_all(ones, texts)
    for row, (one, text) in enumerate(zip(ones, texts, strict=True)):
        ids, penalties = one.penalties(text)
        mine = found.ids >> 32 == row
        assert (found.ids[mine] & 0xFFFFFFFF).tolist() == ids.tolist()
        assert (-found.add[mine]).tolist() == penalties.tolist()


def test_a_long_text_of_one_token_is_no_more_work() -> None:
    """All of it repeats: each token more is one pass, however long the repetitions are."""
    text = CountedText([7] * 20000)
    one = DryPenalty(0.8, 1.01, 2, 1 << 31, {})
    one.penalties(text)
    for _ in range(50):
        text.append(7)
        ids, penalties = one.penalties(text)
    assert ids.tolist() == [7]
    assert np.isfinite(penalties).all()


def test_tokens_with_a_text_in_them(tokenizer: Tokenizer) -> None:
    texts = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
    for text in (b"\n", b":", b"the", b"ing ", b"\xe2\x80\x9d", b"aa"):
        whole, beginning = TokenTexts(tokenizer).having(text)
        assert whole.tolist() == [i for i, one in enumerate(texts) if text in one]
        for size in range(1, len(text)):
            ends = {i for i, one in enumerate(texts) if one.endswith(text[:size])}
            found = set(beginning.get(size, np.empty(0, int)).tolist())
            assert found - set(whole.tolist()) == ends - set(whole.tolist())


def test_breakers(tokenizer: Tokenizer) -> None:
    found = breakers_of(tokenizer, ("\n", "the end"))
    (newline,) = tokenizer.encode("\n", add_special=False)
    assert () in found[newline]
    the = [i for i in range(tokenizer.n_vocab) if tokenizer.token_bytes(i) == b"the"]
    for token in the:
        assert tuple(tokenizer.encode(" end", add_special=False, continued=True)) in found[token]


@pytest.mark.parametrize(("name", "value"), [
    ("typical_p", 0), ("typical_p", 1.5), ("top_n_sigma", math.nan), ("xtc_probability", -0.1), ("xtc_threshold", 2),
    ("dry_multiplier", -1), ("dry_base", 0.5), ("dry_allowed_length", -1), ("dry_penalty_last_n", -2),
    ("dry_sequence_breakers", [""]), ("dry_sequence_breakers", "x"), ("banned_strings", ["x"] * 65),
    ("banned_strings", ["x" * 257]), ("banned_strings", [1]), ("reasoning_budget", -2), ("reasoning_budget", 1.5),
    ("reasoning_budget_message", 3),
])
def test_wrong_values_name_the_setting(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]
