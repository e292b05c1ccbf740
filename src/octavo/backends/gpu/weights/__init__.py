"""Weights on the device: how they are laid out, packed, loaded and decoded.

In: stored tensors, as planes of codes and scales. Out: words in the order in which kernels read them, and the
functions of a kernel that make numbers of them again. Begin with `layout`, whose definition is `pack.unpack`.
"""
