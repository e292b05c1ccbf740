"""Modules as other tools publish them, packed here value by value from the formats' descriptions.

Each function takes a matrix [N, K] and gives the module's tensors by the ends of their names, and the values, float32,
that they stand for. Nothing here is taken from the package.
"""
