"""From logits to the next token.

In: logits, or the largest of them where a device has found these. Out: tokens and their probabilities. Begin with
`step_sampler`, which chooses for all replies of a step; `sampler` has the filters of one, `processors` penalties and
biases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.runtime.sampling.sampler import SamplingParams, make_sampler

__all__ = ["SamplingParams", "make_sampler"]

__getattr__ = names_from(__name__, {
    "octavo.runtime.sampling.sampler": ["SamplingParams", "make_sampler"],
})
