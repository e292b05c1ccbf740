"""The engine: a model on its backends with a KV cache; a step's tokens in, logits out.

In: requests (`core`) or sequences (`engine`). Out: tokens, or logits. Begin with `core.EngineCore`, the loop of a
step; `batch` makes a step's arrays, `captured_sizes` keeps steps of few sizes, `placement` says which layers lie
where.
"""
