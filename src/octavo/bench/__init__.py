"""Measuring: whole models, single ops, the machine's limits, and other programs on the same files."""
