"""Products of 8-bit numbers with one epilogue: int8, 4-bit weights by int8 (QQQ), fp8.

In: codes with scales of rows, tokens, tensors or groups. Out: bias, activation and residual applied. Begin with
`gemm`; each kernel has a portable form and one for compute capability 9.0.
"""
