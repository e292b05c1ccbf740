"""Ops on rows of floats: norms, sums, products, soft-max, routing to experts. Begin with `kernel`."""
