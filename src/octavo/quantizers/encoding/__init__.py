"""Rows of floats to packed blocks: checks, which kernel with which search, the kernels, and threads."""
