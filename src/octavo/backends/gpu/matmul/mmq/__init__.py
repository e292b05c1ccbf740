"""Some tokens, as llama.cpp's MMQ: int8 tensor cores on blocks, a scale for each group of codes.

In: packed weights and activations in blocks. Out: float32 sums. Begin with `dot_kernel`, which is portable;
`mma_kernel` holds fragments of `mma.sync` in registers itself.
"""
