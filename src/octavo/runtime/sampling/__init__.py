"""From logits to the next token.

In: logits, or the largest of them where a device has found these. Out: tokens and their probabilities. Begin with
`sampler`; `processors` are penalties and biases, `select` chooses for all replies of a step.
"""
