"""A product as quantized inference has it: int8 codes, exact sums, one epilogue: `python examples/int8_product.py`."""

import numpy as np

from octavo import ops

rng = np.random.default_rng(0)
x = rng.standard_normal((8, 1024), dtype=np.float32)  # [tokens, K]
weight = rng.standard_normal((512, 1024), dtype=np.float32)  # [N, K]
bias = rng.standard_normal(512, dtype=np.float32)

b, scale_b = ops.quantize_int8(weight, "channel")  # once, when a model is loaded
a, scale_a = ops.quantize_int8(x, "token")  # in each step
y = ops.int8_gemm(a, b, scale_a, scale_b, bias=bias, activation="relu")

sums = a.astype(np.int32) @ b.T.astype(np.int32)  # what the kernel adds up, without rounding
by_hand = np.maximum(sums * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1) + bias, 0)
exact = np.maximum(x @ weight.T + bias, 0)
print("from the same codes", np.linalg.norm(y - by_hand) / np.linalg.norm(by_hand))
print("from the floats    ", np.linalg.norm(y - exact) / np.linalg.norm(exact))
