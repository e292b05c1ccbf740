"""Ops on each value, or each row, by itself: norms, sums, products, soft-max. Begin with `kernel`."""
