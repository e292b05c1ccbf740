"""Kernels compiled at run time, and what they are written with in Numba."""
