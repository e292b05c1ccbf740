"""/v1/completions as lm-eval asks for the likelihood of an answer: its numbers are those of the model."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.runtime import Model
from tests.server.live_server import Server

CASES = [("What is 12 times 7?", " 12 times 7 is 84."), ("What is 2 plus 2?", " 2 plus 2 is 5."), ("What", " is it?")]


@pytest.mark.parametrize("most", [0, 1])
def test_likelihoods_of_answers(server: Server, model: Model, most: int) -> None:
    """lm-eval's local-completions sends ids with echo and logprobs 1, and drops the token that was generated."""
    contexts = [model.tokenizer.encode(question) for question, _ in CASES]
    answers = [model.tokenizer.encode(answer, add_special=False) for _, answer in CASES]
    prompts = [[*context, *answer] for context, answer in zip(contexts, answers, strict=True)]
    reply = server.post("/v1/completions", prompt=prompts, echo=True, logprobs=1, max_tokens=most, temperature=0)
    for choice, context, prompt in zip(reply["choices"], contexts, prompts, strict=True):
        found = choice["logprobs"]
        end = len(found["tokens"]) - most
        scores = found["token_logprobs"][len(context) : end]
        likeliest = [max(top.values()) for top in found["top_logprobs"][len(context) : end]]
        logits = model.logits(prompt).astype(np.float64)  # [tokens, n_vocab]
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        rows, answer = logprobs[len(context) - 1 : -1], prompt[len(context) :]
        wanted = sum(row[token] for row, token in zip(rows, answer, strict=True))
        np.testing.assert_allclose(sum(scores), wanted, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(likeliest, rows.max(axis=1), atol=1e-3)
        greedy = [row.argmax() == token for row, token in zip(rows, answer, strict=True)]
        assert [score == top for score, top in zip(scores, likeliest, strict=True)] == greedy
