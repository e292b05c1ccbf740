"""`octavo bench gemm`: products of quantized operands, checked and timed next to the library's."""
