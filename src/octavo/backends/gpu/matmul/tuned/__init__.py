"""Tuned tables: which kernel, in which shape, measured fastest for which product. Begin with `tuned_table`."""
