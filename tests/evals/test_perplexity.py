"""Perplexity and divergence of tiny models, against their definition."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import NonFiniteError, UsageError
from octavo.evals import divergence, perplexity
from octavo.evals.report.quality import QualityPlan, measure_quality
from octavo.runtime import Model
from tests.evals.conftest import Open
from tests.evals.test_stats import exact_log_softmax
from tests.runtime import tiny

TOKENS = np.random.default_rng(5).integers(0, tiny.N_VOCAB, 150).tolist()


def log_probabilities(model: Model, tokens: list[int], context: int) -> list[tuple[np.ndarray, list[int]]]:
    """For each window, log-probabilities [n, V] before its scored tokens, and those tokens."""
    found = []
    for start in range(0, len(tokens) - context + 1, context):
        part = tokens[start : start + context]
        first = context // 2
        found.append((exact_log_softmax(model.logits(part))[first:-1], part[first + 1 :]))
    return found


def exact_perplexity(model: Model, tokens: list[int], context: int) -> float:
    nll = [-row[t] for rows, ts in log_probabilities(model, tokens, context) for row, t in zip(rows, ts, strict=True)]
    return math.exp(sum(nll) / len(nll))


@pytest.mark.parametrize("context", [4, 5, 32, 33, 50])
def test_perplexity_is_its_definition(open_tiny: Open, context: int) -> None:
    model = open_tiny(n_batch=20, n_outputs=6)
    got = perplexity(model, TOKENS, context=context)
    assert got.perplexity.value == pytest.approx(exact_perplexity(model, TOKENS, context), rel=1e-5)
    assert got.nll.value == pytest.approx(math.log(got.perplexity.value))
    chunks = 150 // context
    assert (got.chunks, got.tokens, got.context) == (chunks, chunks * (context - context // 2 - 1), context)


def test_a_model_that_knows_nothing_is_as_perplexed_as_its_vocabulary_is_large(open_tiny: Open) -> None:
    weights = tiny.tensors()
    weights["output.weight"] *= 0
    got = perplexity(open_tiny(weights), TOKENS, context=32)
    assert got.perplexity.value == pytest.approx(tiny.N_VOCAB)
    assert got.perplexity.error < 1e-9 * tiny.N_VOCAB


def test_scored_tokens_only(open_tiny: Open) -> None:
    weights = tiny.alphabet(endless=True)
    weights["output.weight"] *= 100
    letters = [tiny.LETTERS[i % 26] for i in range(128)]
    letters[40] = letters[100] = 7  # what no alphabet has: far from anything that the model expects
    scored = [t != 7 for t in letters]
    model = open_tiny(weights)
    after_wrong = [i for i, t in enumerate(letters) if t == 7]
    clean = [ok and i - 1 not in after_wrong for i, ok in enumerate(scored)]
    assert perplexity(model, letters, context=64, scored=clean).perplexity.value == pytest.approx(1, abs=1e-6)
    assert perplexity(model, letters, context=64).perplexity.value > 2


def test_chunks_and_progress(open_tiny: Open) -> None:
    seen: list[tuple[int, int, float]] = []
    got = perplexity(open_tiny(), TOKENS, context=32, chunks=3, progress=lambda *a: seen.append(a))
    assert [(done, of) for done, of, _ in seen] == [(1, 3), (2, 3), (3, 3)]
    assert seen[-1][2] == got.perplexity.value


def test_not_a_number(open_tiny: Open) -> None:
    weights = tiny.tensors()
    weights["output.weight"][3, 3] = np.nan
    with pytest.raises(NonFiniteError):
        perplexity(open_tiny(weights), TOKENS, context=32)


def noisy(seed: int, amount: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {n: (v * (1 + amount * rng.standard_normal(v.shape))).astype(np.float32) for n, v in tiny.tensors().items()}


def test_divergence_is_its_definition(open_tiny: Open) -> None:
    model, base = open_tiny(noisy(1, 0.2), n_outputs=5), open_tiny(n_batch=11)
    got = divergence(model, base, TOKENS, context=32)
    kl, same, change = [], [], []
    windows = zip(log_probabilities(model, TOKENS, 32), log_probabilities(base, TOKENS, 32), strict=True)
    for (p, targets), (q, _) in windows:
        kl += (np.exp(q) * (q - p)).sum(axis=1).tolist()
        same += (p.argmax(1) == q.argmax(1)).tolist()
        at = np.arange(len(targets)), targets
        change += (np.exp(p[at]) - np.exp(q[at])).tolist()
    assert 0.01 < got.kl.value == pytest.approx(np.mean(kl), rel=1e-4)
    assert got.kl.error == pytest.approx(np.std(kl) / math.sqrt(len(kl) - 1), rel=1e-3)
    assert got.kl_spread.largest == pytest.approx(max(kl), rel=1e-4)
    assert 0 < got.same_top.value < 1
    assert got.same_top.value == np.mean(same)
    assert got.delta_p.value == pytest.approx(np.mean(change), rel=1e-3)
    assert got.rms_delta_p.value == pytest.approx(np.sqrt(np.mean(np.square(change))), rel=1e-3)
    assert got.tokens == len(kl)
    ppl, base_ppl = exact_perplexity(model, TOKENS, 32), exact_perplexity(base, TOKENS, 32)
    assert got.perplexity.value == pytest.approx(ppl, rel=1e-5)
    assert got.base_perplexity.value == pytest.approx(base_ppl, rel=1e-5)
    assert got.perplexity_ratio.value == pytest.approx(ppl / base_ppl, rel=1e-5)
    assert got.perplexity_difference.value == pytest.approx(ppl - base_ppl, rel=1e-3)


def test_divergence_from_itself(open_tiny: Open) -> None:
    got = divergence(open_tiny(), open_tiny(), TOKENS, context=32)
    assert (got.kl.value, got.kl.error, got.same_top.value) == (0, 0, 1)
    assert (got.perplexity_ratio.value, got.perplexity_difference.value, got.rms_delta_p.value) == (1, 0, 0)


def test_nearer_models_diverge_less(open_tiny: Open) -> None:
    base = open_tiny()
    found = [divergence(open_tiny(noisy(1, a)), base, TOKENS, context=32).kl.value for a in (0.3, 0.1, 0.03)]
    assert found == sorted(found, reverse=True)


TOKENIZER = tiny.TOKENIZER["tokenizer.ggml.tokens"]
OTHER_VOCABULARIES = {
    "another token": ({"tokenizer.ggml.tokens": [*TOKENIZER[:-2], "<|end|>", "he"]}, "token 257 is .*im_end.* and"),
    "a token more": (
        {"tokenizer.ggml.tokens": [*TOKENIZER, "xx"], "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1, 1]},
        "token 259 is unused and 'xx'",
    ),
    "begins with BOS": ({"tokenizer.ggml.bos_token_id": tiny.START, "tokenizer.ggml.add_bos_token": True},
                        "begin a text with"),
}


@pytest.mark.parametrize("case", OTHER_VOCABULARIES)
def test_models_of_unlike_vocabularies(open_tiny: Open, case: str) -> None:
    keys, message = OTHER_VOCABULARIES[case]
    with pytest.raises(UsageError, match=message):
        divergence(open_tiny(), open_tiny(keys=keys), TOKENS, context=32)


PADDING = [*TOKENIZER, "[PAD259]"], [*TOKENIZER, "<unused0>"]
"""What rows of the embedding beyond the tokens may be called."""


@pytest.mark.parametrize("names", [(TOKENIZER, PADDING[0]), (PADDING[0], TOKENIZER), PADDING], ids="abc")
def test_tokens_that_fill_up_an_embedding(open_tiny: Open, names: tuple[list[str], list[str]]) -> None:
    """They mean nothing, whether a model lists them or not, and whatever it calls them."""
    types = [1] * 256 + [3, 3, 1, 5]
    keys = [{"tokenizer.ggml.tokens": one, "tokenizer.ggml.token_type": types[: len(one)]} for one in names]
    model, base = (open_tiny(keys=each) for each in keys)
    assert divergence(model, base, TOKENS, context=32).kl.value == 0


def test_a_checkpoint_of_a_model_that_lists_fewer_tokens_than_rows(tmp_path: Path) -> None:
    """As a report writes it, to measure a scheme."""
    src, text = tiny.write(tmp_path / "src.gguf"), tiny.write_letters(tmp_path / "text.txt", 80)
    plan = QualityPlan(text, schemes=["int8-w8a8"], context=32, chunks=1, device="reference")
    base, made = measure_quality(src, None, plan).points
    assert base.kl is None
    assert made.kl is not None
    assert 0 < made.kl.value < 1


def test_models_of_unlike_sizes(open_tiny: Open) -> None:
    more = {n: np.concatenate([v, v[:1]]) if len(v) == tiny.N_VOCAB else v for n, v in tiny.tensors().items()}
    with pytest.raises(UsageError, match=f"{tiny.N_VOCAB} and {tiny.N_VOCAB + 1} tokens"):
        divergence(open_tiny(), open_tiny(more), TOKENS, context=32)


def test_a_base_of_a_shorter_context(open_tiny: Open) -> None:
    with pytest.raises(UsageError, match=r"context is 64 .allowed: 4 to 32"):
        divergence(open_tiny(), open_tiny(n_ctx=32), TOKENS, context=64)
