"""Products of 8-bit numbers with one epilogue: int8, 4-bit weights by int8, scales of groups, fp8.

Begin with `gemm`.
"""
