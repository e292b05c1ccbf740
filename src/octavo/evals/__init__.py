"""How good a model is: perplexity, divergence from another model, accuracy of the demo model; and what it is fed.

    text = octavo.evals.read_text("wiki.txt", model.tokenizer)
    print(octavo.evals.perplexity(model, text.tokens).perplexity)
    print(octavo.evals.divergence(quantized, model, text.tokens).kl)

Public names come from their modules when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.evals.activations import collect_imatrix
    from octavo.evals.calibration import calibrate
    from octavo.evals.kl import Divergence, divergence
    from octavo.evals.likelihood import Perplexity, perplexity
    from octavo.evals.schemes import SchemeMethod
    from octavo.evals.stats import Estimate
    from octavo.evals.texts import Text, demo_text, read_text

__all__ = [
    "Divergence",
    "Estimate",
    "Perplexity",
    "SchemeMethod",
    "Text",
    "calibrate",
    "collect_imatrix",
    "demo_text",
    "divergence",
    "perplexity",
    "read_text",
]

__getattr__ = names_from(__name__, {
    "octavo.evals.activations": ["collect_imatrix"],
    "octavo.evals.calibration": ["calibrate"],
    "octavo.evals.kl": ["Divergence", "divergence"],
    "octavo.evals.likelihood": ["Perplexity", "perplexity"],
    "octavo.evals.schemes": ["SchemeMethod"],
    "octavo.evals.stats": ["Estimate"],
    "octavo.evals.texts": ["Text", "demo_text", "read_text"],
})
