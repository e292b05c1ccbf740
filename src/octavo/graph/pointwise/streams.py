# mypy: allow-untyped-defs
"""Several streams of a token [T, S, D], of which a layer sees one (AltUp, arXiv 2301.13310)."""

from octavo.graph.pointwise.expression import pointwise


@pointwise(fold="add", spreads=True)
def correct_streams(x, coefs, new, old):
    """x + (1 + coefs) * (new - old), of coefs [T, S, 1], and new and old [T, 1, D]."""
    return x + (1 + coefs) * (new - old)


@pointwise(fold="add", spreads=True)
def add_to_streams(x, parts, row):
    """x + parts * row, of parts [T, S, 1] and row [T, 1, D]."""
    return x + parts * row
