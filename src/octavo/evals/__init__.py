"""How good a model is: perplexity, divergence from another model, accuracy, retrieval, and a report on one page.

Comes in: models, a text. Goes out: estimates with standard errors, importance matrices, what a weight's error costs.
Begin with `likelihood.py`; `windows.py` says how a text is run.

    text = octavo.evals.read_text("wiki.txt", model.tokenizer)
    print(octavo.evals.perplexity(model, text.tokens).perplexity)
    print(octavo.evals.divergence(quantized, model, text.tokens).kl)

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.calibrate.texts import Text, demo_text, read_text
    from octavo.evals.activation_squares import collect_imatrix
    from octavo.evals.kl_divergence import Divergence, divergence
    from octavo.evals.likelihood import Perplexity, perplexity
    from octavo.evals.stats import Estimate

__all__ = [
    "Divergence", "Estimate", "Perplexity", "Text", "collect_imatrix", "demo_text", "divergence", "perplexity",
    "read_text",
]

__getattr__ = names_from(__name__, {
    "octavo.calibrate.texts": ["Text", "demo_text", "read_text"],
    "octavo.evals.activation_squares": ["collect_imatrix"],
    "octavo.evals.kl_divergence": ["Divergence", "divergence"],
    "octavo.evals.likelihood": ["Perplexity", "perplexity"],
    "octavo.evals.stats": ["Estimate"],
})
